"""Attention of one layer while decoding, one token at a time.

Every algorithm in this package implements ``DecodeAttention``, so the language model, the traces
and the reports treat them alike. Heads are grouped: query head ``h`` reads kv head ``h // group``,
``group`` being query heads divided by kv heads.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

ELEMENT_BYTES = 2
"""Bytes of one element of a cached K or V row; the cache of the modelled systems is FP16."""

_QUERY_BLOCK = 256


@dataclass
class Traffic:
    """Reads of the K and V caches by one layer so far, summed over kv heads.

    A row is one token's key or value in one kv head. Token ``t`` (from 0) has ``t + 1`` rows in
    view, its own included, and dense attention reads them all, once per kv head. Algorithms that
    read parts of rows count the bytes they read.
    """

    k_rows: int = 0
    v_rows: int = 0
    k_bytes: int = 0
    v_bytes: int = 0
    dense_rows: int = 0
    """Rows of K that dense attention would have read, and as many of V."""
    dense_bytes: int = 0
    """Bytes of K and V together that dense attention would have read."""

    @property
    def bytes(self) -> int:
        """Bytes of K and V read."""
        return self.k_bytes + self.v_bytes

    @property
    def ratio(self) -> float:
        """Bytes read as a share of dense attention's; 1.0 before the first read."""
        return self.bytes / self.dense_bytes if self.dense_bytes else 1.0

    def add(self, other: "Traffic") -> None:
        """Count what another counter has counted."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def read(self, k_rows: int, v_rows: int, d: int) -> None:
        """Count whole rows of ``d`` elements."""
        self.k_rows += k_rows
        self.v_rows += v_rows
        self.k_bytes += k_rows * d * ELEMENT_BYTES
        self.v_bytes += v_rows * d * ELEMENT_BYTES

    def dense(self, rows: int, d: int) -> None:
        """Count what dense attention would have read: ``rows`` of K and ``rows`` of V."""
        self.dense_rows += rows
        self.dense_bytes += 2 * rows * d * ELEMENT_BYTES


class DecodeAttention(ABC):
    """Attention of one layer; an instance keeps that layer's cache and is used for one sequence.

    ``traffic`` counts cache reads; ``evicted`` lists the positions that left the cache, in the
    order in which they left (for policies that evict per head, a position appears when the last
    head has dropped it).
    """

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.evicted: list[int] = []

    @abstractmethod
    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Take the next token's row and attend to everything kept so far, itself included.

        ``q`` is [query heads, d], ``k`` and ``v`` [kv heads, d], positions already encoded; the
        result is [query heads, d].
        """

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """``step`` over a run of tokens: [query heads, token, d], [kv heads, token, d] twice.

        Returns [query heads, token, d].
        """
        rows = [self.step(q[:, t], k[:, t], v[:, t]) for t in range(q.shape[1])]
        return np.stack(rows, axis=1)


class DenseAttention(DecodeAttention):
    """Softmax attention over every token so far, in float32, or in float64 when given that.

    ``scale`` multiplies the scores before the softmax; 1 / sqrt(d) when not given.
    """

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self._scale = scale
        self._k = self._v = None
        self._length = 0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self.sequence(q[:, None], k[:, None], v[:, None])[:, 0]

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """All tokens at once as matrix products, equal to stepping; more tokens may follow."""
        heads, tokens, d = q.shape
        kv_heads = k.shape[0]
        if heads % kv_heads:
            raise ValueError(f"{heads} query heads cannot share {kv_heads} kv heads evenly")
        dtype = np.result_type(q, k, v, np.float32)
        start = self._length
        self._append(k.astype(dtype), v.astype(dtype))
        scale = dtype.type(1 / np.sqrt(d) if self._scale is None else self._scale)
        group = heads // kv_heads
        q = q.astype(dtype).reshape(kv_heads, group, tokens, d) * scale
        o = np.empty_like(q)
        # Blocks of queries bound the memory for scores and skip most keys of the future.
        for first in range(0, tokens, _QUERY_BLOCK):
            last = min(first + _QUERY_BLOCK, tokens)
            end = start + last
            future = np.arange(end) > np.arange(start + first, end)[:, None]
            for kv in range(kv_heads):
                scores = q[kv, :, first:last] @ self._k[kv, :end].T
                scores[:, future] = -np.inf
                scores -= scores.max(axis=-1, keepdims=True)
                np.exp(scores, out=scores)
                total = scores.sum(axis=-1, keepdims=True)
                o[kv, :, first:last] = scores @ self._v[kv, :end] / total
        rows = kv_heads * (tokens * start + tokens * (tokens + 1) // 2)
        self.traffic.read(rows, rows, d)
        self.traffic.dense(rows, d)
        return o.reshape(heads, tokens, d)

    def _append(self, k: np.ndarray, v: np.ndarray) -> None:
        """Add rows to the cache, doubling its room when full so that stepping stays cheap."""
        kv_heads, tokens, d = k.shape
        needed = self._length + tokens
        if self._k is None or needed > self._k.shape[1]:
            room = needed if self._k is None else max(needed, 2 * self._k.shape[1])
            for name, new in (("_k", k), ("_v", v)):
                grown = np.empty((kv_heads, room, d), new.dtype)
                if self._length:
                    grown[:, : self._length] = getattr(self, name)[:, : self._length]
                setattr(self, name, grown)
        self._k[:, self._length : needed] = k
        self._v[:, self._length : needed] = v
        self._length = needed
