"""Devices behind AXI under cocotbext-axi: an independent master of registers, and RAM."""
