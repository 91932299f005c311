"""Voting-based eviction from the KV cache (VEDA, section III, figures 2 and 3; engine: section V).

Every token votes against the rows that it pays little attention to, and when the cache is full the
row with the most votes is evicted. Voting is by layer: the attention scores s' (probabilities after
the softmax) of all query heads are averaged first, and a row is evicted from all heads at once.

Choices where the paper leaves it open:

- The new token is part of its own vote: s' covers all l rows in view, the new row included, so that
  it counts in the mean and the standard deviation and may receive a vote. (In figure 2 the first of
  six tokens has six scores, the last has one, its own.) It may itself be evicted if it
  has the only vote. It is never evicted on a tie, being the youngest.
- "Earliest" means the oldest token, not the lowest slot, also where the threshold is negative and
  several rows share the minimum.
- Counts are 16 bits wide, as the paper's vote buffer, and saturate.
- The reserved stage is about voters: the first R tokens cast no vote, but their rows may receive
  votes and be evicted. ``protect_reserved`` keeps them. A prompt longer than the capacity needs
  that: a token whose threshold is negative casts one vote, so at the end of the prompt most rows
  have no votes, and ties evict the oldest of them, the attention sink first.
- The paper evicts "when the cache reaches its predefined size", but performs no eviction in the
  prefilling phase (sections III and V), and then has a constant size. Read literally (``prefill``
  of "vote"), the votes of a dense prompt decide on all evictions at once. With "evict" the size is
  constant in the prompt too, and each eviction has the votes of the tokens until then.
- The paper calls R the lower bound of the cache. A smaller capacity is allowed; before the first
  vote it evicts the oldest token.
"""

import math

import numpy as np

from golden.algorithms.attention import (
    DecodeAttention,
    attention_scores,
    floats,
    softmax,
    weighted_sum,
)
from golden.algorithms.cache import KVCache
from golden.algorithms.prompt import probabilities
from golden.veda.veda_core import VedaCore
from golden.veda.voting_engine import weight

MAX_VOTES = 2**16 - 1
"""Where a vote count saturates."""

_SLOT_BYTES = 2 + 4
"""A slot's vote count and its token's position."""


def cast_votes(
    s: np.ndarray, positions: np.ndarray, a: float = 1.0, b: float = 0.2
) -> tuple[np.ndarray, float]:
    """One token's votes, and the threshold T = a mean(s) - b std(s) (figure 3, line 3).

    ``s`` [slots] are the scores averaged over heads, ``positions`` [slots] the tokens' positions,
    all different. A slot below T gets a vote; where T is below zero, only the slot of the least
    score does, of the oldest token on ties. Returns bool [slots] and T; the statistics are float64
    and the standard deviation is the population's.
    """
    s = np.asarray(s, np.float64)
    threshold = float(a * s.mean() - b * s.std())
    if threshold >= 0:
        return s < threshold, threshold
    votes = np.zeros(len(s), bool)
    votes[_oldest(s == s.min(), positions)] = True
    return votes, threshold


def _votes_of(s: np.ndarray, first: int, a: float, b: float) -> np.ndarray:
    """Votes that each token has from a run of queries, as :func:`cast_votes` of each query.

    ``s`` [queries, tokens] are averaged scores of the queries at positions `first` on, which see
    the tokens up to themselves.
    """
    s = s.astype(np.float64)
    seen = first + 1 + np.arange(len(s))[:, None]
    inside = np.arange(s.shape[1]) < seen
    mean = s.sum(axis=1, keepdims=True) / seen
    spread = np.sqrt(np.where(inside, np.square(s - mean), 0).sum(axis=1, keepdims=True) / seen)
    threshold = a * mean - b * spread
    votes = (s < threshold) & inside
    (alone,) = np.nonzero(threshold[:, 0] < 0)
    votes[alone] = False
    votes[alone, np.where(inside[alone], s[alone], np.inf).argmin(axis=1)] = True
    return votes.sum(axis=0)


def count_votes(counts: np.ndarray, votes: np.ndarray) -> np.ndarray:
    """``uint16`` counts [slots] after these votes, saturating at ``MAX_VOTES``."""
    return counts + (votes & (counts < MAX_VOTES))


def slot_to_evict(counts: np.ndarray, positions: np.ndarray, protected: int = 0) -> int:
    """The slot with the most votes, of the oldest token on ties.

    Tokens at positions below ``protected`` are not considered. Raises ``ValueError`` if all are
    protected.
    """
    candidates = positions >= protected
    if not candidates.any():
        raise ValueError(f"all {len(positions)} slots are protected")
    return _oldest(candidates & (counts == counts[candidates].max()), positions)


def _oldest(candidates: np.ndarray, positions: np.ndarray) -> int:
    """The marked slot whose token has the lowest position."""
    slots = np.flatnonzero(candidates)
    return int(slots[positions[slots].argmin()])


class VotingAttention(DecodeAttention):
    """Attention over at most ``capacity`` earlier tokens and the new one, evicting by vote.

    A step: the new token's row is added with no votes; attention over all rows, ``capacity`` + 1 at
    most; its votes are counted; then, while more than ``capacity`` rows are held, the row with the
    most votes is evicted and the row in the last slot, the new token's, moves into its slot. So
    slots are not in order of age. Later tokens see neither the evicted row nor its count.

    capacity
        S, rows kept per kv head between steps. From the number of tokens on it is dense attention.
    reserved
        R: tokens at positions below it cast no vote.
    a, b
        Weights of mean and standard deviation in the threshold.
    protect_reserved
        Whether tokens at positions below ``reserved`` are never evicted.
    prompt
        P: tokens at positions below it only vote (the paper's prefilling); the step of the first
        token after it evicts down to the capacity, most votes first. With 0 the cache never
        outgrows the capacity (the paper's fixed size for language modelling).
    prefill
        "vote", the prompt as above, or "evict", which treats it as any other tokens, as P of 0.
    scale
        Multiplies the scores before the softmax; 1 / sqrt(d) when not given.
    bit_exact
        Compute as VEDA's core does: q is scaled, then q, k and v are rounded to FP16 and padded to
        a power of two of elements. See :class:`golden.veda.veda_core.VedaCore`.
    rows
        The core's capacity; by default the least power of two above `capacity` and `prompt`. With
        fewer, rows are evicted during the prompt.

    ``positions`` and ``votes`` [slots] are the kept tokens' positions and vote counts. ``traffic``
    counts a row once for each kv head, as the core reads it.
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
        bit_exact: bool = False,
        rows: int | None = None,
        prefill: str = "vote",
    ) -> None:
        super().__init__()
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        if reserved < 0:
            raise ValueError(f"reserved must be at least 0, not {reserved}")
        for name, value in (("a", a), ("b", b)):
            if not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, not {value}")
        if protect_reserved and capacity < reserved:
            raise ValueError(
                f"capacity must be at least reserved, {reserved}, where those tokens are protected,"
                f" not {capacity}"
            )
        if prompt < 0:
            raise ValueError(f"prompt must be at least 0, not {prompt}")
        if prefill not in ("vote", "evict"):
            raise ValueError(f"prefill must be vote or evict, not {prefill}")
        prompt = prompt if prefill == "vote" else 0
        self._capacity, self._reserved, self._a, self._b = capacity, reserved, a, b
        self._protected = reserved if protect_reserved else 0
        self._prompt = prompt
        self._scale = scale
        self._cache = KVCache()
        self._core: VedaCore | None = None
        if bit_exact:
            self._core = VedaCore(1 << max(capacity, prompt).bit_length() if rows is None else rows)
        self._tokens = 0
        self.positions = np.empty(0, np.int64)
        self.votes = np.empty(0, np.uint16)

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        position = self._tokens
        self._tokens += 1
        if self._core is None:
            o, slots = self._step_float(q, k, v, position)
        else:
            o, slots = self._step_core(self._core, q, k, v, position)
        kv_heads, d = k.shape
        self.traffic.read(kv_heads * slots, kv_heads * slots, d)
        self.traffic.dense(kv_heads * self._tokens, d)
        self.rows = kv_heads * len(self.positions)
        self.state_bytes = _SLOT_BYTES * len(self.positions)
        return o

    def prefill(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """As :meth:`sequence`; a prompt that only votes is computed in blocks of queries.

        Nothing is counted in ``traffic`` then.
        """
        n = q.shape[1]
        if self._core is not None or self._tokens or n > self._prompt:
            super().prefill(q, k, v)
            return
        q, k, v = floats(q, k, v)
        counts = np.zeros(n, np.int64)
        for first, p in probabilities(q, k, self._scale):
            voters = slice(max(self._reserved - first, 0), None)
            s = p.mean(axis=0)[voters]
            counts[: s.shape[1]] += _votes_of(s, first + voters.start, self._a, self._b)
        self._cache.append(k, v)
        self._tokens, self.positions = n, np.arange(n)
        self.votes = np.minimum(counts, MAX_VOTES).astype(np.uint16)
        self.rows, self.state_bytes = len(k) * n, _SLOT_BYTES * n

    def _step_float(self, q, k, v, position: int) -> tuple[np.ndarray, int]:
        """o, and the number of slots attended to."""
        q, k, v = floats(q, k, v)
        self._join(k, v, position)
        slots = len(self.positions)
        scores = softmax(attention_scores(q, self._cache.k[:, :slots], self._scale))
        o = weighted_sum(scores, self._cache.v[:, :slots])
        if position >= self._reserved:
            votes, _ = cast_votes(scores.mean(axis=0), self.positions, self._a, self._b)
            self.votes = count_votes(self.votes, votes)
        if position >= self._prompt:
            while len(self.positions) > self._capacity:
                self._evict(slot_to_evict(self.votes, self.positions, self._protected))
        return o, slots

    def _step_core(self, core: VedaCore, q, k, v, position: int) -> tuple[np.ndarray, int]:
        """The same, by the core's bit-exact model."""
        d = k.shape[1]
        scale = 1 / np.sqrt(d) if self._scale is None else self._scale
        padding = (1 << (d - 1).bit_length()) - d
        q, k, v = (
            np.pad(x, ((0, 0), (0, padding))).astype(np.float16)
            for x in (np.asarray(q, np.float64) * scale, np.asarray(k), np.asarray(v))
        )
        result = core.step(
            q,
            k,
            v,
            a=weight(self._a),
            b=weight(self._b),
            vote_cast=position >= self._reserved,
            evict=position >= self._prompt,
            target=self._capacity,
            protected=self._protected,
        )
        self.evicted += [report.position for report in result.reports if report.evict]
        engine = core.contexts[0].engine
        self.positions, self.votes = engine.positions, engine.counts
        return result.o[:, :d].astype(np.float32), result.p.shape[1]

    def _join(self, k: np.ndarray, v: np.ndarray, position: int) -> None:
        """Put the new token into the slot after the last, where the cache may hold an old row."""
        slot = len(self.positions)
        if slot < len(self._cache):
            self._cache.k[:, slot], self._cache.v[:, slot] = k, v
        else:
            self._cache.append(k, v)
        self.positions = np.append(self.positions, position)
        self.votes = np.append(self.votes, np.uint16(0))

    def _evict(self, slot: int) -> None:
        """Drop this slot's token; the one in the last slot takes its place."""
        self.evicted.append(int(self.positions[slot]))
        last = len(self.positions) - 1
        for rows in (self._cache.k, self._cache.v):
            rows[:, slot] = rows[:, last]
        self.positions[slot], self.votes[slot] = self.positions[last], self.votes[last]
        self.positions, self.votes = self.positions[:last], self.votes[:last]
