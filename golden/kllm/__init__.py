"""Bit-exact models of KLLM's blocks, named as in `hw`."""
