"""Testbenches of the arithmetic units."""
