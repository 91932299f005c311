"""AXI: blocks as masters and as memory-mapped devices."""
