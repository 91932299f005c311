"""Bit-exact model of VEDA's core: attention of one layer's heads, and evictions from its cache."""

import numpy as np

from golden.attention.decode_core import StepResult, fits
from golden.attention.pe_array import tiled_product
from golden.attention.weighted_rows import WeightedRows
from golden.veda.voting_engine import VoteReport, VotingEngine


class TreeRows(WeightedRows):
    """With the products with V by a fixed adder tree."""

    def values(self, p: np.ndarray, v: np.ndarray) -> np.ndarray:
        return tiled_product(p, v, accumulator=self.accumulator)


class VedaCore:
    """One layer's cache, of one sequence after the other.

    ``k`` and ``v`` [kv heads, slots, d] are the rows in order of slots, ``engine`` has the slots'
    positions and counts.

    capacity
        Rows of a kv head during a step, the new one included, at most.
    heads, kv_heads
        Most heads of a step. A command of more heads, or of more than kv_heads times its group, is
        refused: it changes nothing. None: no limit.
    accumulator, add_stages
        Parameters of the array; see :mod:`golden.attention.pe_array`.
    tile
        Tile of the softmax; see :mod:`golden.attention.special_function_unit`.
    count_bits
        Width of a vote count.
    tree
        Whether products with V are summed by a fixed adder tree.
    """

    def __init__(
        self,
        capacity: int,
        *,
        accumulator: str = "fp32",
        add_stages: int = 2,
        tile: int = 8,
        count_bits: int = 16,
        tree: bool = False,
        heads: int | None = None,
        kv_heads: int | None = None,
    ) -> None:
        rows = TreeRows if tree else WeightedRows
        self._attend = rows(capacity, tile, accumulator, add_stages)
        self._heads, self._kv_heads, self._capacity = heads, kv_heads, capacity
        self.engine = VotingEngine(capacity, count_bits)
        self.k = self.v = np.empty((0, 0, 0), np.float16)
        self._length = 0

    def step(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        *,
        group: int | None = None,
        restart: bool = False,
        **command,
    ) -> StepResult:
        """The next token's ``q`` [heads, d], times the scale, and ``k`` and ``v`` [kv heads, d].

        All are float16. ``group`` heads share a kv head, the last one perhaps fewer; by default
        they are spread evenly. ``command`` are the arguments of
        :meth:`golden.veda.voting_engine.VotingEngine.step`.
        """
        group = -(-len(q) // len(k)) if group is None else group
        most = len(q) if self._heads is None else self._heads
        if not fits(len(q), group, most, self._kv_heads or len(q)):
            report = VoteReport(False, 0, 0, self._length, False, True, error=True)
            return StepResult.refusal(q.shape[1], report)
        if restart or self.k.shape[::2] != k.shape:
            self.k, self.v = np.zeros((2, len(k), self._capacity, k.shape[1]), np.float16)
            self._length = 0
        self.k[:, self._length], self.v[:, self._length] = k, v
        slots = self._length + 1
        result = self._attend(q, self.k[:, :slots], self.v[:, :slots], group)
        reports = self.engine.step(result[2], restart=restart, **command)
        for report in reports:
            if report.evict:
                for rows in (self.k, self.v):
                    rows[:, report.slot] = rows[:, report.length]
        self._length = reports[-1].length
        return StepResult(*result, reports)
