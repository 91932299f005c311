"""The search: every bit under stalls, and its estimates against rational numbers."""

import numpy as np
import pytest

from golden.tsuru.row_format import scale_values, search_values
from golden.tsuru.row_search import LARGEST, aligned, estimates, merged
from golden.tsuru.stored_rows import PLANES, planes
from hw.catalogue import find
from hw.parameters import ParameterError
from hw.tsuru.row_search import RowSearchParameters
from sim.testbenches.tsuru.row_search import rotated, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("tsuru.row_search")
ODD = [
    RowSearchParameters(d=8, capacity=16, parallel=1, query_bits=4, sinks=0),
    RowSearchParameters(d=16, capacity=64, parallel=3, query_bits=11, sinks=2),
]


@pytest.mark.parametrize("p", ODD, ids=["smallest", "two sinks"])
def test_odd_sizes(p, shipped_trace):
    compiled = Compiled(BLOCK, p)
    for trace, seed in ((shipped_trace, 1), (None, 2)):
        compiled.check_all(testbench.stimulus(p, trace, 24, seed))


def exact(q: np.ndarray, scales: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """log2(e) q k of float64, of keys as their search codes say."""
    keys = search_values(codes) / 2 * scale_values(scales).astype(np.float64)[:, None]
    return q.astype(np.float64) @ keys.T * np.log2(np.e)


@pytest.mark.parametrize("bits", [6, 8, 11])
def test_estimates_are_scores_of_the_codes(bits):
    """Error: a product's factor by 2^-8.5, an element of q by half a unit, a sum by rounding."""
    rng = np.random.default_rng(3)
    q = rng.standard_normal((6, 64)).astype(np.float16)
    scales = rng.integers(13 << 3, 17 << 3, 200).astype(np.uint8)
    codes = rng.integers(0, 4, (200, 64)).astype(np.uint8)
    integers, top = aligned(q, bits)
    found = estimates(integers, top, scales, codes, bits) / 64
    # A unit is 2^(top - 25 + 12 - bits).
    unit = np.ldexp(1.0, top - 13 - bits)[:, None]
    wanted = exact(q, scales, codes)
    k = scale_values(scales).astype(np.float64)
    bound = np.abs(wanted) * 2**-8.4 + 1 / 64
    # The largest element may be cut by a unit, where it is all ones.
    bound += unit * (64 / 2 + 1) * 1.5 * k * np.log2(np.e) * 1.01
    assert (np.abs(found - wanted) <= bound).all(), "seed 3"
    assert np.abs(found - wanted).max() > 2**-8  # not only rounding of a number that is exact


def test_planes_make_a_sink_exact():
    """Four planes err by at most 2^-8 of the row's largest number, and a little."""
    rng = np.random.default_rng(5)
    k = (rng.standard_normal((20, 64)) * rng.choice([0.05, 1, 40], (20, 1))).astype(np.float16)
    for row in k:
        scales, codes = planes(row)
        halves = search_values(codes) / 2
        back = (halves * scale_values(scales).astype(np.float64)[:, None]).sum(axis=0)
        # A digit of plane 0 is worth two units of the aligned integer, whose largest is 255.
        unit = np.ldexp(1.0, np.frexp(np.abs(row.astype(np.float64)).max())[1] - 8)
        assert np.abs(back - row).max() <= 1.5 * unit


def test_planes_of_a_sink_are_added():
    e = np.arange(24).reshape(2, 12) * 3
    found, present = merged(e, 2, PLANES)
    assert found[:, 0].tolist() == e[:, :4].sum(axis=1).tolist()
    assert found[:, 4].tolist() == e[:, 4:8].sum(axis=1).tolist()
    assert present.tolist() == [True, False, False, False] * 2 + [True] * 4
    high, _ = merged(np.full((1, 8), LARGEST), 1, PLANES)
    assert high[0, 0] == LARGEST


def test_a_row_that_is_not_finite_has_the_largest_estimate():
    integers, top = aligned(rotated(np.ones((1, 8))), 8)
    codes = np.full((3, 8), 2, np.uint8)
    found = estimates(integers, top, np.array([255, 0, 120], np.uint8), codes, 8)
    assert found[0, 0] == LARGEST and found[0, 1] == 0 and found[0, 2] < 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d": 4}, "d must be a power of two from 8 to 256, not 4"),
        ({"capacity": 48}, "capacity must be a power of two from 16 to 4096, not 48"),
        ({"parallel": 0}, "parallel must be between 1 and 16, not 0"),
        ({"query_bits": 12}, "query_bits must be between 4 and 11, not 12"),
        ({"sinks": 3}, "sinks must be between 0 and 2, not 3"),
    ],
)
def test_sizes_that_are_refused(settings, message):
    with pytest.raises(ParameterError, match=message):
        RowSearchParameters(**settings)
