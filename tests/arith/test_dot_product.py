"""Dot products: exact integers, roundings in order, and a design of 128 products."""

import time

import numpy as np
import pytest

from golden.arith.dot_product import dot_product
from golden.arith.float_add import float_add
from golden.arith.float_multiply import float_multiply
from hw.arith.dot_product import DotProductParameters
from hw.catalogue import find
from hw.emit.export import export
from sim.drivers.run import load_testbench
from tests.support.arith.functions import run

BLOCK = find("arith.dot_product")


def drawn(parameters, count=20_000, seed=1):
    return load_testbench(BLOCK).draw(parameters, None, count, seed)[0]


def test_golden_rounds_every_product_and_sum():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 2000, 3)).astype(np.float16)
    p = float_multiply(a, b)
    expected = float_add(float_add(p[:, 0], p[:, 1]), p[:, 2])
    assert (dot_product(a, b) == expected).all()
    exact = (a.astype(np.float64) * b).sum(axis=1)
    fused = exact.astype(np.float16)
    assert 0 < (expected != fused).mean() < 1
    scale = np.abs(a.astype(np.float64) * b).sum(axis=1)
    errors = np.abs(expected.astype(np.float64) - exact) / scale
    print(f"error at most {errors.max() * 2048:.3f} half units of the products' sum")
    assert errors.max() < 3 / 2048


def test_operands_make_mostly_numbers():
    a = drawn(DotProductParameters(n=16))["a"]
    finite = np.isfinite(a.astype(np.float64)).all(axis=1).mean()
    assert 0.9 < finite < 0.99


@pytest.mark.parametrize(
    "settings",
    [
        {"n": 4, "format": "fp8_e4m3"},
        {"n": 5, "stages": 4},
        {"n": 3, "flush_subnormals": True, "stages": 12},
        {"n": 2, "format": "bf16", "stages": 1},
        {"n": 4, "format": "fixed"},
        {"n": 5, "format": "fixed", "a_width": 12, "b_width": 4, "b_signed": False},
        {"n": 3, "format": "fixed", "a_signed": False, "b_width": 3, "stages": 3},
        {"n": 4, "format": "fixed", "a_signed": False, "b_signed": False, "stages": 2},
        {"n": 2, "format": "fixed", "a_width": 1, "b_width": 1, "stages": 1},
    ],
    ids=str,
)
def test_hardware(settings):
    parameters = DotProductParameters(**settings)
    assert run(BLOCK, parameters, drawn(parameters)) == 0


@pytest.mark.parametrize("a_signed", [False, True])
@pytest.mark.parametrize("b_signed", [False, True])
def test_every_pair_of_two_small_products(a_signed, b_signed):
    parameters = DotProductParameters(
        n=2, format="fixed", a_width=3, a_signed=a_signed, b_width=3, b_signed=b_signed
    )
    a, b = np.arange(8) - 4 * a_signed, np.arange(8) - 4 * b_signed
    every = np.stack(np.meshgrid(a, a, b, b), axis=-1).reshape(-1, 4)
    assert len(every) == 4096
    assert run(BLOCK, parameters, {"a": every[:, :2], "b": every[:, 2:]}) == 0


@pytest.mark.campaign
def test_128_products_are_generated_in_seconds():
    begin = time.process_time()
    verilog = export(BLOCK, DotProductParameters(n=128, stages=8)).verilog
    took = time.process_time() - begin
    modules = [line for line in verilog.splitlines() if line.startswith("module ")]
    print(f"{took:.1f} s of this process, {len(modules)} modules, {len(verilog)} bytes")
    assert len(modules) == 4  # product, multiplier, tree, adder
    assert took < 20


@pytest.mark.campaign
def test_128_products():
    parameters = DotProductParameters(n=128, stages=8)
    assert run(BLOCK, parameters, drawn(parameters, 2000)) == 0
