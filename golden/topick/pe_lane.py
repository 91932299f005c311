"""Bit-exact model of the lane: replays any order in which chunks arrive.

The algorithm is :func:`golden.algorithms.topick.decide.decide`. What differs: scores are binary
logarithms rounded down to 2^-fraction, margins are rounded away from the score, terms are rounded
down, and each decision is made with the logarithm of the denominator that comes with its chunk.
"""

from dataclasses import dataclass

import numpy as np

from golden.topick.margin_generator import scaled_margins
from golden.topick.pec import difference, term
from golden.topick.rpdu import prune
from golden.topick.scoreboard import Scoreboard


@dataclass(frozen=True)
class LaneSizes:
    """The parameters of :class:`hw.topick.pe_lane.PeLaneParameters` that results depend on."""

    bits: int
    chunk_bits: int
    base: int
    fraction: int
    precision: int
    limb: int
    threshold_bits: int
    entries: int
    probability_bits: int

    @property
    def chunks(self) -> int:
        return self.bits // self.chunk_bits

    def unknown(self, chunk: int) -> int:
        return self.bits - self.chunk_bits * (chunk + 1)


@dataclass(frozen=True, eq=False)
class Head:
    """A query's codes, int[d], the codes of its scale and threshold, and the number of tokens.

    With `exempt` the last token, number `tokens` - 1, is never pruned. A head of 0 tokens has no
    decisions, so none of them is `ended`.
    """

    q: np.ndarray
    mantissa: int
    shift: int
    threshold: int
    tokens: int
    exempt: bool = False

    def margins(self, sizes: LaneSizes) -> list[np.ndarray]:
        """``[most, least]``, int64[chunks]: what each chunk leaves unknown of a score, at most."""
        margins = scaled_margins(
            self.q,
            np.asarray(self.mantissa),
            np.asarray(self.shift),
            bits=sizes.bits,
            chunk_bits=sizes.chunk_bits,
            base=sizes.base,
        )
        return [np.append(margin, 0) for margin in margins]


@dataclass(frozen=True)
class Decision:
    """The decision on a chunk's token; exactly one of `pruned`, `requests`, `kept` is true.

    t
        Score as a binary logarithm, rounded down.
    difference
        ``(limb, high, low)``; None for a token pruned at its first chunk.
    ended
        It was the head's last decision.
    """

    token: int
    chunk: int
    slot: int
    pruned: bool
    requests: bool
    kept: bool
    t: int
    term: tuple[int, int]
    difference: tuple[int, int, int] | None
    ended: bool


def chunk_of(k: np.ndarray, chunk: int, sizes: LaneSizes) -> np.ndarray:
    """A chunk of codes, unsigned, as memory stores it."""
    return (np.asarray(k) >> sizes.unknown(chunk)) & ((1 << sizes.chunk_bits) - 1)


def signed_chunk(data: np.ndarray, chunk: int, sizes: LaneSizes) -> np.ndarray:
    """A chunk's value: only the first one is signed."""
    half = 1 << sizes.chunk_bits - 1
    data = np.asarray(data, np.int64)
    return (data ^ half) - half if chunk == 0 else data


class PeLane:
    """Decides chunk by chunk, head after head; slots continue from one head to the next."""

    def __init__(self, sizes: LaneSizes):
        self._sizes = sizes
        self.scoreboard = Scoreboard(sizes.entries)
        self._undecided = 0

    def begin(self, head: Head) -> None:
        assert self._undecided == 0, "a head begins before the last one ended"
        self._head, self._undecided = head, head.tokens
        self.most, self.least = (margin.tolist() for margin in head.margins(self._sizes))

    def decide(
        self, token: int, chunk: int, slot: int, data: np.ndarray, known: bool, log_denominator: int
    ) -> Decision:
        """Decide on a chunk that arrives, with the logarithm of the denominator at that time."""
        z, head = self._sizes, self._head
        score, old = self.scoreboard.read(slot) if chunk else (0, (0, 0))
        score = (score << z.chunk_bits) + int((head.q * signed_chunk(data, chunk, z)).sum())
        t = score * head.mantissa >> z.base + head.shift - z.unknown(chunk)
        if head.exempt and token == head.tokens - 1:
            known = False  # without a denominator no token is pruned
        below = prune(
            t,
            self.most[chunk],
            head.threshold,
            log_denominator,
            known,
            threshold_bits=z.threshold_bits,
        )
        pruned = bool(below)
        requests = not pruned and chunk < z.chunks - 1
        shift, significand = term(t, self.least[chunk], fraction=z.fraction, precision=z.precision)
        new = int(shift), int(significand)
        found = None
        if chunk or not pruned:
            limb, high, low = difference(
                new, old, pruned, chunk > 0, precision=z.precision, limb=z.limb
            )
            found = int(limb), int(high), int(low)
        if requests:
            self.scoreboard.park(slot, (score, new))
        else:
            self.scoreboard.free_slot(slot)
            self._undecided -= 1
        ended = not requests and self._undecided == 0
        kept = not pruned and not requests
        return Decision(token, chunk, slot, pruned, requests, kept, t, new, found, ended)


def weighted_sum(p: np.ndarray, v: np.ndarray, sizes: LaneSizes) -> np.ndarray:
    """A lane's sum of p[i] v[i] over i, int64[d], wrapped around to its width."""
    total = (np.asarray(p, np.int64)[:, None] * np.asarray(v, np.int64)).sum(axis=0)
    half = 1 << sizes.probability_bits + sizes.bits
    return ((total + half) & (2 * half - 1)) - half


def probability_sum(p: np.ndarray, sizes: LaneSizes) -> int:
    """A lane's sum of p, wrapped around likewise."""
    return int(np.asarray(p, np.int64).sum()) & ((2 << sizes.probability_bits) - 1)
