"""One testbench for each block of the catalogue, found by the block's name."""
