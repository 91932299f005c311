"""Bit-exact models of ToPick's blocks, named as in `hw`."""
