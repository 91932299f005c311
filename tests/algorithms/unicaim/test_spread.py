"""Noise of the sense lines against its closed form, recall on real keys, and the cycles."""

import numpy as np
import pytest

from golden.algorithms.unicaim.cycles import conversion_cycles, step_cycles
from golden.algorithms.unicaim.selection import top_k
from golden.algorithms.unicaim.spread import (
    recall,
    recall_against_spread,
    spread_in_levels,
    spread_scores,
)
from golden.unicaim.cells import key_levels, key_step, query_levels, row_scores


def test_54_mv_in_levels():
    """1.2 V hold the 8 distances between the 9 levels of a 3-bit cell, 150 mV each."""
    assert spread_in_levels() == pytest.approx(54 / 150)
    assert spread_in_levels(0.054, key_bits=1, window=1.0) == pytest.approx(0.108)


@pytest.mark.parametrize("query_bits", [1, 3])
def test_no_spread_gives_the_scores(query_bits):
    rng = np.random.default_rng(0)
    keys, queries = rng.integers(-4, 5, (7, 16)), rng.integers(-1, 2, (5, 16))
    scores = spread_scores(keys, queries, query_bits, 0.0, 3, rng)
    np.testing.assert_array_equal(scores, [row_scores(keys, queries)] * 3)


@pytest.mark.parametrize(("digit", "variance"), [(1, 128), (-1, 128), (0, 64)])
def test_noise_of_a_row(digit, variance):
    """Var = d spread^2 for digits of one sign, half of it for zeros; no mean."""
    keys, queries = np.zeros((50, 128), int), np.full((1, 128), digit)
    noise = spread_scores(keys, queries, 1, 0.5, 200, np.random.default_rng(1)).ravel()
    assert noise.std() == pytest.approx(0.5 * variance**0.5, rel=0.03)
    assert abs(noise.mean()) < 4 * noise.std() / 100


def test_noise_of_planes():
    """A query of 3 bits at level 5 = 101b reads each device as often as its planes say."""
    keys, queries = np.zeros((50, 128), int), np.full((1, 128), 5)
    noise = spread_scores(keys, queries, 3, 1.0, 200, np.random.default_rng(2)).ravel()
    # Planes 1 and 4 read device a whole, plane 2 half of each: (4 + 1 + 1) a + 1 b.
    assert noise.std() == pytest.approx((128 * (6**2 + 1)) ** 0.5, rel=0.03)


def test_devices_stay_while_a_row_is_kept():
    """Equal queries have equal noise; opposite digits read different devices."""
    rng = np.random.default_rng(3)
    queries = np.array([[1] * 64, [1] * 64, [-1] * 64])
    noise = spread_scores(np.zeros((400, 64), int), queries, 1, 1.0, 10, rng)
    np.testing.assert_array_equal(noise[:, 0], noise[:, 1])
    assert abs(np.corrcoef(noise[:, 0].ravel(), noise[:, 2].ravel())[0, 1]) < 0.1


def test_linear_over_the_whole_range():
    """Fig. 9(b): with 54 mV, 128 cells stay linear in their score, within 4 of 1025 scores."""
    rng = np.random.default_rng(4)
    cells = np.where(np.arange(128) < np.arange(129)[:, None], 1, -1)
    keys = np.concatenate([level * cells for level in (1, 2, 3, 4)])
    queries = np.where(rng.random((1, 128)) < 0.5, 1, -1)
    keys *= queries
    exact = row_scores(keys, queries)[0]
    shown = spread_scores(keys, queries, 1, spread_in_levels(), 50, rng)[:, 0]
    slope, offset = np.polyfit(np.tile(exact, 50), shown.ravel(), 1)
    error = shown - slope * exact - offset
    assert exact.min() == -512 and exact.max() == 512
    assert slope == pytest.approx(1, abs=2e-3) and abs(offset) < 0.2
    assert error.std() == pytest.approx(spread_in_levels() * 128**0.5, rel=0.05)
    assert 1 - error.var() / shown.var() > 0.999


def test_recall():
    reference = np.array([[True, True, False, False], [False, False, True, True]])
    selected = np.array([[[True, False, True, False], [False, False, True, True]]] * 2)
    assert recall(selected, reference) == 0.75


def test_recall_against_spread_on_a_real_model(shipped_trace):
    """1 without spread and falling towards chance; 54 mV cost a quarter to a half of the rows."""
    k = shipped_trace.k[1, :, :448].astype(np.float64)
    levels = key_levels(k, key_step(k, 3), 3)[0]
    q = shipped_trace.q[1, 0, 448:].astype(np.float64)
    digits = query_levels(q, 1)
    spreads = (0.0, spread_in_levels(0.02), spread_in_levels(), spread_in_levels(0.2), 50.0)
    curve = recall_against_spread(levels, digits, 1, 64, spreads, trials=4)
    assert curve[0] == 1
    assert (np.diff(curve) < 0).all()
    assert 0.5 < curve[2] < 0.75
    assert curve[4] == pytest.approx(64 / 448, abs=0.05)
    exact = top_k(q @ k[0].T, 64)
    against = recall_against_spread(levels, digits, 1, 64, spreads, trials=4, reference=exact)
    assert (against <= curve + 0.02).all()
    assert against[0] == recall(top_k(row_scores(levels, digits), 64), exact)


def test_cycles():
    """10 cycles for the 64 rows selected, 90 for all 576 (section IV-A)."""
    assert conversion_cycles(64) == 10
    assert conversion_cycles(576) == 90
    assert conversion_cycles(65) == 20
    assert conversion_cycles(0) == 0
    assert conversion_cycles(576, converters=32, cycles=8) == 144


def test_selection_takes_the_same_time_for_any_number_of_rows():
    assert {step_cycles(rows, 64) for rows in (64, 576, 10_000)} == {11}
    assert step_cycles(30, 64) == 11
    assert step_cycles(576, 576) == 91
    assert step_cycles(64, 128) == 11
