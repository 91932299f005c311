"""Benches of the arithmetic units."""
