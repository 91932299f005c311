"""Rows that a step of one query head moves over a memory port of one row a cycle.

A row is d FP16 numbers, 16 d bits. Everything a head needs is kept in such rows: K, V, codes or
centres' tables, G, counters and the caches. Dense attention reads 2 n rows.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from golden.algorithms.lad.attention import LocalityAwareAttention
from golden.algorithms.lad.identification import ByCentres

COUNTER_BITS = 11
"""A mode's own counter, with the mode and an active bit, fills a word of G."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of one head's step, averaged over heads and steps.

    n
        Positions, the new one included.
    active_share, large_share
        |J| / n and |M| / n of a head.
    g, counters, caches
        Modes with their counters; the active positions' other counters, one read for those that
        share a row; A to F in FP32.
    identification
        Codes and units of the positions before the window; or keys of the centres, norm, dnorm
        and cid.
    exact
        Keys of M and of the window.
    active
        K and V of J, 2 |J|. A key of M or of the window in J is read once more.
    written
        G, counters and caches, written back.
    """

    n: int
    active_share: float
    large_share: float
    g: float
    identification: float
    exact: float
    active: float
    counters: float
    caches: float
    written: float

    @property
    def read(self) -> float:
        """All rows read."""
        parts = self.g, self.identification, self.exact, self.active, self.counters, self.caches
        return sum(parts)

    @property
    def moved(self) -> float:
        """All rows read and written."""
        return self.read + self.written


def rows_of_step(
    active: np.ndarray,
    *,
    large: float,
    centres: float | None,
    d: int,
    intervals: int,
    window: int,
    code_bits: int,
) -> Rows:
    """Rows of a step with J = ``active``, bool [query heads, n], averaged over the heads.

    ``large`` is |M| of a head on average, ``centres`` |C| of a kv head before the new key, None
    when positions are identified by codes of ``code_bits``.

    One head of d = 8, n = 20, window 4, with two active positions besides the window. Codes of 6
    bits: 16 old positions take 6 rows of codes and 2 of units:

    >>> active = np.arange(20)[None] >= 14
    >>> sizes = dict(d=8, intervals=8, window=4, code_bits=6)
    >>> rows = rows_of_step(active, large=1, centres=None, **sizes)
    >>> rows.g, rows.identification, rows.exact, rows.active, rows.counters, rows.caches
    (3, 8, 5, 12.0, 5.0, 23)
    """
    n = active.shape[1]
    old = max(n - window, 0)
    if centres is None:
        identification = math.ceil(old * code_bits / 16) + math.ceil(old / d)
    else:
        identification = centres + 3 * math.ceil((n - 1) / d)
    # A position's counters are padded to a power of two bits; the new position has none to read.
    word = 1 << (intervals * COUNTER_BITS - 1).bit_length()
    in_row = max(16 * d // word, 1)
    held = np.zeros((len(active), in_row * math.ceil(n / in_row)), bool)
    held[:, : n - 1] = active[:, : n - 1]
    counters = held.reshape(len(active), -1, in_row).any(axis=2).sum(axis=1).mean()
    size = float(active.sum(axis=1).mean())
    caches = 2 * d + 7
    return Rows(
        n=n,
        active_share=size / n,
        large_share=large / n,
        g=math.ceil((n - 1) / d),
        identification=identification,
        exact=large + n - old,
        active=2 * size,
        counters=float(counters),
        caches=caches,
        written=math.ceil(n / d) + float(counters) + caches,
    )


def measure_rows(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    lengths: Sequence[int],
    last: int = 32,
    identification: str = "codes",
    code_bits: int = 6,
    window: int = 16,
    **options,
) -> list[Rows]:
    """Run one layer to each of the ``lengths`` and average the rows of its ``last`` steps.

    The tokens before these steps are a prompt with dense attention.

    Arrays as in ``measure_drift``; ``options`` are further arguments of ``LocalityAwareAttention``.
    ``identification`` is "codes" or "centres".
    """
    found = []
    for length in lengths:
        attention = LocalityAwareAttention(
            identification=identification,
            code_bits=code_bits,
            window=window,
            counter_bits=COUNTER_BITS,
            **options,
        )
        sizes = {"d": q.shape[2], "intervals": len(attention.exp), "window": window}
        rows, first = [], length - last
        attention.prefill(q[:, :first], k[:, :first], v[:, :first])
        for t in range(first, length):
            before = attention.statistics.large
            attention.step(q[:, t], k[:, t], v[:, t])
            large, centres = (attention.statistics.large - before) / len(q), None
            if isinstance(attention.identification, ByCentres):
                centres = float(attention.identification.centres.is_centre[:, :t].sum() / len(k))
            rows.append(
                rows_of_step(
                    attention.active, large=large, centres=centres, code_bits=code_bits, **sizes
                )
            )
        found.append(dataclasses.replace(average(rows), n=length))
    return found


def average(rows: Sequence[Rows]) -> Rows:
    """The mean of each field."""
    means = np.mean([dataclasses.astuple(row) for row in rows], axis=0)
    return Rows(*means.tolist())
