"""Top-k selection under a spread of threshold voltages: a Monte Carlo (section III-B5, Fig. 9).

The paper gives the spread, a standard deviation of 54 mV from device to device, and shows that the
current of 128 cells is linear in their score. From there to the score's noise takes assumptions:

- Key levels -L .. +L are spaced evenly over the memory window, the distance of the lowest and the
  highest threshold voltage of a device, so one level is window / (2 L) volts. The paper's text does
  not state the window; 1.2 V is assumed, which makes 54 mV 0.36 levels of a 3-bit cell.
- A cell's current is linear in its threshold voltage over the whole window, so an error of that
  voltage is an error of the stored level. By the circuit (``golden.unicaim.sense_line``) that holds
  where the gate is far above V_DD: from 2 V on with the line clamped at 0.1 V, from 3 V on during a
  discharge. With V_R = V_DD and levels by equal steps of current, scores are as linear, but a row's
  deviation is 2.1 times this one.
- Each of a cell's two devices has its own Gaussian error, fixed while the row is kept. Digit +1
  reads the one device and -1 the other; 0, which the paper makes of a +1 and a -1, half of each.
- The planes of a query of several bits use the same cells one after another.

So with errors a and b of the two devices, in levels, a cell with key level n and digit t adds
t (n + (a - b) / 2) + (a + b) / 2: an error of the stored key, and an error of the row that no query
changes. For d cells and a one-bit query their sum has a standard deviation of sqrt(d) times the
spread when no digit is 0, and of sqrt(d / 2) times it when all are.
"""

from collections.abc import Sequence

import numpy as np

from golden.algorithms.unicaim.selection import top_k
from golden.unicaim.cells import key_limit, query_limit, row_scores

SPREAD = 0.054
"""Standard deviation of a device's threshold voltage in volts (section III-B5)."""

WINDOW = 1.2
"""Assumed distance of the lowest and the highest threshold voltage in volts."""


def spread_in_levels(volts: float = SPREAD, key_bits: int = 3, window: float = WINDOW) -> float:
    """A spread of threshold voltages as a part of one key level."""
    return volts * 2 * key_limit(key_bits) / window


def device_errors(
    shape: tuple[int, ...], spread: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Errors of cells whose devices spread by ``spread``, in key levels, for rows [..., d].

    Returns the errors of the stored keys, [..., d], and the rows' errors for one plane of a query,
    [...]: (a - b) / 2, and the sum of (a + b) / 2.
    """
    a, b = spread * rng.standard_normal((2, *shape))
    return (a - b) / 2, (a + b).sum(axis=-1) / 2


def spread_scores(
    keys: np.ndarray,
    queries: np.ndarray,
    query_bits: int,
    spread: float,
    trials: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Scores on the sense lines, in the unit of ``row_scores``.

    ``keys`` [rows, d] and ``queries`` [queries, d] are levels, ``spread`` is in key levels. Each
    trial is an array with new devices, written once. Returns float [trials, queries, rows].
    """
    key_error, row_error = device_errors((trials, *keys.shape), spread, rng)
    stored = keys + key_error
    # Every plane adds the row's own error once, and plane b has the weight 2^b.
    row_error = row_error * query_limit(query_bits)
    return queries.astype(stored.dtype) @ stored.transpose(0, 2, 1) + row_error[:, None]


def recall(selected: np.ndarray, reference: np.ndarray) -> float:
    """Share of the rows in ``reference`` that are in ``selected`` too; masks [..., rows]."""
    selected, reference = np.broadcast_arrays(selected, reference)
    return np.count_nonzero(selected & reference) / np.count_nonzero(reference)


def recall_against_spread(
    keys: np.ndarray,
    queries: np.ndarray,
    query_bits: int,
    k: int,
    spreads: Sequence[float],
    trials: int = 8,
    seed: int = 0,
    reference: np.ndarray | None = None,
) -> np.ndarray:
    """Recall of the top k for each of ``spreads``, in key levels, over all queries and trials.

    ``reference`` is the correct selection, a mask [queries, rows]; by default the selection by the
    same levels without spread. Every spread scales the same random numbers, so the curve is smooth.
    """
    if reference is None:
        reference = top_k(row_scores(keys, queries), k)
    curve = []
    for spread in spreads:
        rng = np.random.default_rng(seed)
        scores = spread_scores(keys, queries, query_bits, spread, trials, rng)
        curve.append(recall(top_k(scores, k), reference))
    return np.array(curve)
