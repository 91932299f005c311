"""Testbenches of LAD's blocks."""
