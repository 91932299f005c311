"""Cycles of a tile of LAD."""
