"""Weighted K-Means in one dimension (KLLM, section III-A).

In one dimension the clusters of an optimal solution are intervals, so dynamic programming over the
sorted values finds it exactly: with M0, M1 the sums of the weights and of weight * value up to a
position, splitting at positions e costs

    const - sum over clusters of (M1[e'] - M1[e])^2 / (M0[e'] - M0[e]).

Up to ``EXACT`` distinct values are solved this way. More values are first merged into about EXACT
bins, and the bins' optimal solution is refined by Lloyd's steps on the values themselves: within
0.5 % of the least cost on the distributions tested, usually much closer.
"""

import numpy as np

EXACT = 512
"""Distinct values up to which the solution is optimal. Time grows with its square."""

_LLOYD_STEPS = 1000
_BINS = 4096


def kmeans(x: np.ndarray, k: int, weights: np.ndarray | None = None) -> np.ndarray:
    """``float64[k]`` ascending centroids c that minimise sum of weight * min over c of (x - c)^2.

    Where `x` has fewer than `k` distinct values, these are the centroids and the largest repeats.
    Values of weight 0 are ignored. The result depends on the values and weights alone, not
    on their order, but for the rounding of sums.

    x
        Finite floats of any shape, at least one.
    weights
        One for each value, finite and at least 0, not all 0; all 1 when not given.
    :raises ValueError: for other arrays, or if `k` is less than 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    value, weight = _distinct(x, weights)
    if len(value) <= k:
        return np.append(value, np.full(k - len(value), value[-1]))
    # Sums of values around 0 lose less to cancellation.
    centre = np.average(value, weights=weight)
    value = value - centre
    m0, m1 = _prefix(weight), _prefix(weight * value)
    if len(value) <= EXACT:
        ends = optimal_ends(m0, m1, k)
        return np.diff(m1[ends]) / np.diff(m0[ends]) + centre
    bins = _bin_ends(value, m0)
    ends = bins[optimal_ends(m0[bins], m1[bins], k)]
    return lloyd(value, m0, m1, ends) + centre


def binned(x: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Values ascending, ``float64``, at most 4096, and their weights: means and sums of equal bins.

    For :func:`kmeans` of many values, whose sorting takes longer than all else. Means are exact, so
    that only values within a 4096th of the range from a border may be in another cluster; the range
    must not be much larger than what the centroids are to tell apart.

    x
        Finite ``float32`` of any shape.
    weights
        Finite and at least 0, not all 0, broadcast to it; all 1 when not given.
    :raises ValueError: for other arrays.
    """
    low, high = float(x.min()), float(x.max())
    if not np.isfinite([low, high]).all():
        raise ValueError("x must hold finite floats")
    if weights is not None:
        weights = np.broadcast_to(weights, x.shape)
        if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
            raise ValueError("weights must be finite and at least 0, and one above 0")
    if low == high:
        return np.array([low]), np.array([float(x.size if weights is None else weights.sum())])
    place = ((x - low) * np.float32((_BINS - 1) / (high - low)) + np.float32(0.5)).astype(np.int32)
    place = place.ravel()
    if weights is None:
        mass, moment = np.bincount(place), np.bincount(place, x.ravel())
    else:
        mass, moment = (np.bincount(place, terms.ravel()) for terms in (weights, weights * x))
    used = mass > 0
    return moment[used] / mass[used], mass[used].astype(np.float64)


def optimal_ends(m0: np.ndarray, m1: np.ndarray, k: int) -> np.ndarray:
    """``int64[k + 1]`` positions, 0 to n, that bound the optimal `k` clusters of n values.

    ``m0`` and ``m1`` ``[n + 1]`` are the sums of weight and of weight * value before each position;
    weights are above 0 and n is at least `k`. Of equal solutions the one with the lower last
    position is taken, then the lower one before it, and so on.
    """
    n = len(m0) - 1
    mass = m0[:, None] - m0
    before = mass > 0  # [end, start] with start < end
    gain = np.full((n + 1, n + 1), -np.inf)
    np.divide(np.square(m1[:, None] - m1), mass, out=gain, where=before)
    best = gain[:, 0]
    starts = []
    for _ in range(1, k):
        total = gain + best
        starts.append(total.argmax(axis=1))
        best = np.take_along_axis(total, starts[-1][:, None], axis=1)[:, 0]
    ends = [n]
    for start in reversed(starts):
        ends.append(start[ends[-1]])
    return np.array([0, *reversed(ends)])


def lloyd(value: np.ndarray, m0: np.ndarray, m1: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Centroids after Lloyd's steps from the clusters between `ends`, until these no longer change.

    ``value`` is sorted. A value midway between two centroids belongs to the lower one; a cluster
    that loses all its values keeps its centroid.
    """
    centroid = np.diff(m1[ends]) / np.diff(m0[ends])
    for _ in range(_LLOYD_STEPS):
        inner = np.searchsorted(value, midpoints(centroid), side="right")
        moved = np.array([0, *inner, len(value)])
        if np.array_equal(moved, ends):
            break
        ends = moved
        mass = np.diff(m0[ends])
        np.divide(np.diff(m1[ends]), mass, out=centroid, where=mass > 0)
    return centroid


def midpoints(codebook: np.ndarray) -> np.ndarray:
    """``float64``: halfway between each two neighbouring centroids."""
    codebook = np.asarray(codebook, np.float64)
    return (codebook[1:] + codebook[:-1]) / 2


def nearest(x: np.ndarray, codebook: np.ndarray) -> np.ndarray:
    """``uint8`` index of the centroid nearest each of `x`: the number of midpoints below it.

    So a value midway between two centroids gets the lower index. ``codebook`` is ascending and has
    at most 256 centroids; midpoints and comparisons are float64.
    """
    x = np.asarray(x)
    index = np.zeros_like(x, np.uint8)
    for boundary in midpoints(codebook):
        index += x > boundary
    return index


def _distinct(x: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values of `x` ascending and the sum of each one's weights, both float64."""
    x = np.asarray(x).ravel()
    if x.size == 0 or x.dtype.kind != "f" or not np.isfinite(x).all():
        raise ValueError("x must hold finite floats, at least one")
    if weights is None:
        x = np.sort(x)
        first = np.flatnonzero(np.append(True, x[1:] != x[:-1]))
        return x[first].astype(np.float64), np.diff(np.append(first, len(x))).astype(np.float64)
    weights = np.asarray(weights, np.float64).ravel()
    if weights.shape != x.shape:
        raise ValueError(f"weights must be as many as values, {x.size}, not {weights.size}")
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise ValueError("weights must be finite and at least 0, and one above 0")
    x, weights = x[weights > 0], weights[weights > 0]
    order = np.argsort(x)
    x, weights = x[order], weights[order]
    first = np.flatnonzero(np.append(True, x[1:] != x[:-1]))
    return x[first].astype(np.float64), np.add.reduceat(weights, first)


def _prefix(terms: np.ndarray) -> np.ndarray:
    return np.append(0.0, np.cumsum(terms))


def _bin_ends(value: np.ndarray, m0: np.ndarray) -> np.ndarray:
    """Positions of about ``EXACT`` bins: half of equal weight, half of equal width.

    Equal weight alone would merge the few values of a long tail, equal width alone the many in the
    middle.
    """
    count = EXACT // 2 + 1
    weighty = np.searchsorted(m0, np.linspace(0, m0[-1], count)[1:-1])
    wide = np.searchsorted(value, np.linspace(value[0], value[-1], count)[1:-1])
    return np.unique(np.concatenate([[0], weighty, wide, [len(value)]]))
