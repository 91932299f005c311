"""Modes and interval counters of every position (LAD, sections III-E and IV-B)."""

import numpy as np

from golden.algorithms.lad.piecewise_exp import PiecewiseExp
from golden.algorithms.lad.position_tables import Column, PositionTables


class Modes:
    """For each query head and position, how often its score fell into each interval.

    Tables over [query heads, positions]: ``mode``, and derived from it the line ``a``, ``b`` and
    the accepted range (``lower``, ``upper``]. That is the mode's interval, or ``accepted`` [mode]
    if given, the two arrays of ``accepted_ranges``. A new position has mode 0 (a = b = 0) and
    empty counters.

    A counter has ``counter_bits`` bits. When one of a position's counters is full (2^bits - 1), all
    of that position's are halved, rounded down, which keeps their order.
    """

    def __init__(
        self,
        heads: int,
        exp: PiecewiseExp,
        counter_bits: int,
        accepted: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        if not 2 <= counter_bits <= 16:
            raise ValueError(f"counter_bits must lie between 2 and 16, not {counter_bits}")
        self._exp, self._full = exp, 2**counter_bits - 1
        kind = exp.a.dtype
        lower, upper = (exp.lower, exp.upper) if accepted is None else accepted
        self._of_mode = {"lower": lower.astype(kind), "upper": upper.astype(kind)}
        self._of_mode |= {"a": exp.a, "b": exp.b}
        # As in the accelerator, the mode's own counter is stored with the mode (G's fourth word):
        # it is needed for every position, the others only for active ones. Its entry in ``cnt`` is
        # out of date.
        columns: dict[str, Column] = {
            "mode": np.uint8,
            "count": np.uint16,
            "cnt": (np.uint16, len(exp)),
        }
        columns |= dict.fromkeys(self._of_mode, kind)
        self._tables = PositionTables(heads, **columns)

    @property
    def mode(self) -> np.ndarray:
        return self._tables["mode"]

    @property
    def lower(self) -> np.ndarray:
        return self._tables["lower"]

    @property
    def upper(self) -> np.ndarray:
        return self._tables["upper"]

    @property
    def a(self) -> np.ndarray:
        return self._tables["a"]

    @property
    def b(self) -> np.ndarray:
        return self._tables["b"]

    @property
    def lines(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies of ``a`` and ``b``."""
        return self.a.copy(), self.b.copy()

    @property
    def counters(self) -> np.ndarray:
        """A copy of all counters, [query heads, positions, I]."""
        counters = self._tables["cnt"].copy()
        count = self._tables["count"][..., None]
        np.put_along_axis(counters, self.mode[..., None].astype(np.intp), count, axis=-1)
        return counters

    def append(self, number: int = 1) -> None:
        """New positions, in mode 0."""
        self._tables.append(number)
        for name in ("lower", "upper"):
            self._tables[name][:, -number:] = self._of_mode[name][0]

    def fill(self, counts: np.ndarray, settled: int) -> None:
        """New positions by their counts so far, [query heads, positions, I], before any ``append``.

        The first ``settled`` positions take the interval that was counted most as their mode, the
        lowest of equals; those after it stay in mode 0. Counts that a counter cannot hold are
        halved until it can.
        """
        self.append(counts.shape[1])
        while (full := counts.max(axis=-1, keepdims=True) >= self._full).any():
            counts = np.where(full, counts >> 1, counts)
        self._tables["cnt"][...] = counts
        self._tables["count"][...] = counts[..., 0]
        h, j = np.indices((len(counts), settled)).reshape(2, -1)
        self._change(h, j, counts[h, j].argmax(axis=-1))

    def outside(self, x: np.ndarray) -> np.ndarray:
        """Where x [query heads, first positions] falls outside the mode's accepted range."""
        n = x.shape[1]
        return (x <= self.lower[:, :n]) | (x > self.upper[:, :n])

    def large(self, near: float) -> np.ndarray:
        """Where the mode's interval has its lower bound at ``near`` or above (LAD's set M)."""
        return (self._exp.lower >= near)[self.mode]

    def record(self, interval: np.ndarray, leaving: int) -> np.ndarray:
        """Count one interval for each position and update the modes. Returns U as a mask.

        ``interval`` [query heads, positions]. Positions before ``leaving`` take the interval as
        their mode when its increased counter exceeds their mode's. Position ``leaving``, the oldest
        of the window, always takes it; those after it never do. ``leaving`` below 0: no position
        leaves.
        """
        count, cnt = self._tables["count"], self._tables["cnt"]
        same = interval == self.mode
        count += same
        h, j = np.nonzero(~same)
        to = interval[h, j]
        cnt[h, j, to] += 1
        risen = cnt[h, j, to]
        changes = (risen > count[h, j]) & (j < leaving) | (j == leaving)
        full = count == self._full
        full[h, j] |= risen == self._full
        self._change(h[changes], j[changes], to[changes])
        if full.any():
            count[full] >>= 1
            cnt[full] >>= 1
        updated = np.zeros(interval.shape, bool)
        updated[h[changes], j[changes]] = True
        if leaving >= 0:
            updated[:, leaving] = True
        return updated

    def _change(self, h: np.ndarray, j: np.ndarray, to: np.ndarray) -> None:
        count, cnt = self._tables["count"], self._tables["cnt"]
        cnt[h, j, self.mode[h, j]] = count[h, j]
        count[h, j] = cnt[h, j, to]
        self.mode[h, j] = to
        for name, values in self._of_mode.items():
            self._tables[name][h, j] = values[to]

    def top_probabilities(self, window: int) -> tuple[float, float]:
        """Probability of a position's likeliest interval, and of its two likeliest (Fig. 2b).

        Averaged over heads and all positions but the newest ``window``, whose histories are short.
        NaN without such positions.
        """
        counters = np.sort(self.counters[:, : max(len(self._tables) - window, 0)], axis=-1)
        if counters.size == 0:
            return np.nan, np.nan
        total = counters.sum(axis=-1)
        top = counters[..., -1] / total
        return float(top.mean()), float((top + counters[..., -2] / total).mean())
