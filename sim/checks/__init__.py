"""Checks beyond simulation: proofs, mutation tests, all pairs of operands."""
