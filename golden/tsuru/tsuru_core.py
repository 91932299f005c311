"""Bit-exact model of the sixth design's core; see :mod:`hw.tsuru.tsuru_core`."""

from dataclasses import dataclass

import numpy as np

from golden.attention.decode_core import StepResult, fits
from golden.attention.pe_array import inner_products
from golden.attention.weighted_rows import WeightedRows
from golden.tsuru.row_choice import SUM_FRACTION, choose
from golden.tsuru.row_search import aligned, estimates, merged
from golden.tsuru.stored_rows import PLANES, NewRow, StoredRows


@dataclass(frozen=True)
class TsuruReport:
    """Number of tokens in memory after a step, rows that its batches read besides the sinks, and
    whether the command was refused."""

    length: int
    chosen: int = 0
    error: bool = False


class TsuruCore:
    """One layer's cache of one sequence after the other, in the form in which it is stored.

    rows
        The stored rows.
    new
        What the host gave in the last step, of each kv head.
    chosen
        ``bool[slots]`` of each batch of the last step: slots of the rows that it read.
    """

    def __init__(
        self,
        capacity: int,
        heads: int,
        kv_heads: int,
        d: int,
        *,
        parallel: int = 1,
        sinks: int = 1,
        query_bits: int = 8,
        fractions: tuple[int, int] = (4, 4),
    ):
        self._capacity, self._heads, self._kv_heads = capacity, heads, kv_heads
        self._parallel, self._sinks, self._query_bits = parallel, sinks, query_bits
        self._sum_bits = SUM_FRACTION + 1 + (capacity - 1).bit_length()
        self._attend = WeightedRows(capacity + 1)  # the rest is a row more
        self.rows = StoredRows(capacity, kv_heads, d, sinks, fractions)
        self.new: list[NewRow] = []
        self.chosen: list[np.ndarray] = []
        self.length = 0

    def step(self, q, k, v, *, group: int, restart: bool = False, threshold: int = 0) -> StepResult:
        """The next token's ``q [heads, d]``, times the scale, and ``k, v [kv heads, d]``, all
        rotated, and K less its mean. The threshold is as :func:`row_choice.choose` has it."""
        before = 0 if restart else self.length
        if before == self._capacity or not fits(len(q), group, self._heads, self._kv_heads):
            return StepResult.refusal(q.shape[1], TsuruReport(self.length, error=True))
        self.length = before + 1
        self.new = self.rows.write(before, k, v)
        self.chosen = []
        parts = []
        for kv_head, first in enumerate(range(0, len(q), group)):
            shared = q[first : first + group]
            for n in range(0, len(shared), self._parallel):
                parts.append(self._batch(kv_head, shared[n : n + self._parallel], threshold))
        sinks = min(self._sinks, self.length)
        chosen = sum(int(slots.sum()) - sinks for slots in self.chosen)
        o, invalid, p = (np.concatenate(of) for of in zip(*parts, strict=True))
        return StepResult(o, invalid, p, [TsuruReport(self.length, chosen)])

    def _batch(self, kv_head: int, q: np.ndarray, threshold: int):
        """``o``, ``invalid`` and ``p`` of heads of a kv head; the last p is the rest's."""
        rows, used = self.rows, slice(self.length)
        integers, top = aligned(q, self._query_bits)
        slots = slice(rows.slot(self.length))
        found = estimates(
            integers,
            top,
            rows.scales[kv_head, slots],
            rows.search[kv_head, slots],
            self._query_bits,
        )
        e, present = merged(found, self._sinks, PLANES)
        # Sinks and the newest row.
        always = np.arange(e.shape[1]) < self._sinks * PLANES
        always[np.flatnonzero(present)[-1]] = True
        chosen = choose(e, present, always, threshold, self._sum_bits)
        taken = chosen.slots[present]
        self.chosen.append(chosen.slots)
        k, v = (x[kv_head, used][taken] for x in (rows.k, rows.v))
        scores = inner_products(
            q,
            np.broadcast_to(k, (len(q), *k.shape)),
            relative=True,
            given=chosen.rest[:, None],
        )
        p, invalid = self._attend.probabilities(scores)
        values = np.concatenate([v, rows.mean[None, kv_head]])
        o = self._attend.values(p, np.broadcast_to(values, (len(q), *values.shape)))
        weights = np.zeros((len(q), self.length + 1), np.float16)
        weights[:, np.append(taken, True)] = p
        return o, invalid, weights
