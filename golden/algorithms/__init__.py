"""The papers' algorithms in floating point, and the baselines they are compared with."""
