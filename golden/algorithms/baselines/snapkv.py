"""SnapKV-style selection: after the prompt, keeps the rows that its last queries attended to.

Source: Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", arXiv:2404.14469.
The paper selects per head; with grouped queries the rows belong to kv heads, so the scores of a
group are summed and selection is per kv head.
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


class SnapKVAttention(DecodeAttention):
    """Dense attention over a prompt, of which ``capacity`` rows per kv head are then kept.

    The last ``window`` tokens of the prompt observe: their probabilities for each earlier token are
    summed, over the query heads of the group too, and averaged over ``kernel`` neighbouring
    positions (0 beyond the ends). Kept are the
    ``capacity`` - ``window`` earlier tokens with the largest result, the oldest on ties, and the
    window itself. Nothing is dropped from a prompt of no more than ``capacity`` tokens. As in the
    paper, generation then only appends, so the cache grows by a row a token beyond ``capacity``.

    capacity
        Rows kept of the prompt per kv head.
    prompt
        Tokens of the prompt; the selection happens in the step of the last one.
    window
        Tokens at the end of the prompt that observe and are always kept.
    kernel
        Positions averaged over; odd.
    scale
        Multiplies the scores before the softmax; 1 / sqrt(d) when not given.
    """

    def __init__(
        self,
        capacity: int,
        prompt: int,
        window: int = 32,
        kernel: int = 7,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if prompt < 1:
            raise ValueError(f"prompt must be at least 1, not {prompt}")
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        if capacity < window:
            raise ValueError(f"capacity must be at least window, {window}, not {capacity}")
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"kernel must be odd and at least 1, not {kernel}")
        self._capacity, self._prompt, self._kernel = capacity, prompt, kernel
        self._earlier = max(prompt - window, 0)  # tokens that are observed
        self._scale = scale
        self._cache = KVCache()
        self._tokens = 0
        self._observed = np.empty((0, 0), np.float32)  # [kv heads, earlier tokens]

    def prefill(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """As :meth:`sequence`; only the prompt's last queries observe."""
        q, k, v = floats(q, k, v)
        unseen = max(min(self._earlier - self._tokens, q.shape[1]), 0)
        if unseen:
            self._cache.append(k[:, :unseen], v[:, :unseen])
            self._tokens += unseen
            self.rows = len(k) * len(self._cache)
        if unseen < q.shape[1]:
            self.sequence(q[:, unseen:], k[:, unseen:], v[:, unseen:])

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        q, k, v = floats(q, k, v)
        kv_heads, d = k.shape
        position = self._tokens
        self._tokens += 1
        self._cache.append(k, v)
        scores = softmax(attention_scores(q, self._cache.k, self._scale))
        o = weighted_sum(scores, self._cache.v)
        in_view = kv_heads * len(self._cache)
        if self._prompt > self._capacity and self._earlier <= position < self._prompt:
            self._observe(grouped(scores, kv_heads).sum(axis=1))
        self.traffic.read(in_view, in_view, d)
        self.traffic.dense(kv_heads * self._tokens, d)
        self.rows = kv_heads * len(self._cache)
        self.state_bytes = 4 * self._observed.size
        return o

    def _observe(self, scores: np.ndarray) -> None:
        """Add one observing token's probabilities [kv heads, tokens]; select after the last one."""
        seen = scores[:, : self._earlier]
        self._observed = self._observed + seen if self._observed.size else seen.copy()
        if self._tokens == self._prompt:
            self._select()
            self._observed = self._observed[:, :0]

    def _select(self) -> None:
        # More neighbours than there are tokens add zeros alone.
        side = min(self._kernel // 2, self._observed.shape[1])
        padded = np.pad(self._observed, ((0, 0), (side, side)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * side + 1, axis=1)
        pooled = windows.mean(axis=2)
        window = self._prompt - self._earlier
        # A stable sort keeps equal scores in the order of their age.
        best = np.argsort(-pooled, axis=1, kind="stable")[:, : self._capacity - window]
        kept = np.zeros((len(pooled), self._prompt), bool)
        np.put_along_axis(kept, best, True, axis=1)
        kept[:, self._earlier :] = True
        old, self._cache = self._cache, KVCache()
        shape = (len(pooled), self._capacity, -1)
        self._cache.append(old.k[kept].reshape(shape), old.v[kept].reshape(shape))
        self.evicted += np.flatnonzero(~kept.any(axis=0)).tolist()
