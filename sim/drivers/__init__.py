"""Two drivers that run any stimulus on a design: cocotb, and a compiled C++ harness."""
