"""Attention that finds its rows by codes of few bits, and reads those finer: the sixth design.

It puts ideas of the five papers, and others, together: a threshold on probabilities decides which
rows are read on (ToPick), on estimates in place of bounds; estimates are sums of products of
queries and codebook entries (KLLM); rotated keys (UniCAIM's converter, QuaRot); a step's heads of a
group decide together. Search by low-bit keys is known from SparQ (Ribar et al., arXiv:2312.04985),
Loki (Singhania et al., arXiv:2406.02542) and Double Sparsity.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from golden.algorithms.attention import ELEMENT_BYTES, DecodeAttention, floats, grouped, softmax
from golden.algorithms.cache import KVCache
from golden.algorithms.tsuru.gaussian_levels import MOST_BITS
from golden.algorithms.tsuru.row_codes import (
    LEVELS,
    MOST_CHANNEL_BITS,
    KeyConstants,
    channel_rows,
    rotated_bytes,
    rotated_rows,
)

_QUERY_BLOCK = 128
SEARCHES = ("rotated", "channels")


class TsuruAttention(DecodeAttention):
    """Reads the rows whose estimated probability is above a threshold for any head of a group.

    Each key has two codes. All search codes are read, and the softmax of the scores that they give
    is the estimate. Rows above the threshold for any query head of the group are chosen, and their
    finer codes are read for all of its heads. The other rows count with their estimated probability
    times the mean of all values. The newest row, and rows whose search code saturates,
    are chosen always; the first ``sinks`` rows are read in FP16.

    threshold
        The least estimated probability of a chosen row; 0 chooses every row.
    search
        ``rotated``: codes of a rotated key, and a scale a row. ``channels``: more bits for channels
        where they help scores most, with constant scales.
    search_bits
        Bits an element, for ``channels`` on average.
    key_bits, value_bits
        Bits of the finer codes, rotated, with a scale a row.
    levels
        Of rotated codes: ``normal``, which lose least of a normal distribution, or ``float``, the
        small floats that hardware stores (search codes of 2 bits, finer ones of 4 to 8).
    sinks
        Rows at the start that are exact.
    rest
        Whether rows that are not chosen count, by their estimates; else they are left out.
    smooth
        Whether channels of keys and queries are balanced, by constants of the model: keys times the
        root of (deviation of the queries over the keys'), queries over it, so that scores stay and
        rotated codes, whose error is the same in all channels, lose least in them (as SmoothQuant,
        Xiao et al., arXiv:2211.10438, does for products).
    scale
        Multiplies the scores before the softmax; 1 / sqrt(d) when not given.
    constants
        What the model's keys are like, by layer.
    layer
        The layer's number among these.

    Traffic is in bytes, rows shared by a group; the mean of the values is on the chip. ``k_rows``
    counts search codes, as many as dense attention's rows, and ``v_rows`` the chosen rows.
    """

    def __init__(
        self,
        threshold: float = 3e-4,
        search: str = "channels",
        search_bits: int = 1,
        key_bits: int = 7,
        value_bits: int = 6,
        sinks: int = 1,
        rest: bool = True,
        scale: float | None = None,
        constants: Sequence[KeyConstants] = (),
        layer: int = 0,
        levels: str = "normal",
        smooth: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold must be at least 0 and below 1, not {threshold}")
        if search not in SEARCHES:
            raise ValueError(f"search must be {' or '.join(SEARCHES)}, not {search}")
        most = MOST_CHANNEL_BITS if search == "channels" else MOST_BITS
        for name, bits, top in (
            ("search_bits", search_bits, most),
            ("key_bits", key_bits, MOST_BITS),
            ("value_bits", value_bits, MOST_BITS),
        ):
            if not 1 <= bits <= top:
                raise ValueError(f"{name} must be between 1 and {top}, not {bits}")
        if levels not in LEVELS:
            raise ValueError(f"levels must be {' or '.join(LEVELS)}, not {levels}")
        for bits in (key_bits, value_bits, *([search_bits] if search == "rotated" else [])):
            LEVELS[levels](bits)  # refuses bits that these have not
        self._levels = levels
        if sinks < 0:
            raise ValueError(f"sinks must be at least 0, not {sinks}")
        self._threshold, self._sinks, self._rest, self._scale = threshold, sinks, rest, scale
        self._by_channel, self._search_bits = search == "channels", search_bits
        self._key_bits, self._value_bits = key_bits, value_bits
        self._constants = constants[layer] if constants else None
        self._balance = None if self._constants is None or not smooth else self._constants.balance()
        self._widths = None if self._constants is None else self._constants.widths(search_bits)
        self._first = KVCache()  # the sinks, as they are
        self._search = KVCache()  # and in V's place 1 where a row is always chosen
        self._fine = KVCache()
        self._value_sum: np.ndarray | float = 0.0  # of the rows after the sinks, [kv head, d]
        self._queries = self._in_view = self._chosen = self._saturated = 0
        self._rest_share = 0.0

    @classmethod
    def for_layers(cls, parameters: Sequence[Mapping[str, Any]]) -> list[Self]:
        return [cls(**p, layer=layer) for layer, p in enumerate(parameters)]

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self.sequence(q[:, None], k[:, None], v[:, None])[:, 0]

    def prefill(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """As :meth:`sequence`; the cache does not depend on the queries."""
        self._store(*floats(k, v))

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Blocks of queries at once, equal to stepping; more tokens may follow."""
        q, k, v = floats(q, k, v)
        by_kv = grouped(q, len(k))
        by_kv = by_kv * q.dtype.type(
            1 / np.sqrt(q.shape[2]) if self._scale is None else self._scale
        )
        start = len(self._fine)
        means = self._store(k, v)
        o = np.empty_like(by_kv)
        for first in range(0, q.shape[1], _QUERY_BLOCK):
            block = slice(first, min(first + _QUERY_BLOCK, q.shape[1]))
            for kv, mean in enumerate(means):
                some = by_kv[kv][:, block]
                o[kv][:, block] = self._attend(kv, some, mean[block], start + first)
        return o.reshape(q.shape)

    def figures(self) -> dict[str, float]:
        """Rows in view and chosen, over queries and kv heads, rows stored whose search code
        saturates, and the share of probability, by the estimates, of rows that are not chosen."""
        return {
            "rows in view": float(self._in_view),
            "rows chosen": float(self._chosen),
            "rows saturated": float(self._saturated),
            "probability of the rest": self._rest_share / max(self._queries, 1),
        }

    def _store(self, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Codes of a run of rows; returns the mean of V after each, [kv head, token, d]."""
        if self._constants is None or self._widths is None:
            raise ValueError("it needs a model, to know the means of its keys")
        start, tokens = len(self._fine), k.shape[1]
        sinks = min(max(self._sinks - start, 0), tokens)
        self._first.append(k[:, :sinks], v[:, :sinks])
        centred = k - self._constants.mean[:, None].astype(k.dtype)
        deviation = self._constants.deviation
        if self._balance is not None:
            centred *= self._balance[:, None].astype(k.dtype)
            deviation = deviation * self._balance
        always = np.zeros(k.shape[:2], bool)
        if self._by_channel:
            codes, always = channel_rows(centred, self._widths, deviation)
        else:
            codes = rotated_rows(centred, self._search_bits, self._levels)
        self._saturated += int(always.sum())
        self._search.append(codes, always[..., None].astype(k.dtype))
        self._fine.append(
            rotated_rows(centred, self._key_bits, self._levels),
            rotated_rows(v, self._value_bits, self._levels),
        )
        counted = v.astype(np.float64)
        counted[:, :sinks] = 0
        sums = self._value_sum + counted.cumsum(axis=1)
        self._value_sum = sums[:, -1:]
        number = np.maximum(np.arange(start, start + tokens) + 1 - self._sinks, 1)
        self.rows = len(k) * len(self._fine)
        self.state_bytes = 4 * v.shape[0] * v.shape[2]
        return (sums / number[:, None]).astype(v.dtype)

    def _attend(self, kv: int, q: np.ndarray, mean: np.ndarray, start: int) -> np.ndarray:
        """Attention of a kv head's q [group, query, d], scaled, the first at position ``start``.

        mean
            Of V after each query's row, [query, d].
        """
        assert self._constants is not None
        queries, d = q.shape[1:]
        end = start + queries
        place, newest = np.arange(end), np.arange(start, end)[:, None]
        unseen, sinks = place > newest, min(self._sinks, end)
        # Keys are less their mean, so exact scores are too.
        offset = q @ self._constants.mean[kv].astype(q.dtype)
        exact = q @ self._first.k[kv, :sinks].T - offset[..., None]
        if self._balance is not None:
            q = q / self._balance[kv].astype(q.dtype)
        estimate, fine = (q @ cache.k[kv, :end].T for cache in (self._search, self._fine))
        for scores in (estimate, fine):
            scores[..., :sinks] = exact
            scores[..., unseen] = -np.inf
        always = (self._search.v[kv, :end, 0] > 0) | (place < sinks) | (place == newest)
        chosen = (softmax(estimate) > self._threshold).any(axis=0) | always
        chosen &= ~unseen
        values = self._fine.v[kv, :end].copy()
        values[:sinks] = self._first.v[kv, :sinks]
        if self._rest:
            p = softmax(np.where(chosen, fine, estimate))
            share = np.where(chosen, 0, p).sum(axis=-1)
            o = (p * chosen) @ values + share[..., None] * mean
            self._rest_share += float(share.mean(axis=0).sum())
        else:
            o = softmax(np.where(chosen, fine, -np.inf)) @ values
        self._queries += queries
        self._count(chosen[:, sinks:], np.minimum(newest + 1, sinks), newest + 1, d)
        return o

    def _count(self, chosen: np.ndarray, sinks: np.ndarray, in_view: np.ndarray, d: int) -> None:
        """Reads of a block: which rows after the sinks are chosen, and how many sinks and rows
        each query sees."""
        rows, read, exact = int(in_view.sum()), int(chosen.sum()), int(sinks.sum())
        search_bytes = rotated_bytes(d, self._search_bits)
        if self._by_channel:
            search_bytes = -(-d * self._search_bits // 8)
        self._in_view += rows
        self._chosen += read + exact
        traffic = self.traffic
        traffic.k_rows += rows
        traffic.v_rows += read + exact
        traffic.k_bytes += (rows - exact) * search_bytes + exact * d * ELEMENT_BYTES
        traffic.k_bytes += read * rotated_bytes(d, self._key_bits)
        traffic.v_bytes += read * rotated_bytes(d, self._value_bits) + exact * d * ELEMENT_BYTES
        self.traffic.dense(rows, d)
