"""Figures of single cells and lines: currents, discharges, order, linearity (Figs. 5 to 7, 9)."""

import dataclasses
from typing import Any

import numpy as np

from golden.studies.unicaim_circuit.setting import (
    CELLS,
    CLAMP,
    Point,
    Setting,
    all_scores,
    mixed_rows,
    points,
    rounded,
)
from golden.unicaim.sense_line import (
    RULES,
    LineParameters,
    crossing_times,
    currents,
    ideal_law,
    level_currents,
    stop_time,
    thresholds,
    voltages,
)

SIZES = (4, 16, CELLS)
TERNARY, TOP = 4, 3
"""Cells of the rows of Fig. 7, and the rows that its search selects."""
STEP = 8
"""Distance of the scores that are drawn."""
LINES = 600
"""Rows whose currents are drawn."""
SHOWN = 100
"""Rows that the picture shows."""
READ_VOLTAGES = (1.0, 1.4, 2.0, 3.0)
SWEPT = (1.0, 1.2, 1.4, 1.6, 2.0, 3.0)
"""V_R in V."""


def cells(setting: Setting) -> dict[str, Any]:
    """Fig. 5d and 6b: thresholds in V and currents in A of a cell by its product."""
    return {
        name: {
            str(bits): {
                "thresholds": rounded(thresholds(line)),
                "currents": rounded(level_currents(line, line.v_verify)),
            }
            for bits in (1, 3)
            for line in [dataclasses.replace(point.line, key_bits=bits)]
        }
        for name, point in points(setting).items()
    }


def search(setting: Setting) -> dict[str, Any]:
    """Fig. 7b and c: nine rows of four ternary cells with scores -4 .. 4, times in s."""
    first = next(iter(points(setting).values())).line
    line = dataclasses.replace(first, key_bits=1)
    scores, rows = all_scores(TERNARY, line.levels)
    products = rows[:, 0]
    times = crossing_times(line, products)
    t = np.linspace(0, 1.15 * times[-2], 116)
    stop = float(stop_time(times, TOP))
    after = float(np.sort(times)[-TOP])
    return {
        "scores": scores.tolist(),
        "times": rounded(times),
        "t": rounded(t),
        "voltages": rounded(voltages(line, products, t).T, 4),
        "stop": rounded(stop),
        "margin": rounded(after / stop - 1),
    }


def order(setting: Setting) -> dict[str, Any]:
    """How times follow the scores, at each point, by cells of a row, and of Fig. 7's ternary cells.

    `mixed`: neighbouring scores of which some row of the higher drops no later than one of the
    lower; `error`: the largest distance of a row from the straight line of 1/t against the score,
    in scores; both without the highest score, whose time is leakage.
    """
    return {
        name: {
            label: _order(dataclasses.replace(point.line, key_bits=bits), size)
            for label, bits, size in (
                ("ternary", 1, TERNARY),
                *((str(size), 3, size) for size in SIZES),
            )
        }
        for name, point in points(setting).items()
    }


def _order(line: LineParameters, size: int) -> dict[str, Any]:
    scores, rows = all_scores(size, line.levels)
    times = crossing_times(line, rows.reshape(-1, size)).reshape(-1, 2)
    mixed = int(np.count_nonzero(times[:-1].max(axis=1) >= times[1:].min(axis=1)))
    error = np.abs(straight_error(scores[:-1], 1 / times[:-1].T)).max()
    return {"mixed": mixed, "of": len(scores) - 1, "error": rounded(error, 3)}


def straight_error(scores: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Distance of `shown` [..., scores] from its straight line against the scores, in scores."""
    x = np.broadcast_to(scores, shown.shape)
    slope, offset = np.polyfit(x.ravel(), shown.ravel(), 1)
    return (shown - offset) / slope - x


def read_voltages(setting: Setting) -> list[dict[str, Any]]:
    """The same of rows of 128 cells by V_R, for both rules, and `time`, s, of equal cells of 0."""
    found = []
    for rule in RULES:
        for v_read in SWEPT:
            line = dataclasses.replace(setting.line, rule=rule, v_read=v_read)
            time = crossing_times(line, np.zeros((1, CELLS), int))[0]
            found.append(
                {"rule": rule, "v_read": v_read, "time": rounded(time, 3)} | _order(line, CELLS)
            )
    return found


def inverse(setting: Setting) -> dict[str, Any]:
    """1/t in 1/s of rows of all scores, as equal as possible and at the ends, and the ideal law."""
    found: dict[str, Any] = {}
    for name, point in points(setting).items():
        scores, rows = all_scores(CELLS, point.line.levels, STEP)
        times = crossing_times(point.line, rows.reshape(-1, CELLS)).reshape(-1, 2)
        a, zero = ideal_law(point.line, CELLS)
        found[name] = {
            "scores": scores.tolist(),
            "equal": rounded(1 / times[:, 0]),
            "ends": rounded(1 / times[:, 1]),
            "ideal": rounded((zero - scores) / a),
        }
    return found


def linearity(setting: Setting) -> dict[str, Any]:
    """Fig. 9b: currents of lines against their score, without spread and with it.

    `r2`: of the straight line; `largest`, `rms`: distances from it in scores.
    """
    found: dict[str, Any] = {}
    for name, point in points(setting).items():
        rng = np.random.default_rng(setting.seed)
        products = mixed_rows(LINES, CELLS, point.line.levels, rng)
        errors = setting.spread_mv / 1000 * rng.standard_normal((*products.shape, 2))
        scores = products.sum(axis=1)
        some = np.linspace(0, LINES - 1, SHOWN).astype(int)
        found[name] = {"sense": point.sense, "scores": scores[some].tolist()}
        for label, of in (("exact", None), ("spread", errors)):
            shown = currents(point.line, products, point.sense, of)
            error = straight_error(scores, shown)
            found[name][label] = {
                "currents": rounded(shown[some]),
                "r2": rounded(np.corrcoef(scores, shown)[0, 1] ** 2, 6),
                "largest": rounded(np.abs(error).max(), 4),
                "rms": rounded(error.std(), 4),
            }
    return found


def devices(setting: Setting) -> dict[str, Any]:
    """Fig. 9a: thresholds in V of 128 devices in the lowest and the highest state."""
    drawn = np.random.default_rng(setting.seed).standard_normal((2, CELLS))
    ends = np.array([[setting.line.vth_low], [setting.line.vth_high]])
    return {"thresholds": rounded(ends + setting.spread_mv / 1000 * drawn)}


def linear_points(setting: Setting) -> list[dict[str, Any]]:
    """How linear a cell's current is in its level, by rule, V_R and V_SL.

    `error`: the largest distance of a level from the straight line, in levels; `noise`: what the
    spread of the read device's threshold is at levels -L, 0 and L, in levels.
    """
    by_voltage = dataclasses.replace(setting.line, rule="voltage")
    lines = [dataclasses.replace(by_voltage, v_read=v) for v in READ_VOLTAGES]
    clamp = CLAMP * setting.line.vdd
    at = [Point(line, sense) for line in lines for sense in (clamp, line.v_verify)]
    by_current = dataclasses.replace(setting.line, rule="current")
    at += [Point(by_current, sense) for sense in (clamp, by_current.v_verify)]
    return [_levels(point, setting.spread_mv / 1000) for point in at]


def _levels(point: Point, spread: float) -> dict[str, Any]:
    line = point.line
    levels = np.arange(-line.levels, line.levels + 1)
    shown = level_currents(line, point.sense)
    little = np.zeros((len(levels), 1, 2))
    little[..., 0] = 1e-4
    moved = currents(line, levels[:, None], point.sense, little) - shown
    slope = np.polyfit(levels, shown, 1)[0]
    noise = moved / little[:, 0, 0] / slope * spread
    return {
        "rule": line.rule,
        "v_read": line.v_read,
        "sense": point.sense,
        "error": rounded(np.abs(straight_error(levels, shown)).max(), 3),
        "noise": rounded(noise[[0, line.levels, -1]], 3),
    }
