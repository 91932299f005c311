"""Probabilities of a prompt that is attended to densely, in blocks of queries."""

from collections.abc import Iterator

import numpy as np

from golden.algorithms.attention import grouped

_QUERY_BLOCK = 256


def probabilities(
    q: np.ndarray, k: np.ndarray, scale: float | None
) -> Iterator[tuple[int, np.ndarray]]:
    """For each block of queries its first one, and p [heads, queries, tokens until the last].

    ``q`` is [heads, n, d] and ``k`` [kv heads, n, d], of the first n tokens of a sequence; later
    tokens have probability 0. ``scale`` is 1 / sqrt(d) when not given.
    """
    heads, n, d = q.shape
    q = grouped(q * q.dtype.type(1 / np.sqrt(d) if scale is None else scale), len(k))
    for first in range(0, n, _QUERY_BLOCK):
        last = min(first + _QUERY_BLOCK, n)
        scores = (q[:, :, first:last] @ k[:, None, :last].transpose(0, 1, 3, 2)).reshape(
            heads, last - first, last
        )
        scores[:, np.arange(last) > np.arange(first, last)[:, None]] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        yield first, scores
