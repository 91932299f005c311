"""Bit-exact models of VEDA's blocks, named as in `hw`."""
