"""A block behind AXI as a package: Verilog, header, drivers and descriptions for other tools."""
