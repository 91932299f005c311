"""Testbenches of the sixth design's blocks."""
