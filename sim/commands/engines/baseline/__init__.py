"""Engines on VEDA's blocks."""
