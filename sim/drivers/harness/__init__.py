"""The compiled driver: C++ around the design that Verilator made."""
