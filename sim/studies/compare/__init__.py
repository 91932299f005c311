"""Cores on equal terms: one layer's decode step of each, at one shape, on one memory."""
