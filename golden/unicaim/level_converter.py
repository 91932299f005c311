"""Bit-exact model of the level converter: rows of FP16 numbers to levels of the cells."""

from typing import NamedTuple

import numpy as np

from golden.unicaim.cells import key_limit, query_limit
from golden.unicaim.rotation import transform

ALIGNED = (1 << 15) - 1
"""Largest magnitude of an aligned element."""


class Divisor(NamedTuple):
    """What a level is worth: ``mantissa`` units of 2^(exponent - 25)."""

    mantissa: int
    exponent: int


def divisor_of(value: float) -> Divisor:
    """The parts of a divisor, a positive normal FP16 number.

    Raises ``ValueError`` for any other number.
    """
    rounded = np.float16(value)
    bits = int(rounded.view(np.uint16))
    if not 1 <= bits >> 10 <= 30:
        raise ValueError(f"a divisor must be a positive normal FP16 number, not {value}")
    return Divisor(bits & 0x3FF | 0x400, bits >> 10)


def aligned(x: np.ndarray, divisor: Divisor) -> np.ndarray:
    """``x`` float16[...] in units of the divisor's last bit, rounded towards zero: int64[...].

    Larger numbers than ``ALIGNED`` and infinities become that; NaNs are 0.
    """
    bits = x.view(np.uint16).astype(np.int64)
    field, fraction = bits >> 10 & 31, bits & 0x3FF
    mantissa = fraction | (field > 0).astype(np.int64) << 10
    shift = np.maximum(field, 1) - divisor.exponent
    size = np.where(
        shift >= 0, mantissa << np.clip(shift, 0, 31), mantissa >> np.clip(-shift, 0, 31)
    )
    size = np.where(field == 31, np.where(fraction == 0, ALIGNED, 0), np.minimum(size, ALIGNED))
    return np.where(bits >> 15, -size, size)


def levels(rows: np.ndarray, divisor: Divisor, bits: int) -> np.ndarray:
    """Integers over the divisor, to the nearest, halves away from zero, at most 2^bits - 1."""
    size = (2 * np.abs(rows) + divisor.mantissa) // (2 * divisor.mantissa)
    return np.sign(rows) * np.minimum(size, (1 << bits) - 1)


class LevelConverter:
    """Keys and queries to levels, with a mean key and a divisor for each context.

    seed
        Seed of the rotation's signs; None: rows are not rotated.
    """

    def __init__(self, key_bits: int, query_bits: int, contexts: int, seed: int | None) -> None:
        self._key_bits, self._query_bits, self._seed = key_bits, query_bits, seed
        self._divisors = [Divisor(1024, 15)] * contexts
        self._means: list[np.ndarray | int] = [0] * contexts

    def load(self, context: int, mean: np.ndarray, divisor: float) -> None:
        """The mean key, float16[d], that is taken off all keys, and their divisor."""
        self._divisors[context] = divisor_of(divisor)
        self._means[context] = self._rotated(mean, self._divisors[context])

    def keys(self, context: int, rows: np.ndarray) -> np.ndarray:
        """Levels of keys float16[..., d]: int64[..., d]."""
        divisor, limit = self._divisors[context], key_limit(self._key_bits)
        centred = self._rotated(rows, divisor) - self._means[context]
        return np.clip(levels(centred, divisor, self._key_bits), -limit, limit)

    def query(self, row: np.ndarray, divisor: float) -> np.ndarray:
        """Levels of a query float16[d]: int64[d]."""
        parts = divisor_of(divisor)
        found = levels(self._rotated(row, parts), parts, self._query_bits)
        assert np.abs(found).max() <= query_limit(self._query_bits)
        return found

    def _rotated(self, rows: np.ndarray, divisor: Divisor) -> np.ndarray:
        whole = aligned(rows, divisor)
        return whole if self._seed is None else transform(whole, self._seed)
