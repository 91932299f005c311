"""Engines of LAD."""
