"""Bit-exact model of the voting engine (VEDA, sections III and V): votes and evictions in integers.

A probability is an integer multiple of 2^-24, so the sums over heads, s, and the comparison with
the threshold are exact. With S1 and S2 the sums of s and of s^2 over l slots, and a = A / 2^12,
b = B / 2^12,

    s < a mean(s) - b std(s)  <=>  2^12 l s < A S1 - sqrt(B^2 (l S2 - S1^2))

and since the left side is an integer, the root may be rounded down: with r = isqrt(...),

    <=>  2^12 l s < A S1 - r  <=>  s <= floor((A S1 - r - 1) / (2^12 l)).

Counts are kept by slot as in :class:`golden.algorithms.veda.voting.VotingAttention`.
"""

import dataclasses
import math

import numpy as np

from golden.attention.probability import fixed, is_probability

WEIGHT_FRACTION = 12
WEIGHT_BITS = 15
"""Width of a and b: unsigned, below 8."""


def weight(value: float) -> int:
    """The nearest A or B for an a or b of 0 to 8.

    Raises ``ValueError`` for others.
    """
    code = round(value * 2**WEIGHT_FRACTION) if math.isfinite(value) else -1
    if not 0 <= code < 2**WEIGHT_BITS:
        raise ValueError(f"a weight must be at least 0 and below 8, not {value}")
    return code


def threshold(s: np.ndarray, a: int, b: int) -> tuple[bool, int]:
    """Whether T = a mean - b std is below zero, and if not, the largest score that gets a vote.

    ``s`` [slots] are sums over heads in units of 2^-24. The largest score is -1 for no vote.
    """
    a, b = int(a), int(b)
    total, squares = int(s.sum()), sum(value * value for value in s.tolist())
    radicand = b * b * (len(s) * squares - total * total)
    mean, deviation = a * total, math.isqrt(radicand)
    negative = radicand > mean * mean
    return negative, -1 if negative else (mean - deviation - 1) // (len(s) << WEIGHT_FRACTION)


def vote(s: np.ndarray, positions: np.ndarray, a: int, b: int) -> np.ndarray:
    """``bool [slots]``: which slots get a vote.

    As :func:`golden.algorithms.veda.voting.cast_votes` defines it.
    """
    negative, limit = threshold(s, a, b)
    if not negative:
        return s <= limit
    return np.arange(len(s)) == np.lexsort((positions, s))[0]


@dataclasses.dataclass(frozen=True)
class VoteReport:
    """One beat of the engine's reports: with ``evict``, the evicted slot and its position.

    ``length`` slots of the ``context`` are live afterwards; ``last`` on a step's last report.
    ``error`` is the core's: the command was refused.
    """

    evict: bool
    slot: int
    position: int
    length: int
    invalid: bool
    last: bool
    error: bool = False
    context: int = 0


class VotingEngine:
    """Counts of one sequence after the other, over at most ``capacity`` slots.

    ``positions`` and ``counts`` [slots] describe the live slots; counts have ``count_bits`` and
    saturate. ``context`` is in its reports.
    """

    def __init__(self, capacity: int, count_bits: int = 16, context: int = 0) -> None:
        self._capacity, self._context = capacity, context
        self._largest_count = (1 << count_bits) - 1
        self._restart()

    def _restart(self) -> None:
        self.tokens = 0
        self.positions = np.empty(0, np.int64)
        self.counts = np.empty(0, np.uint16)

    def step(
        self,
        p: np.ndarray,
        *,
        a: int,
        b: int,
        vote_cast: bool = True,
        evict: bool = True,
        target: int = 0,
        protected: int = 0,
        restart: bool = False,
    ) -> list[VoteReport]:
        """A token joins and votes by ``p`` [heads, slots] float16; then slots are evicted.

        While there are more than ``target`` with ``evict``, or ``capacity`` of them.
        """
        if restart:
            self._restart()
        self.positions = np.append(self.positions, self.tokens)
        self.counts = np.append(self.counts, np.uint16(0))
        self.tokens += 1
        if p.shape[1] != len(self.positions):
            raise ValueError(f"p must be for {len(self.positions)} slots, not {p.shape[1]}")
        invalid = not is_probability(p).all()
        if vote_cast and not invalid:
            s = fixed(p).sum(axis=0)
            self.counts += vote(s, self.positions, a, b) & (self.counts < self._largest_count)
        reports, context = [], self._context
        while self._evicting(evict, target):
            slot = self._slot_to_evict(protected)
            position = int(self.positions[slot])
            last = len(self.positions) - 1
            self.positions[slot], self.counts[slot] = self.positions[last], self.counts[last]
            self.positions, self.counts = self.positions[:last], self.counts[:last]
            again = self._evicting(evict, target)
            reports.append(
                VoteReport(True, slot, position, last, invalid, not again, context=context)
            )
        none = VoteReport(False, 0, 0, len(self.positions), invalid, True, context=context)
        return reports or [none]

    def _evicting(self, evict: bool, target: int) -> bool:
        length = len(self.positions)
        return length == self._capacity or (evict and length > target)

    def _slot_to_evict(self, protected: int) -> int:
        """That with the most votes, the oldest on ties; a protected one only if all are."""
        order = (self.positions, -self.counts.astype(np.int64), self.positions < protected)
        return int(np.lexsort(order)[0])
