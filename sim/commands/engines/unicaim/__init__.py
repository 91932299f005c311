"""Engines on UniCAIM's blocks."""
