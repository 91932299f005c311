"""Bit-exact softmax(q K) V of heads that share kv heads; see :mod:`hw.attention.weighted_rows`."""

from dataclasses import dataclass

import numpy as np

from golden.attention.pe_array import inner_products, outer_product
from golden.attention.special_function_unit import softmax


@dataclass(frozen=True)
class WeightedRows:
    """softmax(q K) V as the array and the softmax unit compute it.

    length, tile
        Parameters of the softmax; see :mod:`golden.attention.special_function_unit`.
    accumulator, add_stages
        Parameters of the array; see :mod:`golden.attention.pe_array`.
    """

    length: int
    tile: int = 8
    accumulator: str = "fp32"
    add_stages: int = 2

    def __call__(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, group: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``o``, ``invalid`` and ``p`` of float16 ``q [heads, d]``, ``k, v [kv heads, rows, d]``.

        ``group`` heads share a kv head, the last one perhaps fewer.
        """
        kv_head = np.arange(len(q)) // group
        scores = inner_products(q, k[kv_head], accumulator=self.accumulator, relative=True)
        p, invalid = self.probabilities(scores)
        return self.values(p, v[kv_head]), invalid, p

    def probabilities(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``p [heads, rows]`` and ``invalid [heads]`` of scores ``[heads, rows]``."""
        softmaxes = [softmax(row, self.length, self.tile) for row in scores]
        return np.stack([y for y, _ in softmaxes]), np.array([bad for _, bad in softmaxes])

    def values(self, p: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Sum of rows ``v [heads, rows, d]`` with weights ``p [heads, rows]``."""
        return outer_product(p, v, accumulator=self.accumulator, add_stages=self.add_stages)
