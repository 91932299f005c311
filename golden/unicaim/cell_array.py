"""Bit-exact model of the cell array: top-k searches as discharges, spread of devices.

The circuit of section III-B3 in steps. By scores alone (:func:`discharge`), before step n those
lines have dropped whose scores are below -limit + n. By the circuit's clock
(:class:`CellArray` with ``time_steps``), those whose crossing times in
``golden.unicaim.sense_line`` are at most n steps, of which a line of score 0 takes ``time_steps``.
"""

import random
from statistics import NormalDist
from typing import Any, NamedTuple, Protocol

import numpy as np

from golden.algorithms.unicaim.spread import WINDOW
from golden.unicaim.cells import key_limit
from golden.unicaim.sar_adc import sar_adc
from golden.unicaim.sense_line import LineParameters, even_times, level_shifts

FRACTION = 4
"""Fraction bits of a cell's error in key levels, and of a line's distance in scores."""
WEIGHT = 4
"""Fraction bits of what a device's error weighs."""
FACTOR = 12
"""Fraction bits of a line's factor."""
SLOWEST = 4
"""When a search ends at the latest, in times of a line of score 0."""
LATE = 1024
"""Parts of a search's time in which a late stop is given."""


class CellSizes(Protocol):
    """What a cell array depends on; see :class:`hw.unicaim.cell_array.CellArrayParameters`."""

    @property
    def rows(self) -> int: ...
    @property
    def d(self) -> int: ...
    @property
    def key_bits(self) -> int: ...
    @property
    def query_bits(self) -> int: ...
    @property
    def score_limit(self) -> int: ...
    @property
    def spread_mv(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def time_steps(self) -> int: ...
    @property
    def late(self) -> int: ...
    @property
    def line_error(self) -> int: ...
    @property
    def calibration_bits(self) -> int: ...


class Search(NamedTuple):
    """Steps of a search: the lines that are ``high``, bool [steps, rows], whether they are more
    than k, ``too_many``, and whether a step is ``last`` or ``stoppable``, bool [steps] each."""

    high: np.ndarray
    too_many: np.ndarray
    last: np.ndarray
    stoppable: np.ndarray


class CellArray:
    """Devices and lines of an array of ``contexts`` sets of rows, and searches in it."""

    def __init__(self, sizes: CellSizes, contexts: int) -> None:
        p = self._sizes = sizes
        self._errors: np.ndarray | None = None
        if p.spread_mv:
            drawn = cell_errors(p.rows * contexts, p.d, p.key_bits, p.spread_mv, p.seed)
            self._errors = drawn.reshape(contexts, p.rows, p.d, 2)
        self._factors = line_factors(p.rows, p.line_error, p.seed)
        self._weights = error_weights(p.key_bits) if p.time_steps else None
        if p.time_steps:
            self._reach = reach(p.score_limit, p.key_bits, p.time_steps)

    def scores(self, context: int, keys: np.ndarray, planes: np.ndarray) -> np.ndarray:
        """Scores of a context's first rows, whose ``keys`` are [rows, d], as lines show them.

        Less the rows' own errors, if they are measured: a query of zeros, converted.
        """
        p = self._sizes
        errors = np.zeros((*keys.shape, 2), np.int64)
        if self._errors is not None:
            errors = self._errors[context, : len(keys)]
        own = np.zeros(len(keys), np.int64)
        if p.calibration_bits:
            zeros = np.zeros((p.query_bits, p.d), np.int64)
            shown = line_scores(keys, zeros, errors, p.score_limit, self._weights)
            own = converted(shown, p.score_limit, p.calibration_bits)
        return line_scores(keys, planes, errors, p.score_limit, self._weights, own)

    def search(self, scores: np.ndarray, used: np.ndarray, k: int) -> Search:
        """The discharge for ``scores`` [rows]."""
        p = self._sizes
        if not p.time_steps:
            high, too_many = discharge(scores, used, k, p.score_limit)
            every = np.ones(len(high), bool)
            return Search(high, too_many, ~every, every)
        distances = line_distances(scores, self._factors, p.score_limit)
        return timed_discharge(distances, used, k, self._reach, p.late)


def discharge(
    scores: np.ndarray, used: np.ndarray, k: int, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """The discharge for ``scores`` [rows], integers within ``limit``, a score a step.

    Returns which lines are high in each step, bool [steps, rows], and whether they are more than
    ``k``, bool [steps]; it stops with the first step in which they are not.
    """
    thresholds = np.arange(-limit, limit + 2)
    dropped = np.sort(scores[used])
    high = len(dropped) - np.searchsorted(dropped, thresholds)
    steps = int(np.argmax(high <= k)) + 1
    return used & (scores >= thresholds[:steps, None]), high[:steps] > k


def reach(
    limit: int, key_bits: int, time_steps: int, line: LineParameters | None = None
) -> np.ndarray:
    """The farthest lines that are high in each step of the clock, int [SLOWEST time_steps + 1].

    That is the largest distance of a score below ``limit``, in 2^-FRACTION scores, at which the
    line's crossing time is later than the step; twice the limit where all lines are high.
    """
    line = LineParameters(key_bits=key_bits) if line is None else line
    cells = limit // key_limit(key_bits)
    farthest = 2 * limit << FRACTION
    distances = np.arange(farthest + 1)
    means = key_limit(key_bits) - distances / (cells << FRACTION)
    times = even_times(line, cells, means)
    later = times / even_times(line, cells, np.zeros(1)) * time_steps
    steps = np.arange(SLOWEST * time_steps + 1)
    # Times fall with the distance, so those later than a step are the nearest ones.
    found = np.searchsorted(-later, -steps, side="left") - 1
    return found.astype(np.int64)


def line_distances(scores: np.ndarray, factors: np.ndarray, limit: int) -> np.ndarray:
    """How far lines are below the limit, as their times say, in 2^-FRACTION scores.

    A line whose time is 1 + e times as long is nearer to the limit by the factor 1 / (1 + e); none
    is farther than the lowest score.
    """
    shift = FACTOR - FRACTION
    distances = ((limit - scores) * factors + (1 << shift - 1)) >> shift
    return np.minimum(distances, 2 * limit << FRACTION)


def timed_discharge(
    distances: np.ndarray, used: np.ndarray, k: int, reach: np.ndarray, late: int
) -> Search:
    """The discharge of lines at ``distances`` [rows] in steps of the clock.

    The first step with ``k`` lines or fewer ends it, as much later as ``late`` LATE-ths of its
    number, to the nearest step; at the latest the last step that ``reach`` has.
    """
    high = np.searchsorted(np.sort(distances[used]), reach, side="right")
    few = high <= k
    last = len(reach) - 1
    first = int(np.argmax(few)) if few.any() else last
    end = min(first + late_steps(first, late), last)
    steps = np.arange(end + 1)
    at_end = (steps == last) | ((steps == end) & (end > first))
    lines = used & (distances <= reach[steps, None])
    return Search(lines, high[steps] > k, at_end, late_steps(steps, late) == 0)


def late_steps(step: Any, late: int) -> Any:
    """Steps by which a search ends after ``step``."""
    return (step * late + LATE // 2) // LATE


def cell_errors(rows: int, d: int, key_bits: int, spread_mv: int, seed: int) -> np.ndarray:
    """Errors of the devices that +1 and -1 read, in 2^-FRACTION levels: int [rows, d, 2]."""
    deviation = spread_mv / 1000 * 2 * key_limit(key_bits) / WINDOW * 2**FRACTION
    draw = random.Random(seed)
    share = np.array([draw.random() or 0.5 for _ in range(rows * d * 2)])
    normal = [NormalDist(0, deviation).inv_cdf(one) for one in share]
    most = round(6 * deviation)
    return np.clip(np.rint(normal), -most, most).astype(np.int64).reshape(rows, d, 2)


def line_factors(rows: int, line_error: int, seed: int) -> np.ndarray:
    """What lines' times divide distances by, in 2^-FACTOR: int [rows].

    A line serves all contexts. Its time is too long by a share, normal with a deviation of
    ``line_error`` LATE-ths, cut off at six of these.
    """
    draw = random.Random(f"lines {seed}")
    normal = NormalDist()
    shares = [normal.inv_cdf(draw.random() or 0.5) * line_error / LATE for _ in range(rows)]
    most = 6 * line_error / LATE
    longer = np.clip(shares, -most, most)
    return np.rint(2**FACTOR / (1 + longer)).astype(np.int64)


def error_weights(key_bits: int) -> np.ndarray:
    """Weight of a device's error by the product that it is read with, -L .. +L: int [2 L + 1].

    In 2^-WEIGHT, where levels are programmed by equal steps of current. It is 0 for the highest:
    its device is off.
    """
    line = LineParameters(key_bits=key_bits)
    level = (line.vth_high - line.vth_low) / (2 * line.levels)
    return np.rint(level_shifts(line) * level * 2**WEIGHT).astype(np.int64)


def line_scores(
    keys: np.ndarray,
    planes: np.ndarray,
    errors: np.ndarray,
    limit: int,
    weights: np.ndarray | None = None,
    own: np.ndarray | int = 0,
) -> np.ndarray:
    """Scores of ``keys`` [rows, d] as their lines show them, for ``planes`` [bits, d] of digits.

    Plane 0 is the least significant one. ``errors`` are as ``cell_errors`` returns them; they
    count by ``weights`` as ``error_weights`` has them, else as they are. A digit 0 is half a +1
    and half a -1. Sums are rounded, half up, less the rows' ``own`` errors [rows], and clipped to
    ``limit``.
    """
    plus, minus = errors[..., 0], errors[..., 1]
    fraction = FRACTION
    if weights is not None:
        levels = len(weights) // 2
        plus, minus = plus * weights[levels + keys], minus * weights[levels - keys]
        fraction += WEIGHT
    total = np.zeros(len(keys), np.int64)
    for position, digits in enumerate(planes.astype(np.int64)):
        error = np.where(digits > 0, plus, np.where(digits < 0, minus, (plus + minus) >> 1))
        total += ((keys.astype(np.int64) * digits << fraction) + error).sum(axis=1) << position
    return np.clip(((total + (1 << fraction - 1)) >> fraction) - own, -limit, limit)


def converted(scores: np.ndarray, limit: int, bits: int) -> np.ndarray:
    """Scores within ``limit`` as a converter of ``bits`` bits has them."""
    shift = max(0, limit.bit_length() + 1 - bits)
    fraction = max(1, shift)
    return sar_adc(scores << fraction - shift, bits, fraction) << shift
