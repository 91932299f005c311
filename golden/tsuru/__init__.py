"""Bit-exact models of the sixth design's blocks, named as in `hw`."""
