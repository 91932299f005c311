"""Divisors that host software gives UniCAIM's core with keys and queries, and units of codes.

Sizes are a :class:`golden.unicaim.unicaim_core.CoreSizes` or a hardware's parameters.
"""

from typing import Protocol

import numpy as np

from golden.unicaim.cells import KEY_SPAN, key_limit, rotated_key_span


class Sizes(Protocol):
    """What divisors depend on."""

    @property
    def d(self) -> int: ...
    @property
    def key_bits(self) -> int: ...
    @property
    def query_bits(self) -> int: ...
    @property
    def rotate(self) -> bool: ...
    @property
    def adc_shift(self) -> int: ...


def divisor_for(p: Sizes, step: float) -> float:
    """The divisor of levels that are worth `step`, within the range of divisors."""
    scale = np.sqrt(p.d) if p.rotate else 1.0
    return float(np.float16(np.clip(step * scale, 2.0**-14, 65504)))


def key_divisor(p: Sizes, k: np.ndarray, mean: np.ndarray) -> float:
    """The divisor of keys [any, d]: see ``rotated_key_span`` and ``KEY_SPAN`` of ``cells``."""
    rms = np.sqrt(np.mean((k.astype(np.float64) - mean) ** 2))
    span = rotated_key_span(p.key_bits) if p.rotate else KEY_SPAN
    return divisor_for(p, min(span / key_limit(p.key_bits), 1) * rms)


def query_divisors(p: Sizes, q: np.ndarray) -> np.ndarray:
    """Divisors of queries [heads, d]: the highest level is query_bits root mean squares."""
    rms = np.sqrt(np.mean(q.astype(np.float64) ** 2, axis=-1))
    top = (1 << p.query_bits) - 1
    return np.array([divisor_for(p, p.query_bits / top * one) for one in rms])


def code_units(p: Sizes, key: float, queries: np.ndarray) -> np.ndarray:
    """What a converter's code is worth, for divisors of keys and queries."""
    scale = p.d if p.rotate else 1
    return np.minimum(queries * key / scale * 2.0**p.adc_shift, 65504).astype(np.float16)
