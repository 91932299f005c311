"""Rows of a step: by hand, and against a run's own counts."""

import numpy as np
import pytest

from golden.algorithms.lad import LocalityAwareAttention
from golden.algorithms.lad.rows import average, measure_rows, rows_of_step


def test_rows_by_hand():
    """d = 8: a row has 128 bits, so one position's 8 x 11 counter bits; n = 20, window 4.

    The head has J = {3} and the window. Codes of 4 bits: 16 / 4 rows and 2 of units.
    """
    active = np.zeros((1, 20), bool)
    active[0, [3, 16, 17, 18, 19]] = True
    sizes = {"d": 8, "intervals": 8, "window": 4, "code_bits": 4}
    rows = rows_of_step(active, large=2, centres=None, **sizes)
    assert (rows.n, rows.active_share, rows.large_share) == (20, 0.25, 0.1)
    assert (rows.g, rows.identification, rows.exact, rows.active) == (3, 6, 6, 10)
    assert (rows.counters, rows.caches, rows.written) == (4, 23, 3 + 4 + 23)
    assert rows.read == 3 + 6 + 6 + 10 + 4 + 23
    assert rows.moved == rows.read + 30
    centres = rows_of_step(active, large=2, centres=12.5, **sizes)
    assert centres.identification == 12.5 + 3 * 3
    assert centres.read - rows.read == 12.5 + 9 - 6


def test_counters_that_share_a_row_are_read_once():
    """d = 64: 1024 bits, eight positions' counters; J = 0 to 9 are in two rows, 30 in another."""
    active = np.zeros((2, 40), bool)
    active[0, :10] = active[0, 30] = True
    rows = rows_of_step(active, large=0, centres=None, d=64, intervals=8, window=1, code_bits=6)
    assert rows.counters == (3 + 0) / 2


@pytest.mark.parametrize("identification", ["centres", "codes"])
def test_measured_rows_are_the_run_s(identification):
    """The average over four steps after a dense prompt, of two heads of one kv head."""
    rng = np.random.default_rng(1)
    q = np.cumsum(rng.normal(size=(2, 60, 8)), axis=1) / 2
    k, v = rng.normal(size=(2, 1, 60, 8))
    options = {"identification": identification, "slack": 1e-3}
    (at_30, at_60) = measure_rows(q, k, v, (30, 60), last=4, **options)
    attention, sizes, large = LocalityAwareAttention(counter_bits=11, **options), [], []
    attention.prefill(q[:, :56], k[:, :56], v[:, :56])
    for t in range(56, 60):
        before = attention.statistics.large
        attention.step(q[:, t], k[:, t], v[:, t])
        sizes.append(attention.active.sum() / 2 / (t + 1))
        large.append((attention.statistics.large - before) / 2)
    assert (at_30.n, at_60.n) == (30, 60)
    assert at_60.active_share == pytest.approx(np.mean(sizes))
    assert at_60.exact == pytest.approx(16 + np.mean(large))
    # Almost all random keys are centres: one row each, and norm, dnorm, cid in 8 rows each.
    expected = {"codes": (17, 23), "centres": (60, 84)}[identification]
    assert expected[0] <= at_60.identification <= expected[1]
    assert average([at_30, at_60]).n == 45
