"""H2O, heavy-hitter oracle: keeps the tokens with the most attention so far, and the newest.

Source: Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
Models", arXiv:2306.14048. The paper evicts per head; with grouped queries the rows belong to kv
heads, so the scores of a group are summed and eviction is per kv head. VEDA's voting evicts a token
from all heads at once; H2O per layer compares with that.
"""

import numpy as np

from golden.algorithms.attention import (
    DecodeAttention,
    attention_scores,
    floats,
    grouped,
    softmax,
    weighted_sum,
)
from golden.algorithms.cache import KVCache
from golden.algorithms.prompt import probabilities

_SLOT_BYTES = 4 + 4
"""A slot's accumulated score (float32) and its token's position."""


class H2OAttention(DecodeAttention):
    """Attention over at most ``capacity`` earlier tokens and the new one, per kv head.

    Half of ``capacity``, rounded up, is for the newest tokens, the new one included. When more than
    ``capacity`` rows are held after a step, the other row with the lowest score is evicted, the
    oldest token on ties. A score is the sum of the row's attention probabilities since it was
    added, over all query heads of the group, its own token's included.
    ``per`` is "head", where each kv head evicts for itself, or "layer", where scores are summed
    over all heads and the token with the lowest leaves all of them.
    ``prompt_by`` is "sum", where a dense prompt (:meth:`prefill`) is evicted at its end by the sums
    of all its queries, as the authors' program does, or "step", where it is evicted token by token.
    ``scale`` multiplies the scores before the softmax; 1 / sqrt(d) when not given.
    """

    def __init__(
        self,
        capacity: int,
        scale: float | None = None,
        per: str = "head",
        prompt_by: str = "sum",
    ) -> None:
        super().__init__()
        if prompt_by not in ("sum", "step"):
            raise ValueError(f"prompt_by must be sum or step, not {prompt_by}")
        self._sums_prompt = prompt_by == "sum"
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        if per not in ("head", "layer"):
            raise ValueError(f"per must be head or layer, not {per}")
        self._per_layer = per == "layer"
        self._capacity, self._newest, self._scale = capacity, (capacity + 1) // 2, scale
        self._cache = KVCache()
        self._tokens = 0
        self._positions = np.empty((0, 0), np.int64)  # [kv heads, slots]
        self._accumulated = np.empty((0, 0), np.float32)  # [kv heads, slots]

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        q, k, v = floats(q, k, v)
        kv_heads, d = k.shape
        self._join(k, v)
        scores = softmax(attention_scores(q, self._cache.k, self._scale))
        o = weighted_sum(scores, self._cache.v)
        self._accumulated += grouped(scores, kv_heads).sum(axis=1)
        in_view = kv_heads * len(self._cache)
        if self._tokens > self._capacity:
            self._evict()
        self.traffic.read(in_view, in_view, d)
        self.traffic.dense(kv_heads * self._tokens, d)
        self.rows = kv_heads * min(self._tokens, self._capacity)
        self.state_bytes = _SLOT_BYTES * self.rows
        return o

    def prefill(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """A dense prompt; nothing is counted in ``traffic`` where its sums decide."""
        if self._tokens or not self._sums_prompt:
            super().prefill(q, k, v)
            return
        q, k, v = floats(q, k, v)
        (kv_heads, n, _), kept = k.shape, min(k.shape[1], self._capacity)
        sums = np.zeros((kv_heads, n), np.float64)
        for _, p in probabilities(q, k, self._scale):
            sums[:, : p.shape[2]] += grouped(p, kv_heads).sum(axis=(1, 2), dtype=np.float64)
        ranks = sums.sum(axis=0, keepdims=True).repeat(kv_heads, 0) if self._per_layer else sums
        ranks = np.where(np.arange(n) < n - self._newest, ranks, np.inf)
        # The lowest go first, the oldest of equals.
        order = np.argsort(ranks, axis=1, kind="stable")
        slots = np.sort(order[:, n - kept :], axis=1)
        if kept < n:
            held = np.zeros((kv_heads, n), bool)
            np.put_along_axis(held, slots, True, axis=1)
            self.evicted += np.flatnonzero(~held.any(axis=0)).tolist()
            # One more, which the next token's row will take.
            slots = np.concatenate([slots, slots[:, -1:]], axis=1)
        heads = np.arange(kv_heads)[:, None]
        self._cache.append(k[heads, slots], v[heads, slots])
        self._tokens, self._positions = n, slots
        self._accumulated = sums[heads, slots].astype(k.dtype)
        self.rows = kv_heads * kept
        self.state_bytes = _SLOT_BYTES * self.rows

    def _join(self, k: np.ndarray, v: np.ndarray) -> None:
        """Put the new token into the last slot; there is one slot more than the capacity."""
        position = self._tokens
        self._tokens += 1
        if position <= self._capacity:
            self._cache.append(k, v)
            new = np.full((len(k), 1), position)
            zero = np.zeros((len(k), 1), k.dtype)
            self._positions = np.hstack([self._positions.reshape(len(k), -1), new])
            self._accumulated = np.hstack([self._accumulated.reshape(len(k), -1), zero])
        else:
            self._cache.k[:, -1], self._cache.v[:, -1] = k, v
            self._positions[:, -1], self._accumulated[:, -1] = position, 0

    def _evict(self) -> None:
        """Each kv head drops a token and puts the new one into its slot."""
        old = self._positions < self._tokens - self._newest
        accumulated = self._accumulated
        if self._per_layer:  # all heads hold the same tokens in the same slots
            accumulated = accumulated.sum(axis=0, keepdims=True)
        scores = np.where(old, accumulated, np.inf)
        least = scores == scores.min(axis=1, keepdims=True)
        slot = np.where(least, self._positions, self._tokens).argmin(axis=1)
        head = np.arange(len(slot))
        dropped = self._positions[head, slot]
        for rows in (self._cache.k, self._cache.v, self._positions, self._accumulated):
            rows[head, slot] = rows[:, -1]
        held = self._positions[:, :-1]
        self.evicted += [p for p in sorted(set(dropped.tolist())) if not (held == p).any()]
