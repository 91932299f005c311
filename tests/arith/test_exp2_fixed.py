"""Powers of two: the promised bounds at every operand, and the hardware at every operand."""

import numpy as np
import pytest

from golden.arith.exp2_fixed import exp2_fixed
from golden.arith.exp2_fixed import significands as golden_significands
from hw.arith.exp2_fixed import Exp2FixedParameters, significands
from hw.catalogue import find
from tests.support.arith.functions import run

BLOCK = find("arith.exp2_fixed")
WIDTHS = [(1, 2), (4, 6), (6, 10), (8, 8), (8, 12), (10, 10), (10, 12), (10, 16)]


def results(p, x):
    named = {name: getattr(p, name) for name in ("fraction", "precision", "output", "rounding")}
    return exp2_fixed(x, **named)


@pytest.mark.parametrize("fraction, precision", WIDTHS)
def test_significands_by_integer_powers(fraction, precision):
    """s < 2^(precision - f / 2^fraction) <= s + 1, with both sides raised to the 2^fraction."""
    degree = 1 << fraction
    found = golden_significands(fraction, precision)
    assert len(found) == degree
    for f, s in enumerate(found.tolist()):
        exact = 1 << precision * degree - f
        assert s**degree < exact <= (s + 1) ** degree
    assert significands(fraction, precision) == tuple(found.tolist())


@pytest.mark.parametrize("settings", [{}, {"precision": 16, "output": 16}, {"integer": 8}])
def test_bounds_at_every_operand(settings):
    """With s as above, the rest is integer arithmetic: u = 1, p = 2^tail."""
    down, up = (Exp2FixedParameters(**settings, rounding=way) for way in ("down", "up"))
    x = np.arange(1 << (down.integer + down.fraction))
    tail, n = down.output - down.precision, (x >> down.fraction).tolist()
    s = golden_significands(down.fraction, down.precision)[x % (1 << down.fraction)].tolist()
    low, high = results(down, x).tolist(), results(up, x).tolist()
    worst = 0.0
    for bits, least, y, z in zip(n, s, low, high, strict=True):
        # y <= s 2^(tail - n) < y + 1, z - 1 < (s + 1) 2^(tail - n) <= z
        assert y << bits <= least << tail < (y + 1) << bits
        assert (z - 1) << bits < (least + 1) << tail <= z << bits
        assert z - y - 2 ** (tail - bits) <= 2
        worst = max(worst, z - y - 2 ** (tail - bits))
        assert tail or z == y + 1
    print(f"{len(x)} operands, up - down at most {worst:.3f} u above p 2^-n")
    assert (np.diff(low) <= 0).all() and (np.diff(high) <= 0).all()
    assert high[0] == 1 << down.output and low[0] == ((1 << down.precision) - 1) << tail


def test_against_floating_point():
    p = Exp2FixedParameters(fraction=12, precision=14, output=14)
    x = np.arange(1 << 17)
    exact = np.exp2(14 - x / 4096)
    errors = exact - results(p, x)
    print(f"errors {errors.min():.4f} to {errors.max():.4f} units")
    assert errors.min() > 0 and errors.max() <= 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stages": 1, "fraction": 8, "precision": 8, "output": 8},
        {"stages": 2, "rounding": "up"},
        {"stages": 3},
        {"integer": 0, "fraction": 12, "output": 12, "stages": 3},
        {"integer": 7, "fraction": 6, "output": 62, "rounding": "up"},
    ],
    ids=str,
)
def test_hardware_at_every_operand(settings):
    p = Exp2FixedParameters(**settings)
    x = np.arange(1 << (p.integer + p.fraction))
    assert run(BLOCK, p, {"x": x}) == 0
