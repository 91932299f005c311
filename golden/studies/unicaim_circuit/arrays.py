"""Figures of whole arrays of a model's keys: recall, shared charge, energy (Figs. 7 to 9)."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from golden import trace
from golden.algorithms.unicaim.selection import charge_share, eviction_candidate
from golden.algorithms.unicaim.spread import spread_in_levels
from golden.studies.unicaim_circuit.lines import straight_error
from golden.studies.unicaim_circuit.setting import Point, Setting, inverter_mv, points, rounded
from golden.unicaim.cells import KEY_SPAN, key_levels, key_step, query_levels, rotated_key_span
from golden.unicaim.rotation import rotated
from golden.unicaim.sense_line import (
    LineParameters,
    bit_line_energy,
    currents,
    ideal_law,
    search_energy,
    search_times,
    share,
    stop_time,
    voltages,
)

ROWS, TOP = 448, 64
"""Rows written, and the rows that a query selects."""
EVERY = 8
"""Distance of the tokens after them whose queries search."""
COPIES = 2
"""Cells of an element: a query's 0 is a +1 and a -1, so it takes two of one key (Fig. 6c)."""
SPREADS = (0, 18, 36, 54, 72, 108)
DETECTORS = (0, 1, 2, 5, 10, round(inverter_mv()))
"""Millivolts; the last is a small inverter's."""
CAPACITANCES = (0, 0.001, 0.003, 0.01, 0.03)
"""Standard deviations of the lines' capacitance, relative."""
LATE = (0, 0.001, 0.003, 0.01, 0.03, 0.1)
"""Parts of a search's time by which its stop is late."""
SHARE = 1 / 16
"""C_sl / (C_acc + C_sl) of the accumulations."""
QUERIES = 4
"""Queries of each array whose energies are averaged."""
DRAWS = 50
"""Sets of FE-INV errors of each array."""
WAYS = {"keys as they are": False, "rotated and centred": True}


@dataclasses.dataclass(frozen=True)
class Array:
    """Key levels [rows, d] on the cells, digits +1 and -1 [queries, d], scores [queries, rows]."""

    keys: np.ndarray
    digits: np.ndarray

    @property
    def scores(self) -> np.ndarray:
        return self.digits @ self.keys.T


def arrays(bits: int, rotate: bool) -> Iterator[Array]:
    """An array for each layer and kv head of the shipped trace, its group's queries in turn."""
    attention = trace.load(trace.shipped()[0]).attention
    for q, k in zip(attention.q.astype(float), attention.k[:, :, :ROWS].astype(float), strict=True):
        q, span = q[:, ROWS::EVERY], KEY_SPAN
        if rotate:
            k, q = rotated(k - k.mean(axis=1, keepdims=True), 0), rotated(q, 0)
            span = rotated_key_span(bits)
        levels = key_levels(k, key_step(k, bits, span), bits).astype(int)
        queries = query_levels(q, 1).reshape(len(k), -1, q.shape[-1])
        for keys, digits in zip(levels, queries, strict=True):
            pair = np.stack([np.where(digits < 0, -1, 1), np.where(digits > 0, 1, -1)], axis=-1)
            yield Array(keys.repeat(COPIES, axis=1), pair.reshape(len(digits), -1))


def found_rows(times: np.ndarray, scores: np.ndarray, late: float = 0.0) -> float:
    """Share of `TOP` rows that a search finds right: a score not below the `TOP`-th is.

    times, scores
        [queries, rows].
    """
    lowest = np.partition(scores, -TOP, axis=-1)[:, -TOP]
    high = times > stop_time(times, TOP, late)[:, None]
    return np.count_nonzero(high & (scores >= lowest[:, None])) / (TOP * len(times))


def recall(setting: Setting) -> dict[str, Any]:
    """Recall by operating point and spread; at the first, by errors of lines and a late stop."""
    found: dict[str, Any] = {}
    for way, rotate in WAYS.items():
        of_way = list(arrays(setting.line.key_bits, rotate))
        found[way] = {
            "spread": {
                name: [
                    _mean_recall(point.line, of_way, setting, mv, setting.detector_mv)
                    for mv in SPREADS
                ]
                for name, point in points(setting).items()
            }
        }
        line = next(iter(points(setting).values())).line
        found[way]["detector"] = {
            f"{spread:g} mV": [_mean_recall(line, of_way, setting, spread, mv) for mv in DETECTORS]
            for spread in (0.0, setting.spread_mv)
        }
        found[way] |= _of_times(line, of_way, setting.seed)
    return found


def _of_times(line: LineParameters, of: list[Array], seed: int) -> dict[str, list[float]]:
    """Recall without spread, by mismatch of capacitances and by the delay of the stop."""
    rng = np.random.default_rng(seed)
    capacitance, late = [], []
    for one in of:
        times, scores = search_times(line, one.keys, one.digits), one.scores
        drawn = rng.standard_normal(len(one.keys))
        capacitance.append([found_rows(times * (1 + c * drawn), scores) for c in CAPACITANCES])
        late.append([found_rows(times, scores, part) for part in LATE])
    return {
        "capacitance": rounded(np.mean(capacitance, axis=0), 4),
        "late": rounded(np.mean(late, axis=0), 4),
    }


def _mean_recall(
    line: LineParameters, of: list[Array], setting: Setting, spread: float, detector: float
) -> float:
    found = []
    rng = np.random.default_rng(setting.seed)
    for one in of:
        # Every spread scales the same random numbers, so curves are smooth.
        errors = spread / 1000 * rng.standard_normal((*one.keys.shape, 2))
        shift = detector / 1000 * rng.standard_normal(len(one.keys))
        times = search_times(line, one.keys, one.digits, errors, detector=shift)
        found.append(found_rows(times, one.scores))
    return rounded(np.mean(found), 4)


def deviations(setting: Setting) -> dict[str, Any]:
    """Standard deviation of a row's score under the spread, by operating point, in scores.

    `search` is by 1/t, `current` by I_SL; `linear` is what ``golden.algorithms.unicaim.spread``
    takes, sqrt(d) times the spread in levels. What all rows of an array share moves no selection
    and is left out.
    """
    found: dict[str, Any] = {}
    for name, point in points(setting).items():
        line = point.line
        window = line.vth_high - line.vth_low
        levels = spread_in_levels(setting.spread_mv / 1000, line.key_bits, window)
        for way, rotate in WAYS.items():
            variances = [
                deviation(point, one, setting.spread_mv / 1000, np.random.default_rng(number)) ** 2
                for number, one in enumerate(arrays(line.key_bits, rotate), setting.seed)
            ]
            search, current = np.sqrt(np.mean(variances, axis=0))
            found.setdefault(name, {})[way] = {
                "search": rounded(search, 3),
                "current": rounded(current, 3),
                "linear": rounded(levels * one_row(line.key_bits) ** 0.5, 3),
            }
    return found


def deviation(point: Point, one: Array, spread: float, rng: np.random.Generator) -> np.ndarray:
    """Deviation of rows' scores for the first query, by 1/t and by I_SL, in scores: [2].

    spread
        Standard deviation of the devices' thresholds, V.
    """
    line, digits = point.line, one.digits[:1]
    products = one.keys * digits
    errors = spread * rng.standard_normal((*one.keys.shape, 2))
    of_read = np.where((digits > 0)[..., None], errors, errors[..., ::-1])
    by_time = [1 / search_times(line, one.keys, digits, e)[0] for e in (None, errors)]
    by_current = [currents(line, products, point.sense, e) for e in (None, of_read)]
    moved = [
        np.std(noisy - exact) / np.polyfit(one.scores[0], exact, 1)[0]
        for exact, noisy in (by_time, by_current)
    ]
    return np.abs(moved)


def charge(setting: Setting) -> dict[str, Any]:
    """Fig. 8b: voltages when a search stops, V, against the score, and after sharing.

    One rotated and centred array is searched by its queries of the smallest and the largest score
    at the k-th row. `gain` is in V a score, `ideal` by the law of a saturated line; `error` is the
    largest distance from the straight line in scores.
    """
    line = next(iter(points(setting).values())).line
    one = list(arrays(line.key_bits, True))[4]
    times = search_times(line, one.keys, one.digits)
    stops = stop_time(times, TOP)
    acc = line.v_ref
    found = []
    for query in (int(np.argmin(stops)), int(np.argmax(stops))):
        scores = one.scores[query]
        v = voltages(line, one.keys * one.digits[query], stops[query])
        _, zero = ideal_law(line, one.keys.shape[1])
        nth = np.sort(scores)[-TOP - 1]
        found.append(
            {
                "scores": scores.tolist(),
                "voltages": rounded(v),
                "shared": rounded(share(v, np.array(acc), SHARE), 6),
                "gain": rounded(np.polyfit(scores, v, 1)[0], 4),
                "ideal": rounded((line.vdd - line.v_ref) / (zero - nth), 4),
                "error": rounded(np.abs(straight_error(scores, v)).max(), 3),
            }
        )
    return {"start": acc, "ratio": SHARE, "queries": found}


def evictions(setting: Setting) -> dict[str, Any]:
    """The row to evict by shared charge and by shared scores, after all queries of each array.

    `same`: share of the arrays with the same row; `correlation` of accumulations, `worst` place of
    charge's row in the order of shared scores, from 0; `range` of an array's charges and `gap` of
    its two least, means in mV. With the spread on the switching voltages of the FE-INV, drawn
    `DRAWS` times: `spread`, the share with the same row, and `place`, the mean of its place.
    """
    line = next(iter(points(setting).values())).line
    rng = np.random.default_rng(setting.seed)
    found: dict[str, Any] = {}
    for way, rotate in WAYS.items():
        same, correlation, place, ends, noisy = [], [], [], [], []
        for one in arrays(line.key_bits, rotate):
            times = search_times(line, one.keys, one.digits)
            charge, exact = np.full(len(one.keys), line.v_ref), np.zeros(len(one.keys))
            for query, stop in enumerate(stop_time(times, TOP)):
                v = voltages(line, one.keys * one.digits[query], stop)
                charge = share(v, charge, SHARE)
                exact = charge_share(exact, one.scores[query].astype(float), 4)
            row = int(eviction_candidate(charge))
            same.append(row == eviction_candidate(exact))
            place.append(np.count_nonzero(exact < exact[row]))
            correlation.append(np.corrcoef(charge, exact)[0, 1])
            ends.append(1e3 * np.sort(charge)[[0, 1, -1]])
            switching = setting.spread_mv / 1000 * rng.standard_normal((DRAWS, len(charge)))
            rows = eviction_candidate(charge - switching)
            noisy.append([(exact < exact[row]).sum() for row in rows])
        least, second, largest = np.mean(ends, axis=0)
        found[way] = {
            "same": rounded(np.mean(same), 3),
            "correlation": rounded(np.min(correlation), 5),
            "worst": int(np.max(place)),
            "range": rounded(largest - least, 4),
            "gap": rounded(second - least, 3),
            "spread": rounded(np.mean(np.equal(noisy, 0)), 3),
            "place": rounded(np.mean(noisy), 4),
        }
    return found


def energy(setting: Setting) -> dict[str, Any]:
    """A search's energy, and the current of selected rows against all, means over all queries.

    `swing`: what the lines lose until the stop, of V_DD; `line`: energy to charge them again, fJ a
    row; `selected`: I_SL of the rows selected over all rows'; `milliamperes` of a row that is
    converted.
    """
    found: dict[str, Any] = {}
    for name, point in points(setting).items():
        line = point.line
        swing, ratio, converted = [], [], []
        for one in arrays(line.key_bits, True):
            times = search_times(line, one.keys, one.digits[:QUERIES])
            for query, stop in enumerate(stop_time(times, TOP)):
                products = one.keys * one.digits[query]
                full = line.capacitance(products.shape[1]) * line.vdd**2
                swing.append(search_energy(line, products, stop).mean() / full)
                high = times[query] > stop
                shown = currents(line, products, point.sense)
                ratio.append(shown[high].mean() / shown.mean())
                converted.append(shown[high].mean())
        found[name] = {
            "swing": rounded(np.mean(swing), 4),
            "line": rounded(1e15 * np.mean(swing) * full, 4),
            "bits": rounded(1e15 * bit_line_energy(line, 1, products.shape[1]), 4),
            "selected": rounded(np.mean(ratio), 4),
            "milliamperes": rounded(1e3 * np.mean(converted), 3),
        }
    return found


def one_row(bits: int) -> int:
    """Cells of a row of the trace's arrays."""
    return next(arrays(bits, False)).keys.shape[1]
