"""From a component to Verilog that people read, its sidecar, and what `hw show` says."""
