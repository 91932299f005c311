"""Blocks on FPGA boards: a serial link that carries a block's streams, and the boards."""
