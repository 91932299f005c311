"""Cycle-level models of the stream components."""
