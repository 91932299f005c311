"""Attention of one layer while decoding, one token at a time.

Every algorithm in this package implements ``DecodeAttention``, so the language model, the traces
and the reports treat them alike. Heads are grouped: query head ``h`` reads kv head ``h // group``,
``group`` being query heads divided by kv heads.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from golden.algorithms.cache import KVCache

ELEMENT_BYTES = 2
"""Bytes of one element of a cached K or V row; the cache of the modelled systems is FP16."""

_QUERY_BLOCK = 256

Rope = Callable[[np.ndarray, int], np.ndarray]
"""``rope(k, n)``: keys [kv heads, rows, d], their positions encoded, as if n positions later."""


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
    """Rows of K that dense attention would have read; the number of V rows is the same."""
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
        """Add another counter's counts."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def since(self, earlier: "Traffic") -> "Traffic":
        """The counts since ``earlier``, a copy made before."""
        names = self.__dataclass_fields__
        return Traffic(**{name: getattr(self, name) - getattr(earlier, name) for name in names})

    def times(self, number: int) -> "Traffic":
        """The counts of `number` readers who each read the same."""
        names = self.__dataclass_fields__
        return Traffic(**{name: number * getattr(self, name) for name in names})

    def read(self, k_rows: int, v_rows: int, d: int) -> None:
        """Count whole rows of ``d`` elements."""
        self.read_codes(k_rows, v_rows, d * ELEMENT_BYTES)

    def read_codes(self, k_rows: int, v_rows: int, row_bytes: int) -> None:
        """Count whole rows that are stored in that many bytes."""
        self.k_rows += k_rows
        self.v_rows += v_rows
        self.k_bytes += k_rows * row_bytes
        self.v_bytes += v_rows * row_bytes

    def dense(self, rows: int, d: int) -> None:
        """Count dense attention's reads: ``rows`` of K and ``rows`` of V."""
        self.dense_rows += rows
        self.dense_bytes += 2 * rows * d * ELEMENT_BYTES


class SequenceAttention(Protocol):
    """Attention that takes a run of tokens at once, see :meth:`DecodeAttention.sequence`."""

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray: ...


class DecodeAttention(ABC):
    """Attention of one layer; an instance keeps that layer's cache and is used for one sequence.

    ``traffic`` counts cache reads, a row once for all query heads that share it. ``alone`` counts
    what each query head needs for itself, summed over query heads, as if none shared its rows, with
    a dense attention that reads every row once per query head; it is None where the query heads
    of a kv head need the same rows, so that sharing changes no ratio. ``evicted`` lists the
    positions evicted from the cache, in order of eviction (for policies that evict per head, a
    position is listed when the last head has dropped it). ``rows`` is the number of K rows held
    after the latest step, summed over kv heads, and also of V rows; ``state_bytes`` is the rest of
    the algorithm's state. ``row_bits`` are the bits of an element in the dense attention that the
    algorithm's paper compares with.

    A policy over a short sequence:

    >>> attention = DenseAttention()
    >>> q, k, v = np.ones((4, 8)), np.ones((2, 8)), np.ones((2, 8))  # 4 query heads, 2 kv heads
    >>> attention.step(q, k, v).shape, attention.traffic.k_rows
    ((4, 8), 2)

    """

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.alone: Traffic | None = None
        self.evicted: list[int] = []
        self.rows = 0
        self.state_bytes = 0
        self.row_bits = 8 * ELEMENT_BYTES

    @classmethod
    def for_layers(cls, parameters: Sequence[Mapping[str, Any]]) -> list[Self]:
        """Attentions of a model's layers, for one sequence, with each layer's ``parameters``.

        Algorithms whose layers share state override this. The layers of such an algorithm take the
        same tokens in the same calls, each layer after the one before it.
        """
        return [cls(**layer) for layer in parameters]

    @abstractmethod
    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Append the next token's row and attend to all rows kept, the new one included.

        ``q`` is [query heads, d], ``k`` and ``v`` [kv heads, d], positions already encoded; the
        result is [query heads, d].
        """

    def figures(self) -> dict[str, float]:
        """The algorithm's own figures so far, by name; empty by default."""
        return {}

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """``step`` over a run of tokens: [query heads, token, d], [kv heads, token, d] twice.

        Returns [query heads, token, d].
        """
        rows = [self.step(q[:, t], k[:, t], v[:, t]) for t in range(q.shape[1])]
        return np.stack(rows, axis=1)

    def prefill(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Take tokens whose outputs nobody needs; shapes as in :meth:`sequence`.

        The state afterwards is the one after ``sequence``; an algorithm whose state does not depend
        on the queries overrides this, which saves the time. Whether reads are counted is open.
        """
        self.sequence(q, k, v)


def floats(*arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays in float32, or all in float64 when one of them is."""
    dtype = np.result_type(*arrays, np.float32)
    return [array.astype(dtype, copy=False) for array in arrays]


def grouped(q: np.ndarray, kv_heads: int) -> np.ndarray:
    """Query heads by the kv head that they read: [heads, ...] to [kv heads, group, ...]."""
    heads = q.shape[0]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} kv heads evenly")
    return q.reshape(kv_heads, heads // kv_heads, *q.shape[1:])


def attention_scores(q: np.ndarray, k: np.ndarray, scale: float | None = None) -> np.ndarray:
    """Scaled dot products of ``q`` [heads, d] with the keys of its kv head, [kv heads, rows, d].

    ``scale`` is 1 / sqrt(d) when not given. Returns [heads, rows].
    """
    heads, d = q.shape
    scale = q.dtype.type(1 / np.sqrt(d) if scale is None else scale)
    return (grouped(q * scale, k.shape[0]) @ k.transpose(0, 2, 1)).reshape(heads, -1)


def softmax(scores: np.ndarray) -> np.ndarray:
    """exp(s - max s) / sum over the last axis; -inf gives 0."""
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def weighted_sum(p: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Values [kv heads, rows, d] weighted by probabilities [heads, rows]; [heads, d]."""
    return (grouped(p, v.shape[0]) @ v).reshape(p.shape[0], -1)


class DenseAttention(DecodeAttention):
    """Softmax attention over every token so far, in float32, or in float64 when given that.

    ``scale`` multiplies the scores before the softmax; 1 / sqrt(d) when not given.
    """

    _window: int | None = None

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self._scale = scale
        self._cache = KVCache()

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self.sequence(q[:, None], k[:, None], v[:, None])[:, 0]

    def prefill(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        _, k, v = floats(q, k, v)
        self._cache.append(k, v)
        self.rows = len(k) * self._seen(len(self._cache))

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """All tokens at once as matrix products, equal to stepping; more tokens may follow."""
        heads, tokens, d = q.shape
        kv_heads = k.shape[0]
        q, k, v = floats(q, k, v)
        start = len(self._cache)
        self._cache.append(k, v)
        scale = q.dtype.type(1 / np.sqrt(d) if self._scale is None else self._scale)
        q = grouped(q, kv_heads) * scale
        o = np.empty_like(q)
        # Blocks of queries limit the memory for scores and skip most keys of later tokens.
        for first in range(0, tokens, _QUERY_BLOCK):
            last = min(first + _QUERY_BLOCK, tokens)
            end = start + last
            begin = start + first + 1 - self._seen(start + first + 1)
            rows, queries = np.arange(begin, end), np.arange(start + first, end)[:, None]
            unseen = rows > queries
            if self._window is not None:
                unseen |= rows <= queries - self._window
            for kv in range(kv_heads):
                scores = q[kv, :, first:last] @ self._cache.k[kv, begin:end].T
                scores[:, unseen] = -np.inf
                scores -= scores.max(axis=-1, keepdims=True)
                np.exp(scores, out=scores)
                total = scores.sum(axis=-1, keepdims=True)
                o[kv, :, first:last] = scores @ self._cache.v[kv, begin:end] / total
        read = kv_heads * sum(map(self._seen, range(start + 1, start + tokens + 1)))
        self.traffic.read(read, read, d)
        self.traffic.dense(read, d)
        self.rows = kv_heads * self._seen(len(self._cache))
        return o.reshape(heads, tokens, d)

    def _seen(self, tokens: int) -> int:
        """Number of tokens, of the first `tokens`, that the last of these sees."""
        return tokens if self._window is None else min(tokens, self._window)


class WindowAttention(DenseAttention):
    """Softmax attention over the last ``window`` tokens, a token's own included.

    The local layers of a model have it, such as Gemma 3's. Rows before the window are neither read
    nor held, nor would dense attention of such a layer read them.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self._window = window
