"""Bit-exact models of the arithmetic units, on whole arrays, with NumPy's dtypes as formats."""
