"""NumPy models of the accelerators: what must come out."""
