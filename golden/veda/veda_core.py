"""Bit-exact twin of VEDA's core: attention of one layer's heads, and which rows leave its cache."""

from dataclasses import dataclass

import numpy as np

from golden.attention import DecodeAttention
from golden.veda.pe_array import inner_products, outer_product
from golden.veda.special_function_unit import softmax
from golden.veda.voting_engine import VoteReport, VotingEngine, weight

_SLOT_BYTES = 2 + 4
"""A slot's vote count and its token's position."""


@dataclass(frozen=True, eq=False)
class StepResult:
    """What one token comes to.

    o, invalid
        ``float16[heads, d]`` and ``bool[heads]``: whether a head's scores were no numbers.
    p
        ``float16[heads, slots]``: probabilities, as they vote.
    reports
        Those of the voting engine.
    """

    o: np.ndarray
    invalid: np.ndarray
    p: np.ndarray
    reports: list[VoteReport]


class VedaCore:
    """One layer's cache, of one sequence after the other.

    ``k`` and ``v`` [kv heads, slots, d] are the rows in order of slots, ``engine`` has the slots'
    positions and counts.

    capacity
        Most rows of a kv head during a step, the new one included.
    accumulator, add_stages
        Of the array; see :mod:`golden.veda.pe_array`.
    tile
        Of the softmax; see :mod:`golden.veda.special_function_unit`.
    count_bits
        Of a vote count.
    """

    def __init__(
        self,
        capacity: int,
        *,
        accumulator: str = "fp32",
        add_stages: int = 2,
        tile: int = 8,
        count_bits: int = 16,
    ) -> None:
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
        **job,
    ) -> StepResult:
        """The next token's ``q`` [heads, d], times the scale, and ``k`` and ``v`` [kv heads, d].

        All are float16; ``group`` heads share a kv head, the last one perhaps fewer, or as many
        each as is possible; ``job`` is that of :meth:`golden.veda.voting_engine.VotingEngine.step`.
        """
        if restart or self.k.shape[::2] != k.shape:
            self.k, self.v = np.zeros((2, len(k), self._capacity, k.shape[1]), np.float16)
            self._length = 0
        self.k[:, self._length], self.v[:, self._length] = k, v
        slots = self._length + 1
        of = np.arange(len(q)) // (group or -(-len(q) // len(k)))
        scores = inner_products(q, self.k[of, :slots], accumulator=self._accumulator)
        made = [softmax(row, self._capacity, self._tile) for row in scores]
        p = np.stack([y for y, _ in made])
        o = outer_product(
            p, self.v[of, :slots], accumulator=self._accumulator, add_stages=self._add_stages
        )
        reports = self.engine.step(p, restart=restart, **job)
        for report in reports:
            if report.evict:
                for rows in (self.k, self.v):
                    rows[:, report.slot] = rows[:, report.length]
        self._length = reports[-1].length
        return StepResult(o, np.array([invalid for _, invalid in made]), p, reports)


class BitExactVoting(DecodeAttention):
    """:class:`golden.veda.voting.VotingAttention` as the core computes it.

    ``rows`` is the core's capacity, by default the least power of two above ``capacity`` and
    ``prompt``; with fewer, rows leave during the prompt. Other arguments are as for the algorithm.
    q is scaled and then rounded to FP16, and so are k and v. Rows are filled up to a power of two.
    """

    def __init__(
        self,
        capacity: int,
        reserved: int = 32,
        a: float = 1.0,
        b: float = 0.2,
        protect_reserved: bool = False,
        prompt: int = 0,
        scale: float | None = None,
        *,
        rows: int | None = None,
        **core,
    ) -> None:
        super().__init__()
        if rows is None:
            rows = 1 << max(capacity, prompt).bit_length()
        self._core = VedaCore(rows, **core)
        self._capacity, self._reserved, self._prompt = capacity, reserved, prompt
        self._a, self._b, self._scale = weight(a), weight(b), scale
        self._protected = reserved if protect_reserved else 0
        self._tokens = 0

    @property
    def positions(self) -> np.ndarray:
        return self._core.engine.positions

    @property
    def votes(self) -> np.ndarray:
        return self._core.engine.counts

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        token = self._tokens
        self._tokens += 1
        kv_heads, d = k.shape
        scale = 1 / np.sqrt(d) if self._scale is None else self._scale
        fill = (1 << (d - 1).bit_length()) - d
        q, k, v = (
            np.pad(np.asarray(x), ((0, 0), (0, fill))).astype(np.float16)
            for x in (np.asarray(q, np.float64) * scale, k, v)
        )
        result = self._core.step(
            q,
            k,
            v,
            a=self._a,
            b=self._b,
            vote_cast=token >= self._reserved,
            evict=token >= self._prompt,
            target=self._capacity,
            protected=self._protected,
        )
        self.evicted += [report.position for report in result.reports if report.evict]
        self.traffic.read(kv_heads * result.p.shape[1], kv_heads * result.p.shape[1], d)
        self.traffic.dense(kv_heads * self._tokens, d)
        self.rows = kv_heads * len(self.positions)
        self.state_bytes = _SLOT_BYTES * len(self.positions)
        return result.o[:, :d].astype(np.float32)
