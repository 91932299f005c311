"""Engines on the baselines."""
