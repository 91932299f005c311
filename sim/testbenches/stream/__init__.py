"""Testbenches of the stream components."""
