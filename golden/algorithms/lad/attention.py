"""Locality aware attention (LAD, section III).

Choices where the paper leaves it open:

- Modes, counters and the caches A to F belong to the query head, because they depend on q; centres
  and norms to the kv head. The paper has equal numbers of both.
- The window's scores are exact in EAS too, so m is never below one of them.
- A score above m (centres or codes may give too low an m) uses the last interval's line.
- M are the positions whose mode's interval starts at ``near`` or above.
- Of query heads alone (``alone``) each reads the keys of C itself.
- The traffic is counted for a machine without prefetching: a row counts once in a step where it is
  needed, in J, C, M or the window; a key read for its score is not read again for the output. The
  paper counts such keys twice, ``2|J|d + (|C| + |M|)d`` words. Prefetching J' saves no bytes there
  either: it moves reads out of the attention period. The reads that remain in it, J - J', the
  useless ones, J' - J, and reads of G, of counters and of the caches A to F, which are not rows of
  K or V, are in the statistics.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from golden.algorithms.attention import DecodeAttention, Traffic, floats, grouped, weighted_sum
from golden.algorithms.cache import KVCache
from golden.algorithms.lad.accepted_ranges import accepted_ranges
from golden.algorithms.lad.caches import Caches, to_fp16
from golden.algorithms.lad.codes import ByCodes
from golden.algorithms.lad.identification import (
    CHUNK_BITS,
    ByBounds,
    ByCentres,
    IdentificationResult,
)
from golden.algorithms.lad.modes import Modes
from golden.algorithms.lad.piecewise_exp import EIGHT_BOUNDS, PiecewiseExp
from golden.algorithms.lad.statistics import Statistics

_QUERY_BLOCK = 256


class LocalityAwareAttention(DecodeAttention):
    """Piecewise linear softmax in which only positions outside their mode's interval are read.

    bounds
        Inner bounds of the intervals of exp on (-inf, 0]: 1 to 15, rising, below 0.
    window
        The newest positions, always read, not yet in the caches.
    identification
        "centres" (the paper's), "codes" (a copy of K in few bits), or "bounds" (never misses an
        active position).
    collinear
        abs(cos) above which a key joins a centre.
    near
        Positions whose mode's interval has its lower bound here or above have their score computed
        exactly in identification by centres or codes.
    code_bits
        Width of a code, 2 to 8.
    counter_bits
        Width of an interval counter.
    slack
        Error of exp, 0 to 2^-8, up to which a mode's line is used beyond its interval: such
        positions are still inactive (``accepted_ranges``). 0 is the paper.
    storage
        "float32", or "float16" to round the caches A to F to FP16 after each update. The rest is
        computed in float32, all of it in float64 when given that.
    terms
        "differences", eq. 6's updates of the caches, or "pairs", which take the old term out as it
        was put in (``Caches``).
    arithmetic
        "float", or "fp16" for an update as the accelerator does it: q (scaled), k, v, the tables a
        and b, alpha and beta are rounded to FP16, and so is each product of an update. Scores,
        output and sums are not rounded.
    refresh
        Steps after which the caches are recomputed from K, V and the modes; 0 for never.
    scale
        Multiplies the scores before the softmax; 1 / sqrt(d) when not given.
    bit_exact
        Compute as the accelerator's tile does (``TileSteps``), for `positions` tokens at most: by
        centres or codes, with `bounds`, `window`, `near` and `slack`; the other options must have
        their defaults. Only figures of the tile's reports are counted then.

    ``modes`` and ``caches`` are the state, ``m`` [query heads] and ``active`` (J) [query heads,
    positions] the latest step's; all are None before the first step. ``statistics`` are counts.
    """

    def __init__(
        self,
        bounds: tuple[float, ...] = EIGHT_BOUNDS,
        window: int = 16,
        identification: str = "centres",
        collinear: float = 0.98,
        near: float = -3.0,
        code_bits: int = 6,
        counter_bits: int = 12,
        slack: float = 0.0,
        storage: str = "float32",
        terms: str = "differences",
        arithmetic: str = "float",
        refresh: int = 0,
        scale: float | None = None,
        bit_exact: bool = False,
        positions: int = 2048,
    ) -> None:
        super().__init__()
        self.alone: Traffic = Traffic()
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        identifications = {
            "centres": ByCentres(collinear, near),
            "codes": ByCodes(code_bits, near),
            "bounds": ByBounds(),
        }
        _check_choice("identification", identification, identifications)
        _check_choice("storage", storage, ("float32", "float16"))
        _check_choice("terms", terms, ("differences", "pairs"))
        _check_choice("arithmetic", arithmetic, ("float", "fp16"))
        if refresh < 0:
            raise ValueError(f"refresh must be at least 0, not {refresh}")
        self._table_type = np.float16 if arithmetic == "fp16" else None
        self.exp = PiecewiseExp(bounds, table_type=self._table_type)
        self._accepted = accepted_ranges(bounds, slack)
        self.identification = identifications[identification]
        self.statistics = Statistics()
        self.modes = Modes(0, self.exp, counter_bits)  # checks counter_bits
        self.caches = Caches(0, 0, self.exp.a.dtype, storage, terms, arithmetic)
        self.m, self.active = np.zeros(0), np.zeros((0, 0), bool)
        self._started = False
        self._bounds, self._window, self._counter_bits = bounds, window, counter_bits
        self._storage, self._refresh, self._scale = storage, refresh, scale
        self._terms, self._arithmetic = terms, arithmetic
        self._cache = KVCache()
        self._tile: Any = None  # TileSteps
        if bit_exact:
            # Here, because the tile's model imports this package's exponential.
            from golden.algorithms.lad.bit_exact import TileSteps

            _check_choice("identification", identification, ("centres", "codes"))
            self._tile = TileSteps(
                bounds, window, identification, near, code_bits, slack, positions
            )

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        q, k, v = floats(q, k, v)
        if self._tile is not None:
            return self._step_tile(self._tile, q, k, v)
        if not self._started:
            self._start(len(q), q.shape[1], q.dtype)
        q = q * q.dtype.type(1 / np.sqrt(q.shape[1]) if self._scale is None else self._scale)
        q, k, v = (self._rounded(x) for x in (q, k, v))
        self._cache.append(k, v)
        self.modes.append()
        keys, values, n = self._cache.k, self._cache.v, len(self._cache)
        old = max(n - self._window, 0)

        # EAS and APID. All exact scores are computed; ``find`` uses only the scores of keys that it
        # has read.
        self.identification.add(keys)
        exact = (grouped(q, len(k)) @ keys.transpose(0, 2, 1)).reshape(len(q), n)
        found = self.identification.find(q, exact, self.modes, old)
        active = np.ones((len(q), n), bool)
        active[:, :old] = found.active

        # MD: the interval of active positions; for the others it is the mode, so alpha = beta = 0.
        x = exact - found.m[:, None]
        interval = np.where(active, self.exp.interval(x), self.modes.mode)
        before, after = self.modes.lines, (self.exp.a[interval], self.exp.b[interval])
        alpha, beta = (self._rounded(y - x) for x, y in zip(before, after, strict=True))

        # AC
        correction = alpha * x + beta
        numerator = self.caches.numerator(q, found.m) + weighted_sum(correction, values)
        denominator = self.caches.denominator(q, found.m) + correction.sum(axis=1)
        missed = self.modes.outside(x) & ~active
        updated = self.modes.record(interval, n - self._window)
        self.caches.update(before, after, updated, keys, values)
        refreshed = bool(self._refresh) and n % self._refresh == 0
        if refreshed:
            self.caches.rebuild(*self.modes.lines, keys, values)

        self.statistics.false_negatives += _number(missed)
        self.statistics.above += _number((x > 0) & active)
        self.statistics.updates += _number(updated)
        self._count(found, active, refreshed)
        self.m, self.active = found.m, active
        return numerator / denominator[:, None]

    def prefill(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """A prompt with dense attention: intervals are counted by the exact scores of its queries.

        Each position's mode is the interval that was counted most, and the caches are summed from
        the modes. Stepping counts the mode of a position that it does not find active, so that its
        state may differ. J of the last query, by its exact scores and these modes, is what the next
        step finds as J'. Nothing is counted in ``traffic`` and ``statistics``.
        """
        if self._tile is not None or self._started:
            super().prefill(q, k, v)
            return
        q, k, v = floats(q, k, v)
        heads, n, d = q.shape
        self._start(heads, d, q.dtype)
        q = q * q.dtype.type(1 / np.sqrt(d) if self._scale is None else self._scale)
        q, k, v = (self._rounded(x) for x in (q, k, v))
        self._cache.append(k, v)
        self.identification.add(k, n)
        self.modes.fill(_interval_counts(q, k, self.exp), max(n - self._window + 1, 0))
        self.caches.rebuild(*self.modes.lines, k, v)
        last = (grouped(q[:, -1], len(k)) @ k.transpose(0, 2, 1)).reshape(heads, n)
        self.active = self.modes.outside(last - last.max(axis=1, keepdims=True))
        self.active[:, max(n - self._window, 0) :] = True
        self.rows = len(k) * n

    def _step_tile(self, tile: Any, q, k, v) -> np.ndarray:
        """A step of the accelerator's model. Its keys are read for scores and for the output."""
        scale = 1 / np.sqrt(q.shape[1]) if self._scale is None else self._scale
        o, active = tile.step(q * q.dtype.type(scale), k, v)
        d, n = k.shape[1], active.shape[1]
        for traffic, readers in ((self.traffic, len(k)), (self.alone, len(q))):
            rows = _number(np.any(grouped(active, readers), axis=1))
            traffic.read(rows, rows, d)
            traffic.dense(readers * n, d)
        self.rows = len(k) * n
        return o.astype(q.dtype)

    def _start(self, heads: int, d: int, dtype: np.dtype) -> None:
        self._started = True
        self.exp = PiecewiseExp(self._bounds, dtype, self._table_type)
        self.modes = Modes(heads, self.exp, self._counter_bits, self._accepted)
        self.caches = Caches(heads, d, dtype, self._storage, self._terms, self._arithmetic)
        self.active = np.zeros((heads, 0), bool)

    def _rounded(self, x: np.ndarray) -> np.ndarray:
        return to_fp16(x) if self._arithmetic == "fp16" else x

    def _count(self, found: IdentificationResult, active: np.ndarray, refreshed: bool) -> None:
        """Traffic and statistics of a step, before ``self.active`` is overwritten: it is J'."""
        kv_heads, n = found.k_rows.shape
        heads, d = len(active), self._cache.k.shape[2]
        before = np.zeros_like(active)  # J'
        before[:, : self.active.shape[1]] = self.active
        rows, rows_before = (np.any(grouped(j, kv_heads), axis=1) for j in (active, before))
        s, code_bits = self.statistics, self.identification.code_bits
        s.refresh_rows += self._read(self.traffic, found, refreshed)
        assert found.alone is not None
        self._read(self.alone, found.alone, refreshed)
        self.rows = kv_heads * n

        s.steps += 1
        s.positions += heads * n
        s.active += _number(active)
        s.hits += _number(active & before)
        s.rows += kv_heads * n
        s.large += found.large
        if isinstance(self.identification, ByCentres):
            centres = self.identification.centres.is_centre
            s.centre_rows += _number(centres)
            s.large_rows += _number((found.k_rows & ~centres)[:, : found.active.shape[1]])
        s.active_rows += _number(rows)
        s.new_rows += _number(rows & ~rows_before)
        s.stale_rows += _number(rows_before & ~rows)
        intervals = len(self.exp)
        g_bytes = 2 * n * (kv_heads * self.identification.g_words + heads)
        word = 2 if self._storage == "float16" else 4
        cache_bytes = heads * (d * d + 3 * d + 2) * word
        s.g_bytes += g_bytes
        s.counter_bytes += 2 * intervals * _number(active)
        s.cache_bytes += cache_bytes
        code_bytes = kv_heads * n * d * code_bits // 8
        self.state_bytes = g_bytes + cache_bytes + 2 * n * heads * intervals + code_bytes

    def _read(self, traffic: Traffic, found: IdentificationResult, refreshed: bool) -> int:
        """Count a step's reads by kv heads or, as ``found`` has it, by query heads alone.

        Returns the rows that only a recomputation of the caches reads.
        """
        (readers, n), old, d = found.k_rows.shape, found.active.shape[1], self._cache.k.shape[2]
        v_rows = np.ones((readers, n), bool)  # the window
        v_rows[:, :old] = grouped(found.active, readers).any(axis=1)
        k_rows, extra = found.k_rows | v_rows, 0
        if refreshed:
            # Positions in mode 0 add nothing to the caches, so their rows are not read.
            needed = np.any(grouped(self.modes.mode > 0, readers), axis=1)
            extra = _number(needed & ~k_rows) + _number(needed & ~v_rows)
            k_rows, v_rows = k_rows | needed, v_rows | needed
        traffic.read(_number(k_rows), _number(v_rows), d)
        # Of keys not read completely, the chunks that were read.
        traffic.k_bytes += int(found.chunks[~k_rows[:, :old]].sum()) * d * CHUNK_BITS // 8
        traffic.k_bytes += found.codes * d * self.identification.code_bits // 8
        traffic.dense(readers * n, d)
        return extra

    def figures(self) -> dict[str, float]:
        if self._tile is not None:
            counts = self._tile.counts
            reports = counts.reports
            return {
                "active share": reports["active"] / reports["n"],
                "hit ratio": 1 - reports["fresh"] / reports["active"],
                "large share": reports["large"] / reports["n"],
                "updates": reports["updated"] / counts.steps,
                "rows a head-step": reports["rows"] / counts.steps,
                "invalid heads": counts.invalid,
            }
        s, (top_1, top_2) = self.statistics, self.top_probabilities
        return {
            "active share": s.active_share,
            "hit ratio": s.hit_ratio,
            "large share": s.large_share,
            "updates": s.updates / (s.steps * len(self.active)),
            "false negatives": s.false_negative_share,
            "centre share": s.centre_rows / s.rows,
            "side bytes": s.side_bytes / self.traffic.dense_bytes,
            "top 1": float(top_1),
            "top 2": float(top_2),
        }

    @property
    def top_probabilities(self) -> tuple[float, float]:
        """Averages of the likeliest interval's probability and of the two likeliest's together."""
        return self.modes.top_probabilities(self._window)


def _interval_counts(q: np.ndarray, k: np.ndarray, exp: PiecewiseExp) -> np.ndarray:
    """How often each position's score less its query's largest fell into each interval.

    ``q`` [query heads, n, d], scaled, and ``k`` [kv heads, n, d]; int64[query heads, n, I].
    """
    heads, n, _ = q.shape
    group = heads // len(k)
    counts = np.zeros((heads, n, len(exp)), np.int64)
    for head in range(heads):
        for first in range(0, n, _QUERY_BLOCK):
            last = min(first + _QUERY_BLOCK, n)
            scores = q[head, first:last] @ k[head // group, :last].T
            later = ~np.tri(last - first, dtype=bool)
            scores[:, first:][later] = -np.inf
            scores -= scores.max(axis=1, keepdims=True)
            seen = np.minimum(last - np.arange(last), last - first)
            above = [_columns_sum(scores > bound) for bound in exp.lower[1:]]
            bounds = np.stack([seen, *above, np.zeros_like(seen)], axis=-1)
            counts[head, :last] += bounds[:, :-1] - bounds[:, 1:]
    return counts


def _columns_sum(mask: np.ndarray) -> np.ndarray:
    """How often each column of at most `_QUERY_BLOCK` rows is true; int64."""
    half = _QUERY_BLOCK // 2  # rows whose number fits a byte, in which sums are fast
    parts = (np.add.reduce(part, dtype=np.uint8) for part in (mask[:half], mask[half:]))
    return np.add(*parts, dtype=np.int64)


def _check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    *some, last = choices
    if value not in (*some, last):
        raise ValueError(f"{name} must be {', '.join(some)} or {last}, not {value}")


def _number(mask: np.ndarray) -> int:
    return int(np.count_nonzero(mask))
