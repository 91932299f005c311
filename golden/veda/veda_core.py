"""Bit-exact model of VEDA's core: attention of one layer's heads, and evictions from its cache."""

from dataclasses import dataclass

import numpy as np

from golden.attention.pe_array import inner_products, outer_product, tiled_product
from golden.attention.special_function_unit import softmax
from golden.veda.voting_engine import VoteReport, VotingEngine


@dataclass(frozen=True, eq=False)
class StepResult:
    """Outputs of one token's step.

    o, invalid
        ``float16[heads, d]`` and ``bool[heads]``: whether a head's softmax was invalid.
    p
        ``float16[heads, slots]``: probabilities, on which votes are based.
    reports
        Reports of the voting engine; or one with ``error``, and the arrays above are of 0 heads.
    """

    o: np.ndarray
    invalid: np.ndarray
    p: np.ndarray
    reports: list[VoteReport]

    @property
    def refused(self) -> bool:
        return self.reports[0].error


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
        self._tree = tree
        self._heads, self._kv_heads = heads, kv_heads
        self._capacity, self._tile = capacity, tile
        self._accumulator, self._add_stages = accumulator, add_stages
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
        if self._refuses(len(q), group or -(-len(q) // len(k))):
            return self._refusal(q.shape[1])
        if restart or self.k.shape[::2] != k.shape:
            self.k, self.v = np.zeros((2, len(k), self._capacity, k.shape[1]), np.float16)
            self._length = 0
        self.k[:, self._length], self.v[:, self._length] = k, v
        slots = self._length + 1
        kv_head = np.arange(len(q)) // (group or -(-len(q) // len(k)))
        rows = self.k[kv_head, :slots]
        scores = inner_products(q, rows, accumulator=self._accumulator, relative=True)
        softmaxes = [softmax(row, self._capacity, self._tile) for row in scores]
        p = np.stack([y for y, _ in softmaxes])
        v, accumulator = self.v[kv_head, :slots], self._accumulator
        if self._tree:
            o = tiled_product(p, v, accumulator=accumulator)
        else:
            o = outer_product(p, v, accumulator=accumulator, add_stages=self._add_stages)
        reports = self.engine.step(p, restart=restart, **command)
        for report in reports:
            if report.evict:
                for rows in (self.k, self.v):
                    rows[:, report.slot] = rows[:, report.length]
        self._length = reports[-1].length
        return StepResult(o, np.array([invalid for _, invalid in softmaxes]), p, reports)

    def _refuses(self, heads: int, group: int) -> bool:
        if self._heads is not None and heads > self._heads:
            return True
        return self._kv_heads is not None and heads > self._kv_heads * group

    def _refusal(self, d: int) -> StepResult:
        report = VoteReport(False, 0, 0, self._length, False, True, error=True)
        o, invalid = np.empty((0, d), np.float16), np.empty(0, bool)
        return StepResult(o, invalid, np.empty((0, self._length), np.float16), [report])
