"""Bit-exact models of what cores of attention share, named as in `hw`."""
