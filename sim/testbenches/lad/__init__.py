"""Benches of LAD's blocks."""
