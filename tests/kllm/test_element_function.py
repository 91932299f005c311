"""Element-wise functions: errors over all operands, every operand through the RTL."""

import numpy as np
import pytest

from golden.arith.formats import is_nan, to_bits
from golden.kllm.element_function import EXP, RECIPROCAL, SILU, SQUARE_ROOT, element_function
from hw.catalogue import find
from hw.kllm.element_function import ElementFunctionParameters, Function
from tests.support.arith.functions import every, float64, run, simulate, ulp_errors
from tests.support.campaign import suite_takes

BLOCK = find("kllm.element_function")
X = every("fp16")


def of(op: int) -> np.ndarray:
    return element_function(X, np.full(X.shape, op))


def exact(op: int) -> np.ndarray:
    x = float64(X)
    with np.errstate(all="ignore"):
        silu = np.where(np.isneginf(x), -0.0, x / (1 + np.exp(-x)))
        return [np.exp(x), silu, 1 / x, np.sqrt(x)][op]


@pytest.mark.parametrize(
    ("op", "bound"), [(EXP, 0.7022), (SILU, 0.9019), (RECIPROCAL, 1.0), (SQUARE_ROOT, 0.5)]
)
def test_errors_of_every_operand(op, bound, capsys):
    errors = ulp_errors(of(op), exact(op))
    assert len(errors) == 65536
    with capsys.disabled():
        print(f"\n{Function(op).name}: at most {errors.max():.4f} ulp at {X[errors.argmax()]}")
    assert errors.max() <= bound


def test_special_operands():
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 65504, -65504], np.float16)
    want = {
        EXP: [np.inf, 0, np.nan, 1, 1, np.inf, 0],
        SILU: [np.inf, -0.0, np.nan, 0, -0.0, 65504, -0.0],
        RECIPROCAL: [0, -0.0, np.nan, np.inf, -np.inf, 2.0**-16, -(2.0**-16)],
        SQUARE_ROOT: [np.inf, np.nan, np.nan, 0, -0.0, 255.875, np.nan],
    }
    for op, values in want.items():
        got = element_function(x, np.full(x.shape, op))
        np.testing.assert_array_equal(to_bits(got), to_bits(np.array(values, np.float16)))


def test_every_nan_comes_out_as_the_canonical_one():
    for op in (EXP, SILU, RECIPROCAL, SQUARE_ROOT):
        assert set(to_bits(of(op))[is_nan(X)]) == {0x7E00}


def test_exponential_never_decreases():
    order = np.argsort(float64(X[~is_nan(X)]), kind="stable")
    assert (np.diff(of(EXP)[~is_nan(X)][order][1:-1].clip(max=65504)) >= 0).all()


@pytest.mark.parametrize("stages", suite_takes([0], [0, 6]))
def test_every_operand_through_the_rtl(stages):
    """Without registers, and with those at every point that can be cut."""
    operands = {"x": np.tile(X, 4), "op": np.repeat(np.arange(4), len(X))}
    assert len(operands["x"]) == 4 << 16
    assert run(BLOCK, ElementFunctionParameters(stages=stages), operands) == 0


@pytest.mark.campaign
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
def test_other_numbers_of_stages(stages):
    rng = np.random.default_rng(stages)
    operands = {"x": rng.uniform(-12, 12, 200).astype(np.float16), "op": rng.integers(0, 4, 200)}
    assert simulate(BLOCK, ElementFunctionParameters(stages=stages), operands) == 0
