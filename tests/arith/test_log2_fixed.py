"""Logarithms: the promised bounds at every operand, and the hardware at every table entry."""

import numpy as np
import pytest

from golden.arith.log2_fixed import log2_fixed
from golden.arith.log2_fixed import logarithms as golden_logarithms
from hw.arith.log2_fixed import Log2FixedParameters, logarithms
from hw.catalogue import find
from sim.testbenches.arith.log2_fixed import integers
from tests.support.arith.functions import run

BLOCK = find("arith.log2_fixed")


def results(p, x):
    names = ("width", "precision", "output", "rounding")
    return log2_fixed(x, **{name: getattr(p, name) for name in names})


def ends(p) -> np.ndarray:
    """First and last operand of every run with the same exponent and table index."""
    whole = 1 << p.precision
    significands = np.arange(whole, 2 * whole)
    firsts = [
        (significands << e >> p.precision)[:: 1 << max(p.precision - e, 0)] for e in range(p.width)
    ]
    firsts = np.concatenate(firsts)
    return np.concatenate([[0], firsts, firsts[1:] - 1, [(1 << p.width) - 1]])


@pytest.mark.parametrize("rounding", ["down", "up"])
@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("precision, output", [(1, 1), (4, 5), (8, 12), (10, 10)])
def test_tables_by_decimal_and_by_integer_powers(precision, output, rounding, truncates):
    golden = golden_logarithms(precision, output, rounding, truncates)
    assert golden.shape == (1 << precision,)
    assert logarithms(precision, output, rounding, truncates) == tuple(golden.tolist())


@pytest.mark.parametrize("width, precision, output", [(11, 10, 10), (12, 6, 8), (16, 4, 3)])
def test_bounds_at_every_operand(width, precision, output):
    """2^y <= x^(2^output) < 2^(y + 1) and the like, in integers."""
    down, up = (
        Log2FixedParameters(width=width, precision=precision, output=output, rounding=way)
        for way in ("down", "up")
    )
    x = np.arange(1, 1 << width)
    power, unit = 1 << output, (1 << precision) + 1
    for value, y, z in zip(
        x.tolist(), results(down, x).tolist(), results(up, x).tolist(), strict=True
    ):
        raised = value**power
        assert 1 << y <= raised <= 1 << z
        if down.truncates:  # below y + u + log2(1 + 2^-precision), in which 2^-precision is exact
            assert raised << precision * power < unit**power << y + 1
            assert 1 << z - 1 + precision * power < unit**power * raised
        else:
            assert raised < 1 << y + 1
            assert 1 << z < 2 * raised
    assert results(down, np.array([0])) == results(down, np.array([1]))


@pytest.mark.parametrize("rounding", ["down", "up"])
def test_wide_operands_against_floating_point(rounding):
    """Every run of operands at both ends; margins are far above the error of float64."""
    p = Log2FixedParameters(width=48, rounding=rounding)
    x = np.unique(ends(p))[1:]
    errors = np.log2(x.astype(np.float64)) - results(p, x) / 2**p.output
    bound = 2**-p.output + np.log2(1 + 2**-p.precision)
    errors = -errors if rounding == "up" else errors
    print(f"{rounding}: errors {errors.min():.2e} to {errors.max():.2e}, bound {bound:.2e}")
    assert len(x) > 70_000
    assert errors.min() > -1e-12 and errors.max() < bound
    assert (np.diff(results(p, x)) >= 0).all()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rounding": "up", "width": 50, "stages": 1},
        {"stages": 2, "width": 33},
        {"stages": 3, "rounding": "up"},
        {"width": 11, "stages": 3},
    ],
    ids=str,
)
def test_hardware_at_every_table_entry(settings):
    p = Log2FixedParameters(**settings)
    drawn = integers(p.width, False, 100_000, np.random.default_rng(1))
    assert run(BLOCK, p, {"x": np.concatenate([ends(p), drawn])}) == 0
