"""Sums and gated products of two numbers: errors over all gates, special operands, the RTL."""

import math

import numpy as np
import pytest

from golden.arith.float_convert import round_to
from golden.arith.formats import from_bits, is_nan, to_bits
from golden.attention import pair_function as golden
from golden.attention.pair_function import GELU_PRODUCT, PRODUCT, SILU_PRODUCT, SUM, pair_function
from hw.attention import pair_function as hw
from hw.attention.pair_function import PairFunctionParameters, PairOperation
from hw.catalogue import find
from sim.testbenches.attention.pair_function import drawn_pairs
from tests.support.arith.functions import every, float64, run, simulate

BLOCK = find("attention.pair_function")
X = every("fp16")
FINITE = X[np.isfinite(X)]


def random_bits(count: int, seed: int) -> np.ndarray:
    return from_bits(np.random.default_rng(seed).integers(0, 1 << 16, count), "fp16")


def gated(op: int, x: np.ndarray) -> np.ndarray:
    """SiLU or GELU, by tanh, in float64."""
    argument = x
    if op == GELU_PRODUCT:
        argument = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-argument))


@pytest.mark.parametrize(("op", "relative"), [(SILU_PRODUCT, 2**-12.0), (GELU_PRODUCT, 2**-11.6)])
def test_errors_of_every_gate(op, relative):
    """Half a unit and `relative` of the product, whatever the factor; subnormal ones included."""
    factors = [1, -1.9990234375, 65504, -(2.0**-24), 3.1e-5, 1023 / 2**24]
    rng = np.random.default_rng(op)
    columns = [np.full(len(FINITE), factor) for factor in factors]
    columns += [random_bits(len(FINITE), seed).astype(np.float64) for seed in (1, 2)]
    worst = 0.0
    for column in columns:
        b = np.where(np.isfinite(column), column, rng.standard_normal(len(FINITE)))
        b = b.astype(np.float16)
        exact = gated(op, float64(FINITE)) * float64(b)
        found = float64(pair_function(FINITE, b, op))
        unit = np.exp2(np.maximum(np.frexp(exact)[1] - 1, -14) - 10.0)
        allowed = 0.5 * unit * (1 + 2**-12) + relative * np.abs(exact)
        large = np.abs(exact) >= 65504
        assert (np.abs(found) >= 65504 * (1 - 2 * relative))[large].all()
        error = (np.abs(found - exact) / allowed)[~large & np.isfinite(found)]
        assert np.isfinite(found[np.abs(exact) < 65504 * (1 - 2 * relative)]).all()
        worst = max(worst, error.max())
    assert 0.6 < worst <= 1  # tight enough to say something


@pytest.mark.parametrize("op", [SUM, PRODUCT])
def test_sum_and_product_are_correctly_rounded(op):
    a, b = random_bits(200_000, 3), random_bits(200_000, 4)
    near = from_bits(to_bits(a) ^ 0x8001, "fp16")  # sums that cancel
    for second in (b, near):
        x, y = float64(a), float64(second)
        with np.errstate(all="ignore"):
            exact = x + y if op == SUM else x * y  # exact in float64
        found = pair_function(a, second, op)
        np.testing.assert_array_equal(is_nan(found), np.isnan(exact))
        wanted = round_to(np.where(np.isnan(exact), 0, exact), "fp16")
        known = ~np.isnan(exact)
        np.testing.assert_array_equal(to_bits(found)[known], to_bits(wanted)[known])


def test_special_operands():
    inf, nan = np.inf, np.nan
    table = [
        # a, b: a + b, a b, SiLU(a) b, GELU(a) b
        (inf, inf, inf, inf, inf, inf),
        (inf, -inf, nan, -inf, -inf, -inf),
        (-inf, inf, nan, -inf, nan, nan),
        (-inf, 2, -inf, -inf, -0.0, -0.0),
        (-inf, -2, -inf, inf, 0.0, 0.0),
        (-60000, inf, inf, -inf, -inf, -inf),  # SiLU is below any number, yet not 0
        (inf, 0, inf, nan, nan, nan),
        (0, inf, inf, nan, nan, nan),
        (nan, 1, nan, nan, nan, nan),
        (1, nan, nan, nan, nan, nan),
        (-0.0, 1, 1, -0.0, -0.0, -0.0),
        (-0.0, -0.0, -0.0, 0.0, 0.0, 0.0),
        (65504, 65504, inf, inf, inf, inf),
        (-65504, 65504, 0.0, -inf, -0.0, -0.0),
    ]
    for a, b, *wanted in table:
        for op, want in enumerate(wanted):
            got = pair_function(np.float16(a), np.float16(b), op)
            note = f"{a} {PairOperation(op).name} {b}: {got}"
            assert to_bits(got) == to_bits(np.float16(want)) or (is_nan(got) and want != want), note


def test_every_nan_comes_out_as_the_canonical_one():
    for op in range(4):
        for pair in ((X[is_nan(X)], np.float16(1)), (np.float16(1), X[is_nan(X)])):
            assert set(to_bits(pair_function(*pair, op)).tolist()) == {0x7E00}


def test_constants_are_the_models():
    slope = 2 * math.sqrt(2 / math.pi)
    assert (hw.GELU_SLOPE, hw.GELU_CUBE) == (golden.SLOPE, golden.CUBE)
    assert (round(slope * 2**34), round(slope * 0.044715 * 2**20)) == (golden.SLOPE, golden.CUBE)


@pytest.mark.campaign
@pytest.mark.parametrize("stages", [0, 8])
def test_every_gate_through_the_rtl(stages):
    """Every gate with any factor, by the unit's gates."""
    a, b = np.tile(X, 2), random_bits(2 << 16, 9)
    op = np.repeat([SILU_PRODUCT, GELU_PRODUCT], len(X))
    assert run(BLOCK, PairFunctionParameters(stages=stages), {"a": a, "b": b, "op": op}) == 0


@pytest.mark.campaign
@pytest.mark.parametrize("stages", range(1, 9))
def test_numbers_of_stages(stages):
    a, b, op = drawn_pairs(60, np.random.default_rng(stages))
    operands = {"a": a, "b": b, "op": op}
    assert simulate(BLOCK, PairFunctionParameters(stages=stages), operands) == 0
