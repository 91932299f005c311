"""Figures of arrays with a clock of whole steps, and of rows whose own error has been measured."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from golden import trace
from golden.algorithms.unicaim.selection import top_k
from golden.algorithms.unicaim.spread import device_errors, spread_in_levels
from golden.studies.unicaim_circuit.arrays import EVERY as EVERY_QUERY
from golden.studies.unicaim_circuit.arrays import (
    ROWS,
    SPREADS,
    TOP,
    WAYS,
    Array,
    arrays,
    found_rows,
)
from golden.studies.unicaim_circuit.setting import Point, Setting, points, rounded
from golden.unicaim.cell_array import line_distances, line_factors, reach, timed_discharge
from golden.unicaim.cells import (
    KEY_SPAN,
    converter_codes,
    key_levels,
    key_step,
    query_levels,
    query_limit,
    rotated_key_span,
    score_limit,
)
from golden.unicaim.rotation import rotated
from golden.unicaim.sense_line import LineParameters, currents, search_times

CLOCKS = (32, 64, 128, 256, 512, 1024)
"""Steps of the clock until a line of score 0 drops."""
LATE = (0, 10)
"""Parts of a search's time by which its stop is late, in 1024ths."""
QUERY_BITS, CONVERTER_BITS = 3, 10
THIRD = 3
"""Distance of the arrays whose circuits are calibrated."""


def clock(setting: Setting) -> dict[str, Any]:
    """Recall and steps of a search by the bit-exact array, by its clock and the delay of its stop.

    `found`: share of the rows that are right, without rows that fill up; `filled`, with them;
    `steps` of a search, mean.
    """
    line = next(iter(points(setting).values())).line
    found: dict[str, Any] = {}
    for way, rotate in WAYS.items():
        of_way = list(arrays(line.key_bits, rotate))
        found[way] = [
            {"clock": steps, "late": late, **_by_clock(of_way, line, steps, late)}
            for late in LATE
            for steps in CLOCKS
        ]
    return found


def _by_clock(of: Sequence[Array], line: LineParameters, steps: int, late: int) -> dict[str, float]:
    limit = score_limit(of[0].keys.shape[1], line.key_bits, 1)
    far = reach(limit, line.key_bits, steps, line)
    right, filled, taken = [], [], []
    for one in of:
        equal = line_factors(len(one.keys), 0, 0)
        used = np.ones(len(one.keys), bool)
        for scores in one.scores:
            search = timed_discharge(line_distances(scores, equal, limit), used, TOP, far, late)
            good = scores >= np.partition(scores, -TOP)[-TOP]
            high = search.high[-1]
            # Others fill up by their address: those high in the last step with too many.
            others = np.flatnonzero(search.high[search.too_many][-1] & ~high)
            some = others[: TOP - np.count_nonzero(high)]
            right.append(np.count_nonzero(high & good))
            filled.append(right[-1] + np.count_nonzero(good[some]))
            taken.append(len(search.high))
    return {
        "found": rounded(np.mean(right) / TOP, 4),
        "filled": rounded(np.mean(filled) / TOP, 4),
        "steps": rounded(np.mean(taken), 4),
    }


def calibration(setting: Setting) -> dict[str, Any]:
    """What measuring each row's own error after its write is worth, under the spread.

    `circuit`, by operating point and way, 1-bit queries: deviation of a row's score by I_SL in
    scores, and recall, of rows as they are and as measured by +1 and by -1 on all cells, each
    converted to a whole score. `linear`, by way: recall by the spread for queries of `QUERY_BITS`
    on linear cells, as they are and with a query of zeros converted to `CONVERTER_BITS`.
    """
    chosen = list(points(setting).items())
    return {
        "circuit": {
            name: {
                way: _of_point(point, list(arrays(point.line.key_bits, rotate))[::THIRD], setting)
                for way, rotate in WAYS.items()
            }
            for name, point in (chosen[0], chosen[-1])
        },
        "linear": {way: _linear(setting, rotate) for way, rotate in WAYS.items()},
    }


def _of_point(point: Point, of: Sequence[Array], setting: Setting) -> dict[str, Any]:
    rng = np.random.default_rng(setting.seed)
    deviation, recall = [], []
    for one in of:
        errors = setting.spread_mv / 1000 * rng.standard_normal((*one.keys.shape, 2))
        own = own_errors(point, one, errors)
        exact = search_times(point.line, one.keys, one.digits)
        noisy = search_times(point.line, one.keys, one.digits, errors)
        slope, zero = np.polyfit(one.scores.ravel(), 1 / exact.ravel(), 1)
        shown = (1 / noisy - zero) / slope
        moved = shown - (1 / exact - zero) / slope
        pair = []
        for taken in (0, own):
            left = moved - taken
            pair.append(np.std(left - left.mean(axis=1, keepdims=True)))
        deviation.append(pair)
        # The order of times is the order of scores.
        recall.append([found_rows(shown - taken, one.scores) for taken in (0, own)])
    return {
        "deviation": rounded(np.sqrt(np.mean(np.square(deviation), axis=0)), 3),
        "recall": rounded(np.mean(recall, axis=0), 4),
    }


def own_errors(point: Point, one: Array, errors: np.ndarray) -> np.ndarray:
    """Scores that rows show for +1 and then -1 on all cells, converted, and their mean: [rows].

    errors
        V, [rows, d, 2] for the device that +1 reads and the one that -1 reads.
    """
    line = point.line
    found = []
    for keys, of in ((one.keys, errors), (-one.keys, errors[..., ::-1])):
        found.append(np.rint(_scores(line, point.sense, keys, of)))
    return np.mean(found, axis=0)


def _scores(line: LineParameters, v: float, products: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Scores of currents as a converter of equal steps from the lowest to the highest has them."""
    cells = products.shape[1]
    ends = currents(line, np.array([[-line.levels], [line.levels]]).repeat(cells, axis=1), v)
    step = (ends[0] - ends[1]) / (2 * line.levels * cells)
    return (ends.mean() - currents(line, products, v, errors)) / step


def right_rows(shown: np.ndarray, scores: np.ndarray) -> float:
    """Share of the top rows by `shown` whose score is not below the `TOP`-th, [queries, rows]."""
    lowest = np.partition(scores, -TOP, axis=-1)[:, -TOP, None]
    return np.count_nonzero(top_k(shown, TOP) & (scores >= lowest)) / (TOP * len(scores))


def _linear(setting: Setting, rotate: bool) -> dict[str, list[float]]:
    """Recall by the spread, of the top rows by levels without it, all query heads."""
    bits, top = setting.line.key_bits, query_limit(QUERY_BITS)
    attention = trace.load(trace.shipped()[0]).attention
    found: dict[str, list[list[float]]] = {"not measured": [], "measured": []}
    for q, k in zip(attention.q.astype(float), attention.k.astype(float), strict=True):
        q, k, span = q[:, ROWS::EVERY_QUERY], k[:, :ROWS], KEY_SPAN
        if rotate:
            k, q = rotated(k - k.mean(axis=1, keepdims=True), 0), rotated(q, 0)
            span = rotated_key_span(bits)
        levels = key_levels(k, key_step(k, bits, span), bits).astype(float)
        queries = query_levels(q, QUERY_BITS).reshape(len(k), -1, q.shape[-1]).astype(float)
        for keys, some in zip(levels, queries, strict=True):
            scores = some @ keys.T
            by_spread: dict[str, list[float]] = {name: [] for name in found}
            for mv in SPREADS:
                rng = np.random.default_rng(setting.seed)
                of_keys, of_rows = device_errors(keys.shape, spread_in_levels(mv / 1000, bits), rng)
                own = top * of_rows
                codes, unit = converter_codes(
                    own, score_limit(keys.shape[1], bits, QUERY_BITS), CONVERTER_BITS
                )
                shown = some @ (keys + of_keys).T + own
                for name, taken in zip(found, (0, codes * unit), strict=True):
                    by_spread[name].append(right_rows(shown - taken, scores))
            for name, curve in by_spread.items():
                found[name].append(curve)
    return {name: rounded(np.mean(curves, axis=0), 4) for name, curves in found.items()}
