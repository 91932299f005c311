"""Figures of what follows a line: queries of several bits, the summed currents, the eviction."""

import dataclasses
from typing import Any

import numpy as np

from golden.studies.unicaim_circuit.arrays import TOP, WAYS, arrays
from golden.studies.unicaim_circuit.lines import straight_error
from golden.studies.unicaim_circuit.setting import Setting, points, rounded
from golden.unicaim.cells import query_limit
from golden.unicaim.sense_line import (
    LineParameters,
    device_current,
    level_currents,
    search_times,
    stop_time,
)

BITS = 2
"""Bits of the signed key and of the signed query in Fig. 6d."""
NUMBERS = (16, TOP, 288)
"""Numbers k for one reference current; the last is half of the paper's 576 rows."""
LENGTHS = (112, 224, 448)
"""Rows that are searched."""
FEW = 16
"""Rows selected of each of `LENGTHS`."""


def query_products(setting: Setting) -> dict[str, Any]:
    """Fig. 6c and d: currents in A of an element by its product, 2-bit keys and 2-bit queries.

    An element has 2 L cells of one key, L being the highest query level, of which a query of q
    drives L + q by +1 and L - q by -1: 2^(b + 1) cells for bit b. `mixed`: neighbouring products
    of which some pair of the higher has no lower current than one of the lower; `error`: the
    largest distance from a straight line, in products.
    """
    limit = query_limit(BITS)
    queries = np.arange(-limit, limit + 1)
    found: dict[str, Any] = {}
    for name, point in points(setting).items():
        line = dataclasses.replace(point.line, key_bits=BITS)
        single = level_currents(line, line.v_verify)
        shown = np.outer(limit + queries, single) + np.outer(limit - queries, single[::-1])
        products = np.outer(queries, np.arange(-line.levels, line.levels + 1))
        values = np.unique(products)
        ends = [(shown[products == v].min(), shown[products == v].max()) for v in values]
        found[name] = {
            "mixed": sum(
                bool(low[0] <= high[1]) for low, high in zip(ends, ends[1:], strict=False)
            ),
            "of": len(values) - 1,
            "error": rounded(np.abs(straight_error(products.ravel(), shown.ravel())).max(), 3),
        }
    return found


def spread_currents(line: LineParameters, vth: float, shifts: np.ndarray) -> np.ndarray:
    """Currents in A of F_dyn or F_sta that are on: V_DD at gate and drain, `shifts` in V."""
    return device_current(line, line.vdd - vth - shifts, line.vdd)


def references(setting: Setting, k: int, trials: int = 2000) -> dict[str, Any]:
    """Rows left high when the summed current falls below I_Ref1, with spread of F_dyn (III-B3).

    F_dyn has the lowest threshold; `half` is a reference of k + 1/2 mean currents, `whole` of
    k + 1.
    """
    line = setting.line
    rng = np.random.default_rng(setting.seed)
    shift = setting.spread_mv / 1000 * rng.standard_normal((trials, 2 * k))
    single = spread_currents(line, line.vth_low, shift)
    sums = np.cumsum(single, axis=1) / single.mean()
    found: dict[str, Any] = {"spread": rounded(single.std() / single.mean(), 4)}
    for label, reference in (("half", k + 0.5), ("whole", k + 1.0)):
        left = (sums < reference).sum(axis=1)
        found[label] = {
            "mean": rounded(left.mean(), 4),
            "deviation": rounded(left.std(), 3),
            "exact": rounded((left == k).mean(), 3),
        }
    return found


def numbers(setting: Setting, trials: int = 2000) -> dict[str, Any]:
    """Rows left high by k, which F_dyn is programmed for at one reference (section III-B3).

    The reference is `NUMBERS`[0] + 1/2 currents of the lowest threshold; for another k the mean
    current with the spread is that over k + 1/2.
    """
    line, spread = setting.line, setting.spread_mv / 1000
    drawn = np.random.default_rng(setting.seed).standard_normal((trials, 2 * max(NUMBERS)))
    few = spread * drawn[0]
    thresholds = np.linspace(line.vth_low, line.vth_high, 481)
    means = np.array([spread_currents(line, vth, few).mean() for vth in thresholds])
    reference = (NUMBERS[0] + 0.5) * means[0]
    found = {}
    for k in NUMBERS:
        vth = float(np.interp(-reference / (k + 0.5), -means, thresholds))
        sums = np.cumsum(spread_currents(line, vth, spread * drawn), axis=1)
        left = (sums < reference).sum(axis=1)
        found[str(k)] = {
            "threshold": rounded(vth, 4),
            "mean": rounded(left.mean(), 4),
            "deviation": rounded(left.std(), 3),
        }
    return found


def first_row(setting: Setting, trials: int = 20000) -> dict[str, Any]:
    """Share of evictions in which the first F_sta that turns on ends the discharge (III-B4).

    By the reference: `whole` is the mean current itself, `half` a half of it.
    """
    drawn = np.random.default_rng(setting.seed).standard_normal(trials)
    single = spread_currents(setting.line, setting.line.vth_low, setting.spread_mv / 1000 * drawn)
    parts = single / single.mean()
    return {
        label: rounded((parts > reference).mean(), 3)
        for label, reference in (("half", 0.5), ("whole", 1.0))
    }


def search_lengths(setting: Setting) -> dict[str, list[float]]:
    """A search's time by the rows of an array, the most rows' being 1: means over all queries.

    The first of each array's rows take part, and the top `FEW` are searched (section III-B3).
    """
    line = next(iter(points(setting).values())).line
    found = {}
    for way, rotate in WAYS.items():
        stops = []
        for one in arrays(line.key_bits, rotate):
            times = search_times(line, one.keys, one.digits)
            stops.append([stop_time(times[:, :rows], FEW) for rows in LENGTHS])
        mean = np.concatenate(stops, axis=1).mean(axis=1)
        found[way] = rounded(mean / mean[-1], 4)
    return found
