"""Locality aware attention (LAD, section III).

Choices where the paper leaves it open:

- Modes, counters and the caches A to F belong to the query head, since they depend on q; centres
  and norms to the kv head. The paper has equal numbers of both.
- The window's scores are exact in EAS too, so m is never below one of them.
- A score above m (identification by centres may take m too low) uses the last interval's line.
- M are the positions whose mode's interval starts at ``near`` or above.
- The traffic is that of a machine without prefetching: a row counts once in a step where it is
  needed, in J, C, M or the window; a key read for its score is not read again for the output. The
  paper counts such keys twice, ``2|J|d + (|C| + |M|)d`` words. Prefetching J' saves no bytes there
  either: it moves reads out of the attention period. The reads that remain in it, J - J', the
  useless ones, J' - J, and those of G, of counters and of the caches A to F, which are not rows of
  K or V, are in the statistics.
"""

import numpy as np

from golden.algorithms.attention import DecodeAttention, floats, grouped, weighted_sum
from golden.algorithms.cache import KVCache
from golden.algorithms.lad.caches import Caches
from golden.algorithms.lad.identification import (
    CHUNK_BITS,
    ByBounds,
    ByCentres,
    IdentificationResult,
)
from golden.algorithms.lad.modes import Modes
from golden.algorithms.lad.piecewise_exp import EIGHT_BOUNDS, PiecewiseExp
from golden.algorithms.lad.statistics import Statistics


class LocalityAwareAttention(DecodeAttention):
    """Piecewise linear softmax in which only positions outside their mode's interval are read.

    bounds
        Inner bounds of the intervals of exp on (-inf, 0]: 1 to 15, rising, below 0.
    window
        The newest positions, always read, not yet in the caches.
    identification
        "centres" (the paper's) or "bounds" (never misses an active position).
    collinear
        abs(cos) above which a key joins a centre.
    near
        Positions whose mode's interval has its lower bound here or above have their score computed
        exactly in identification by centres.
    counter_bits
        Width of an interval counter.
    storage
        "float32", or "float16" to round the caches A to F to FP16 after each update. The rest is
        computed in float32, all of it in float64 when given that.
    refresh
        Steps after which the caches are recomputed from K, V and the modes; 0 for never.
    scale
        Multiplies the scores before the softmax; 1 / sqrt(d) when not given.

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
        counter_bits: int = 12,
        storage: str = "float32",
        refresh: int = 0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        identifications = {"centres": ByCentres(collinear, near), "bounds": ByBounds()}
        if identification not in identifications:
            raise ValueError(f"identification must be centres or bounds, not {identification}")
        if storage not in ("float32", "float16"):
            raise ValueError(f"storage must be float32 or float16, not {storage}")
        if refresh < 0:
            raise ValueError(f"refresh must be at least 0, not {refresh}")
        self.exp = PiecewiseExp(bounds)
        Modes(0, self.exp, counter_bits)  # checks counter_bits
        self.identification = identifications[identification]
        self.statistics = Statistics()
        self.modes: Modes | None = None
        self.caches: Caches | None = None
        self.m: np.ndarray | None = None
        self.active: np.ndarray | None = None
        self._bounds, self._window, self._counter_bits = bounds, window, counter_bits
        self._storage, self._refresh, self._scale = storage, refresh, scale
        self._cache = KVCache()

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        q, k, v = floats(q, k, v)
        if self.modes is None:
            self._start(*q.shape, q.dtype)
        q = q * q.dtype.type(1 / np.sqrt(q.shape[1]) if self._scale is None else self._scale)
        self._cache.append(k, v)
        self.modes.append()
        keys, values, n = self._cache.k, self._cache.v, len(self._cache)
        old = max(n - self._window, 0)

        # EAS and APID. All exact scores are computed; ``find`` uses only those of keys it has read.
        self.identification.add(keys)
        exact = (grouped(q, len(k)) @ keys.transpose(0, 2, 1)).reshape(len(q), n)
        found = self.identification.find(q, exact, self.modes, old)
        active = np.ones((len(q), n), bool)
        active[:, :old] = found.active

        # MD: the interval of active positions; for the others it is the mode, so alpha = beta = 0.
        x = exact - found.m[:, None]
        interval = np.where(active, self.exp.interval(x), self.modes.mode)
        alpha = self.exp.a[interval] - self.modes.a
        beta = self.exp.b[interval] - self.modes.b

        # AC
        correction = alpha * x + beta
        numerator = self.caches.numerator(q, found.m) + weighted_sum(correction, values)
        denominator = self.caches.denominator(q, found.m) + correction.sum(axis=1)
        missed = self.modes.outside(x) & ~active
        updated = self.modes.record(interval, n - self._window)
        self.caches.update(alpha, beta, updated, keys, values)
        refreshed = bool(self._refresh) and n % self._refresh == 0
        if refreshed:
            self.caches.rebuild(self.modes.a, self.modes.b, keys, values)

        self.statistics.false_negatives += _number(missed)
        self.statistics.above += _number((x > 0) & active)
        self.statistics.updates += _number(updated)
        self._count(found, active, refreshed)
        self.m, self.active = found.m, active
        return numerator / denominator[:, None]

    def _start(self, heads: int, d: int, dtype: np.dtype) -> None:
        self.exp = PiecewiseExp(self._bounds, dtype)
        self.modes = Modes(heads, self.exp, self._counter_bits)
        self.caches = Caches(heads, d, dtype, self._storage)
        self.active = np.zeros((heads, 0), bool)

    def _count(self, found: IdentificationResult, active: np.ndarray, refreshed: bool) -> None:
        """Traffic and statistics of a step, before ``self.active`` is overwritten: it is J'."""
        kv_heads, n = found.k_rows.shape
        heads, d = len(active), self._cache.k.shape[2]
        before = np.zeros_like(active)  # J'
        before[:, : self.active.shape[1]] = self.active
        rows, rows_before = (grouped(j, kv_heads).any(axis=1) for j in (active, before))
        k_rows, v_rows = found.k_rows | rows, rows
        s = self.statistics
        if refreshed:
            # Positions in mode 0 add nothing to the caches, so their rows are not read.
            needed = grouped(self.modes.mode > 0, kv_heads).any(axis=1)
            s.refresh_rows += _number(needed & ~k_rows)
            s.refresh_rows += _number(needed & ~v_rows)
            k_rows, v_rows = k_rows | needed, v_rows | needed
        self.traffic.read(_number(k_rows), _number(v_rows), d)
        # Of keys not read completely, the chunks that were read.
        chunks = int(found.chunks[~k_rows[:, : found.chunks.shape[1]]].sum())
        self.traffic.k_bytes += chunks * d * CHUNK_BITS // 8
        self.traffic.dense(kv_heads * n, d)
        self.rows = kv_heads * n

        s.steps += 1
        s.positions += heads * n
        s.active += _number(active)
        s.hits += _number(active & before)
        s.rows += kv_heads * n
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
        self.state_bytes = g_bytes + cache_bytes + 2 * n * heads * intervals

    def figures(self) -> dict[str, float]:
        s, (top_1, top_2) = self.statistics, self.top_probabilities
        return {
            "active share": s.active_share,
            "hit ratio": s.hit_ratio,
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


def _number(mask: np.ndarray) -> int:
    return int(np.count_nonzero(mask))
