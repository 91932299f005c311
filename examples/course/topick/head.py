"""The last step of a query head of the shipped trace, in 12-bit integers."""

import dataclasses

import numpy as np

from golden import trace
from golden.algorithms.topick import (
    Decisions,
    arrival_order,
    decide,
    leading_bits,
    margins,
    quantise,
    scale_for,
)

LAYER = 1
"""The trace's second layer, the model's layer 15."""


@dataclasses.dataclass(frozen=True)
class Head:
    """
    exact, partial
        Scores ``int[tokens]``, and what 1, 2 and 3 chunks make of them, ``int[chunks, tokens]``.
    least, most
        What the unread bits may change, ``float[chunks]``.
    unit
        Argument of exp for a score of 1.
    """

    query: np.ndarray
    exact: np.ndarray
    partial: np.ndarray
    least: np.ndarray
    most: np.ndarray
    unit: float

    @classmethod
    def of(cls, head: int) -> "Head":
        shipped = trace.load(trace.shipped()[0])
        q = shipped.q[LAYER, head, -1].astype(np.float32)
        k = shipped.k[LAYER, head // shipped.group].astype(np.float32)
        scales = [scale_for(np.abs(x).max(), 12) for x in (q, k)]
        query, keys = (quantise(x, scale, 12) for x, scale in zip((q, k), scales, strict=True))
        partial = np.stack([leading_bits(keys, b + 1, 12, 4) @ query for b in range(3)])
        unit = float(scales[0] * scales[1] * shipped.scale)
        return cls(query, keys @ query, partial, *margins(query, 12, 4), unit)

    def decide(self, order: np.ndarray) -> Decisions:
        """Decisions at a threshold of 0.001, tokens in that order and one key after another."""
        events = arrival_order(len(self.exact), len(self.partial), 0)
        return decide(events, self.partial[:, order], self.least, self.most, self.unit, 1e-3)
