"""Trees of adders: exact sums, rounding in the documented order, every number of stages."""

import numpy as np
import pytest

from golden.arith.adder_tree import adder_tree
from golden.arith.float_add import float_add
from hw.arith.adder_tree import AdderTreeParameters, spread
from hw.catalogue import find
from hw.emit.export import export
from sim.drivers.run import load_testbench
from tests.support.arith.functions import run

BLOCK = find("arith.adder_tree")


def drawn(parameters, count=20_000, seed=1):
    return load_testbench(BLOCK).draw(parameters, None, count, seed)[0]


def test_order_of_five():
    values = np.random.default_rng(1).standard_normal((1000, 5)).astype(np.float16)
    a, b, c, d, e = values.T
    expected = float_add(float_add(float_add(a, b), float_add(c, d)), e)
    assert (adder_tree(values) == expected).all()
    flat = float_add(float_add(float_add(float_add(a, b), c), d), e)
    assert (expected != flat).sum() > 100  # the order matters


def test_neighbours_in_pairs():
    values = np.random.default_rng(2).standard_normal((1000, 8)).astype(np.float32)
    while values.shape[1] > 1:
        reference = values[:, ::2] + values[:, 1::2]
        assert (adder_tree(values[:, :2]) == reference[:, 0]).all()
        if values.shape[1] == 8:
            whole = adder_tree(values)
        values = reference
    assert (whole == values[:, 0]).all()


def test_maximum_is_numpys():
    values = np.random.default_rng(3).standard_normal((1000, 7)).astype(np.float16)
    assert (adder_tree(values, "max") == values.max(axis=1)).all()


@pytest.mark.parametrize("stages, units", [(0, 3), (1, 3), (2, 3), (3, 3), (5, 3), (12, 3), (7, 1)])
def test_spread(stages, units):
    parts = spread(stages, units)
    assert sum(parts) == stages and len(parts) == units
    assert max(parts) - min(parts) <= 1
    assert not stages or parts[-1]


@pytest.mark.parametrize(
    "settings",
    [
        {"n": 5, "stages": 5},
        {"n": 7, "format": "fp8_e5m2", "flush_subnormals": True, "stages": 12},
        {"n": 6, "operation": "max", "stages": 3},
        {"n": 3, "format": "bf16", "stages": 1},
        {"n": 3, "format": "fixed", "width": 1, "signed": False},
        {"n": 9, "format": "fixed", "width": 12, "stages": 2},
        {"n": 33, "format": "fixed", "width": 10, "signed": False, "stages": 3},
    ],
    ids=str,
)
def test_hardware(settings):
    parameters = AdderTreeParameters(**settings)
    assert run(BLOCK, parameters, drawn(parameters)) == 0


@pytest.mark.parametrize("signed", [False, True])
def test_extreme_fixed_point_sums(signed):
    parameters = AdderTreeParameters(n=6, format="fixed", width=5, signed=signed)
    low, high = (-16, 15) if signed else (0, 31)
    choices = np.array([low, high, 0, 1, low + 1])
    every = np.stack(np.meshgrid(*[choices] * 6), axis=-1).reshape(-1, 6)
    assert every.sum(axis=1).min() == 6 * low and every.sum(axis=1).max() == 6 * high
    assert run(BLOCK, parameters, {"i": every}) == 0


def test_one_module_for_all_equal_adders():
    verilog = export(BLOCK, AdderTreeParameters(n=32, stages=5)).verilog
    assert verilog.count("\nmodule ") + verilog.startswith("module ") <= 3
