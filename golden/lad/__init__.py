"""Bit-exact models of LAD's blocks, named as in `hw`."""
