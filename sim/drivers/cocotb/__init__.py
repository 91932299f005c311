"""The cocotb driver, and stream and memory models for any cocotb testbench."""
