"""Bit-exact model of VEDA's core: attention of one layer's heads, and evictions from its cache."""

import dataclasses

import numpy as np

from golden.attention.decode_core import StepResult, fits
from golden.attention.pe_array import outer_product, tiled_product
from golden.attention.special_function_unit import layer_norm
from golden.attention.weighted_rows import WeightedRows
from golden.veda.voting_engine import VoteReport, VotingEngine


class TreeRows(WeightedRows):
    """With the products with V by a fixed adder tree."""

    def values(self, p: np.ndarray, v: np.ndarray) -> np.ndarray:
        return tiled_product(p, v, accumulator=self.accumulator)


class VedaContext:
    """A cache of one sequence after the other.

    ``k`` and ``v`` [kv heads, slots, d] are the rows in order of slots, ``engine`` has the slots'
    positions and counts.
    """

    def __init__(self, capacity: int, count_bits: int = 16, number: int = 0) -> None:
        self.engine = VotingEngine(capacity, count_bits, number)
        self.k = self.v = np.empty((0, 0, 0), np.float16)
        self.length = 0
        self._capacity = capacity

    def join(self, k: np.ndarray, v: np.ndarray, restart: bool) -> None:
        """A token's rows [kv heads, d] take the slot after the last."""
        if restart or self.k.shape[::2] != k.shape:
            self.k, self.v = np.zeros((2, len(k), self._capacity, k.shape[1]), np.float16)
            self.length = 0
        self.k[:, self.length], self.v[:, self.length] = k, v
        self.length += 1

    def evict(self, reports: list[VoteReport]) -> None:
        """The last slot's rows move into each evicted slot."""
        for report in reports:
            if report.evict:
                for rows in (self.k, self.v):
                    rows[:, report.slot] = rows[:, report.length]
        self.length = reports[-1].length


class VedaCore:
    """The caches of several contexts, each of one layer and of one sequence after the other.

    capacity
        Rows of a kv head during a step, the new one included, at most.
    heads, kv_heads
        Most heads of a step. A command of more heads, or of more than kv_heads times its group, or
        for a context that does not exist, is refused: it changes nothing. None: no limit.
    accumulator, add_stages
        Parameters of the array; see :mod:`golden.attention.pe_array`.
    tile
        Tile of the softmax; see :mod:`golden.attention.special_function_unit`.
    count_bits
        Width of a vote count.
    tree
        Whether products with V are summed by a fixed adder tree.
    contexts
        Number of ``contexts``.
    normed
        Elements of the longest vector that the special function unit normalises.
    block
        Most tokens of a step. One without tokens or with more of them is refused, and so is one of
        more tokens than its context has slots free.
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
        contexts: int = 1,
        normed: int = 0,
        block: int = 1,
    ) -> None:
        rows = TreeRows if tree else WeightedRows
        self._attend = rows(max(capacity, normed), tile, accumulator, add_stages)
        self._accumulator, self._add_stages = accumulator, add_stages
        self._heads, self._kv_heads = heads, kv_heads
        self._capacity, self._block = capacity, block
        self.contexts = [VedaContext(capacity, count_bits, n) for n in range(contexts)]

    def step(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        *,
        group: int | None = None,
        restart: bool = False,
        context: int = 0,
        **command,
    ) -> StepResult:
        """The next token's ``q`` [heads, d], times the scale, and ``k`` and ``v`` [kv heads, d].

        All are float16. ``group`` heads share a kv head, the last one perhaps fewer; by default
        they are spread evenly. ``command`` are the arguments of
        :meth:`golden.veda.voting_engine.VotingEngine.step`.

        A block of tokens has them as a second axis: q [heads, tokens, d], k, v [kv heads, tokens,
        d]. It is by definition what its tokens are one after the other, where only the last one's
        command has its ``evict``.
        """
        group = -(-len(q) // len(k)) if group is None else group
        tokens = q.shape[1] if q.ndim == 3 else 1
        if not self._fits(len(q), group, tokens, restart, context):
            exists = context < len(self.contexts)
            length = self.contexts[context].length if exists else 0
            report = VoteReport(False, 0, 0, length, False, True, error=True, context=context)
            return StepResult.refusal(q.shape[-1], report)
        if q.ndim == 3:
            return self._block_step(q, k, v, group, restart, context, **command)
        cache = self.contexts[context]
        cache.join(k, v, restart)
        slots = cache.length
        result = self._attend(q, cache.k[:, :slots], cache.v[:, :slots], group)
        reports = cache.engine.step(result[2], restart=restart, **command)
        cache.evict(reports)
        return StepResult(*result, reports)

    def _fits(self, heads: int, group: int, tokens: int, restart: bool, context: int) -> bool:
        most = heads if self._heads is None else self._heads
        if context >= len(self.contexts) or not fits(heads, group, most, self._kv_heads or heads):
            return False
        before = 0 if restart else self.contexts[context].length
        return 1 <= tokens <= self._block and before + tokens <= self._capacity

    def _block_step(
        self, q, k, v, group: int, restart: bool, context: int, *, evict: bool = True, **command
    ) -> StepResult:
        tokens = q.shape[1]
        steps = [
            self.step(
                *(x[:, token] for x in (q, k, v)),
                group=group,
                restart=restart and token == 0,
                context=context,
                evict=evict and token == tokens - 1,
                **command,
            )
            for token in range(tokens)
        ]
        slots = steps[-1].p.shape[1]
        padded = [np.pad(step.p, ((0, 0), (0, slots - step.p.shape[1]))) for step in steps]
        o, invalid, p = (
            np.stack(x, axis=1).reshape(-1, *x[0].shape[1:])
            for x in ([step.o for step in steps], [step.invalid for step in steps], padded)
        )
        reports = [
            dataclasses.replace(report, last=report.last and step is steps[-1])
            for step in steps
            for report in step.reports
        ]
        return StepResult(o, invalid, p, reports)

    def product(
        self, x: np.ndarray, w: np.ndarray, norm: tuple[np.float32, np.float32] | None = None
    ) -> StepResult:
        """Vectors ``x`` [vectors, rows] times a matrix ``w`` [blocks, rows, d], all float16.

        Each block gives the results of all vectors, in turn: ``o`` [blocks vectors, d].

        norm
            Normalise the vectors first, with 1 / rows and the epsilon.
        """
        if norm is not None:
            x = np.stack([layer_norm(row, *norm, rms=True)[0] for row in x])
        o = outer_product(
            x[None], w[:, None], accumulator=self._accumulator, add_stages=self._add_stages
        ).reshape(-1, w.shape[-1])
        none = np.empty((0, 0), np.float16)
        return StepResult(o, np.zeros(len(o), bool), none, [])
