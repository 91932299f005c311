"""Bit-exact model of the converter: one comparison for each bit, the highest first."""

import numpy as np


def sar_adc(samples: np.ndarray, bits: int, fraction: int) -> np.ndarray:
    """Codes of ``samples``, integers in steps of 2^-``fraction``: int, -2^(bits-1) and up."""
    lowest = -(1 << bits - 1)
    found = np.zeros(samples.shape, np.int64)
    for position in reversed(range(bits)):
        trial = found | (1 << position)
        at_least = ((trial + lowest) << fraction) - (1 << fraction - 1)
        found = np.where(samples >= at_least, trial, found)
    return found + lowest
