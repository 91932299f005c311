"""The row encoder: its model against rational numbers, and sizes other than the presets."""

import bisect
from fractions import Fraction

import numpy as np
import pytest

from golden.tsuru.row_encoder import encode
from golden.tsuru.row_format import LARGEST_SCALE, fine_values, scale_values
from hw.catalogue import find
from hw.tsuru.row_encoder import RowEncoderParameters
from sim.testbenches.tsuru.operands import random_rows
from sim.testbenches.tsuru.row_encoder import stimulus_of, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("tsuru.row_encoder")
ODD = [
    RowEncoderParameters(d=2, lanes=2, fraction=6),
    RowEncoderParameters(d=16, lanes=1, fraction=1),
    RowEncoderParameters(d=32, lanes=32, fraction=5),
]
SCALES = [Fraction(float(s)) for s in scale_values(np.arange(8, LARGEST_SCALE + 1, dtype=np.uint8))]
# A root mean square from which a scale is taken, squared; the first is 8. The one below it would
# be 1.875 2^-15.
EDGES = [
    ((a + b) / 2) ** 2
    for a, b in zip([SCALES[0] * Fraction(15, 16), *SCALES], SCALES, strict=False)
]


def levels(fraction: int) -> list[Fraction]:
    """Levels without signs, in units of the scale, by code."""
    one = np.array(15 << 3, np.uint8)
    found = fine_values(np.arange(1 << fraction + 2), one, fraction)
    return [Fraction(float(value)) for value in found]


def rational(row: np.ndarray, fraction: int) -> tuple[int, list[int], list[int]]:
    """Scale, fine codes and search codes of a row that is finite, by their definition."""
    x = [Fraction(float(value)) for value in row]
    signs = np.signbit(row).tolist()
    scale = bisect.bisect(EDGES, sum(value**2 for value in x) / len(x)) + 7
    if scale < 8:
        return 0, [sign << fraction + 2 for sign in signs], [sign << 1 for sign in signs]
    of = levels(fraction)
    edges = [(a + b) / 2 for a, b in zip(of, of[1:], strict=False)]
    size = [abs(value) / SCALES[scale - 8] for value in x]
    both = list(zip(size, signs, strict=True))
    fine = [bisect.bisect(edges, s) | sign << fraction + 2 for s, sign in both]
    return scale, fine, [int(s >= 1) | sign << 1 for s, sign in both]


@pytest.mark.parametrize("fraction", range(1, 7))
@pytest.mark.parametrize("d", [2, 8, 64])
def test_codes_are_those_of_rational_numbers(d, fraction):
    x = random_rows(d, 640 // d + 40, np.random.default_rng(fraction))
    x = x[np.isfinite(x).all(axis=1)]
    found = encode(x, fraction)
    for row, *codes in zip(x, *found, strict=True):
        scale, fine, search = rational(row, fraction)
        assert codes[0] == scale, row
        assert codes[1].tolist() == fine, row
        assert codes[2].tolist() == search, row


@pytest.mark.parametrize("exponent", [-14, -3, 0, 12])
def test_ties(exponent):
    """Rows of one magnitude: the root mean square is exact, and between two scales goes up."""
    for n in range(16, 32):
        row = np.full(4, n / 16 * 2.0**exponent, np.float16)
        row[1::2] *= -1
        scale = int(encode(row, 4).scale)
        assert scale == (exponent + 15) * 8 + (n - 16 + 1) // 2
    # Elements between two levels go away from zero.
    x = np.array([4, -4, 2 + 1 / 32, -(2 + 1 / 32), 1 + 1 / 32, 0.984375, 0, 0], np.float64)
    scale = encode(x.astype(np.float16), 4).scale
    s = float(scale_values(scale))
    assert s == 2.25
    x = s * np.array([1.03125, -1.03125, 2.0625, 0.484375, 0.015625, 0, 0, 0])
    x[5:] = np.sqrt((8 * s**2 - np.sum(x**2)) / 3)
    row = x.astype(np.float16)
    codes = encode(row, 4)
    assert codes.scale == scale and (row[:5] == x[:5]).all()
    assert fine_values(codes.fine, scale, 4)[:5].tolist() == [
        s * level for level in (1.0625, -1.0625, 2.125, 0.5, 0.03125)
    ]


def test_the_error_is_that_of_the_levels():
    """On normal elements 36.7 dB with 7 bits, 9.2 dB with 2; the scale's rounding is in it."""
    x = np.random.default_rng(3).standard_normal((500, 64)).astype(np.float16)
    rows = encode(x, 4)
    exact = x.astype(np.float64)
    found = fine_values(rows.fine, rows.scale, 4)
    loss = 10 * np.log10(np.square(found - exact).sum() / np.square(exact).sum())
    assert -36.9 < loss < -36.3
    large, negative = rows.search & 1, rows.search >> 1
    coarse = (0.5 + large) * (1 - 2.0 * negative) * scale_values(rows.scale)[:, None]
    loss = 10 * np.log10(np.square(coarse - exact).sum() / np.square(exact).sum())
    assert -9.4 < loss < -9.0


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_row_that_is_not_finite(value):
    x = np.full((2, 8), -1, np.float16)
    x[1, 2] = value
    rows = encode(x, 4)
    assert rows.scale.tolist() == [15 * 8, 255]
    assert not (rows.fine[1] & 63).any() and not (rows.search[1] & 1).any()
    assert np.isnan(fine_values(rows.fine, rows.scale, 4)).all(axis=1).tolist() == [False, True]


def test_rows_of_little_and_of_much():
    least = np.full(8, 2.0**-14, np.float16)
    assert encode(least, 4).scale == 8
    # The middle to what would be the scale below.
    for units, scale in ((992, 8), (991, 0)):
        assert encode(np.full(8, units * 2.0**-24, np.float16), 4).scale == scale
    assert encode(np.full(8, -65504, np.float16), 4).scale == LARGEST_SCALE
    rows = encode(np.array([0.0, -0.0] * 4, np.float16), 4)
    assert rows.scale == 0
    assert rows.fine.tolist() == [0, 64] * 4 and rows.search.tolist() == [0, 2] * 4
    # One element has all: it saturates, at 3.875 times the scale.
    x = np.zeros(128, np.float16)
    x[77] = -1000
    rows = encode(x, 4)
    assert rows.fine[77] == 127 and np.count_nonzero(rows.fine) == 1


@pytest.mark.parametrize("p", ODD, ids=lambda p: p.slug())
def test_odd_sizes_under_stalls(p, shipped_trace):
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(p, trace, 150, seed=6))


def test_every_exponent_and_a_reset(shipped_trace):
    """Rows of every size, down to FP16's least and up to its largest, one element at times."""
    p = RowEncoderParameters(d=8, lanes=2)
    rng = np.random.default_rng(7)
    rows = [rng.uniform(-2, 2, p.d) * 2.0**e for e in range(-26, 16) for _ in range(8)]
    rows += [np.eye(p.d)[e % p.d] * 2.0**e for e in range(-24, 16)]
    x = np.clip(rows, -65504, 65504).astype(np.float16)
    stimulus = stimulus_of(p, x, [])
    compiled = Compiled(BLOCK, p)
    compiled.check(stimulus)
    other = testbench.stimulus(p, shipped_trace, 20, seed=8)
    for beats in range(1, 4):
        compiled.check_after_a_cut(stimulus, beats, "random", other)
