"""Formal proofs of hardware: properties, equivalence, floating-point theory."""
