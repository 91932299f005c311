"""Bit-exact models of the baselines, named as in `hw`."""
