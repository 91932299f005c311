"""StreamingLLM: attention sinks and a window of the newest tokens.

Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453.
The paper numbers positions inside the cache, so that the distance of the sinks never exceeds the
window; here q and k arrive with their positions encoded and keep the positions of the text.
"""

import numpy as np

from golden.algorithms.attention import (
    DecodeAttention,
    attention_scores,
    floats,
    softmax,
    weighted_sum,
)
from golden.algorithms.cache import KVCache


class StreamingAttention(DecodeAttention):
    """Attention over the first ``sinks`` tokens, the newest of those after them, and the new one.

    ``capacity`` rows are kept per kv head between steps, the sinks included, and a step attends to
    these and the new token, as in the other policies of this package. When full, the oldest token
    that is not a sink is evicted and the new one takes its slot. ``scale`` multiplies the scores
    before the softmax; 1 / sqrt(d) when not given.
    """

    def __init__(self, capacity: int, sinks: int = 4, scale: float | None = None) -> None:
        super().__init__()
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        if not 0 <= sinks < capacity:
            raise ValueError(
                f"sinks must be between 0 and capacity - 1 = {capacity - 1}, not {sinks}"
            )
        self._capacity, self._sinks, self._scale = capacity, sinks, scale
        self._cache = KVCache()
        self._tokens = 0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        q, k, v = floats(q, k, v)
        kv_heads, d = k.shape
        position = self._tokens
        self._tokens += 1
        # The cache has one slot more than the capacity, for the new token.
        if position <= self._capacity:
            self._cache.append(k, v)
        else:
            self._cache.k[:, -1], self._cache.v[:, -1] = k, v
        scores = softmax(attention_scores(q, self._cache.k, self._scale))
        o = weighted_sum(scores, self._cache.v)
        if position >= self._capacity:
            window = self._capacity - self._sinks
            self.evicted.append(position - window)
            slot = self._sinks + (position - self._capacity) % window
            self._cache.k[:, slot], self._cache.v[:, slot] = k, v
        in_view = kv_heads * len(self._cache)
        self.traffic.read(in_view, in_view, d)
        self.traffic.dense(kv_heads * self._tokens, d)
        self.rows = kv_heads * min(self._tokens, self._capacity)
        return o
