"""What the core's memory holds of a kv head: words, and the rows and codes that they mean.

See :class:`hw.tsuru.core_parameters.TsuruCoreParameters` for the addresses.
"""

from typing import NamedTuple

import numpy as np

from golden.tsuru.row_encoder import encode
from golden.tsuru.row_format import NOT_FINITE, SCALE_FRACTION, SEARCH_ROWS, fine_values
from golden.tsuru.row_search import aligned

SCALE_BITS = 8
PLANES = 4
"""Search codes of a sink: as many as make eight bits."""
_PLANE_FIELD = -6
"""Field of a plane's scale less the row's highest field, of the lowest plane."""


def planes(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales uint8[PLANES] and search codes uint8[PLANES, d] that add up to the row float16[d].

    With the digits v_j = -3, -1, 1 or 3 of plane j, an element is the odd number
    sum of 4^j v_j, of 8 bits and a sign, in halves of the lowest plane's scale.
    """
    integers, top = aligned(k, 2 * PLANES + 1)
    digits = integers + (1 << 2 * PLANES) - 1 >> 1
    digit = digits >> 2 * np.arange(PLANES)[:, None] & 3  # v = 2 digit - 3
    negative = digit < 2
    codes = negative * 2 + ((digit == 0) | (digit == 3))
    field = int(top) + _PLANE_FIELD + 2 * np.arange(PLANES)
    scales = np.where(field > 0, field << SCALE_FRACTION, 0)
    if not np.isfinite(k).all():
        scales = np.full(PLANES, NOT_FINITE)
    return scales.astype(np.uint8), codes.astype(np.uint8)


class NewRow(NamedTuple):
    """A token's words of a kv head, uint16[d] each, in the order in which the host gives them.

    codes
        Fine codes and scales of K and V; of a sink the search codes and scales of its planes.
    mean
        The mean of V of the rows after the sinks, FP16.
    exact
        uint16[0 or 2, d]: K and V as they are, of a sink.
    """

    codes: np.ndarray
    mean: np.ndarray
    exact: np.ndarray

    @property
    def words(self) -> np.ndarray:
        return np.concatenate([[self.codes, self.mean], self.exact])


def packed(fields: list[tuple[np.ndarray, int]], d: int) -> np.ndarray:
    """A word uint16[d] of integers one after the other, the lowest bit first.

    fields
        Integers int[...] and the bits of each.
    """
    bits = [
        (np.asarray(values, np.int64).reshape(-1, 1) >> np.arange(width) & 1).ravel()
        for values, width in fields
    ]
    word = np.zeros(16 * d, np.uint8)
    joined = np.concatenate(bits)
    word[: len(joined)] = joined
    return np.packbits(word, bitorder="little").view("<u2").astype(np.uint16)


def search_words(scales: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The words uint16[words, d] of slots: scales uint8[slots], search codes uint8[slots, d]."""
    slots, d = codes.shape
    words = []
    for first in range(0, slots, 2 * d):
        words.append(packed([(scales[first : first + 2 * d], SCALE_BITS)], d))
        for tile in range(first, min(first + 2 * d, slots), SEARCH_ROWS):
            words.append(packed([(codes[tile : min(tile + SEARCH_ROWS, slots)], 2)], d))
    return np.array(words)


class StoredRows:
    """Rows of kv heads as the core stores them, and the words of its memory.

    words
        ``uint16[kv heads, 2 capacity, d]``.
    scales, search
        ``uint8[kv heads, slots]`` and ``uint8[kv heads, slots, d]``: of each slot of the
        search. A sink has PLANES slots, each other row one, in order of rows.
    k, v
        ``float16[kv heads, capacity, d]``: rows as they are decoded, the sinks exactly.
    mean
        ``float16[kv heads, d]``.
    """

    def __init__(self, capacity: int, kv_heads: int, d: int, sinks: int, fractions=(4, 4)):
        self._capacity, self._d, self._sinks, self._fractions = capacity, d, sinks, fractions
        self.words = np.zeros((kv_heads, 2 * capacity, d), np.uint16)
        slots = capacity + (PLANES - 1) * sinks
        self.scales = np.zeros((kv_heads, slots), np.uint8)
        self.search = np.zeros((kv_heads, slots, d), np.uint8)
        self.k, self.v = np.zeros((2, kv_heads, capacity, d), np.float16)
        self.mean = np.zeros((kv_heads, d), np.float16)
        self._sum = np.zeros((kv_heads, d))  # of V after the sinks
        # The last word of scales and of codes.
        self._last_scales = np.zeros((kv_heads, 2 * d), np.uint8)
        self._last_codes = np.zeros((kv_heads, SEARCH_ROWS, d), np.uint8)

    def write(self, row: int, k: np.ndarray, v: np.ndarray) -> list[NewRow]:
        """Store rows float16[kv heads, d] as row number `row`; returns what the host gives.

        The mean of V is rounded from a sum in float64.
        """
        if row == 0:
            self._last_scales[:], self._last_codes[:] = 0, 0
        if row <= self._sinks:
            self._sum[:] = 0
        if row >= self._sinks:
            with np.errstate(invalid="ignore"):
                self._sum[: len(v)] += v
        count = max(row + 1 - self._sinks, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            means = (self._sum[: len(v)] / count).astype(np.float16)
        return [self._write(h, row, *of) for h, of in enumerate(zip(k, v, means, strict=True))]

    def _write(self, head: int, row: int, k, v, mean) -> NewRow:
        words, sink = self.words[head], row < self._sinks
        if sink:
            scales, codes = planes(k)
            self.k[head, row], self.v[head, row] = k, v
            fields = [(codes, 2), (scales, SCALE_BITS)]
        else:
            fields = []
            key, value = (encode(x, m) for x, m in zip((k, v), self._fractions, strict=True))
            for to, of, m in zip((self.k, self.v), (key, value), self._fractions, strict=True):
                to[head, row] = fine_values(of.fine, of.scale, m)
                fields += [(of.fine, m + 3), (of.scale, SCALE_BITS)]
            # The sign and the highest bit of the exponent.
            scales, codes = key.scale[None], key.fine[None] >> self._fractions[0] + 1
        exact = np.stack([k, v])[: 2 * sink].view(np.uint16)
        new = NewRow(packed(fields, self._d), mean.view(np.uint16), exact)
        self.mean[head] = mean
        words[self._capacity + row] = exact[0] if sink else new.codes
        words[self._capacity // 2 + self._capacity // 4] = new.mean
        if sink:
            words[self._capacity // 2 + row] = exact[1]
        self._write_search(head, self.slot(row), scales, codes)
        return new

    def _write_search(self, head: int, slot: int, scales: np.ndarray, codes: np.ndarray) -> None:
        """Scales and codes of slots from number `slot` on, into the words that have the last.

        Other slots of the words are as they were when a row was last written, or 0 in new words.
        """
        d, words = self._d, self.words[head]
        block, tile = slot // (2 * d), slot // SEARCH_ROWS
        for tail, size, values, stored in (
            (self._last_scales[head], 2 * d, scales, self.scales[head]),
            (self._last_codes[head], SEARCH_ROWS, codes, self.search[head]),
        ):
            first = slot % size
            if first == 0:
                tail[:] = 0
            tail[first : first + len(values)] = values
            here = stored[slot - first :][:size]
            here[:] = tail[: len(here)]
        words[block * (1 + d // 4)] = packed([(self._last_scales[head], SCALE_BITS)], d)
        words[block + tile + 1] = packed([(self._last_codes[head], 2)], d)

    def slot(self, row: int) -> int:
        """The first slot of a row; of the next row to come, the number of slots."""
        return row + (PLANES - 1) * min(row, self._sinks)
