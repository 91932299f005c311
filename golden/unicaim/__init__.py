"""Bit-exact models of UniCAIM's blocks, named as in `hw`."""
