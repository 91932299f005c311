"""Cycle-level twins of the stream components."""
