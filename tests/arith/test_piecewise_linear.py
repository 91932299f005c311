# amaranth: UnusedElaboratable=no
"""Straight lines over intervals: fitted by least squares, run with every operand."""

import dataclasses

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden.arith.formats import from_bits, to_bits
from golden.arith.piecewise_linear import lines_of, piecewise_linear
from hw.arith.float_format import FORMATS
from hw.arith.piecewise_linear import PiecewiseLinear, PiecewiseLinearParameters
from hw.arith.tables.lines import Lines, exponential, nearest
from hw.catalogue import find
from tests.support.arith.functions import every, run

BLOCK = find("arith.piecewise_linear")

# Largest errors of e^x in FP16, rounding included.
BOUNDS = {2: 0.184, 5: 0.0205, 8: 0.0074, 13: 0.00265, 16: 0.0018}


@pytest.mark.parametrize("name", FORMATS)
def test_nearest_rounds_as_numpy_does(name):
    dtype = from_bits(np.zeros(1, np.uint32), name).dtype
    rng = np.random.default_rng(1)
    values = rng.standard_normal(3000) * 2.0 ** rng.integers(-20, 4, 3000)
    values = np.concatenate([values, [0.0, -0.0, 1.0, 2.0**-9, 3 * 2.0**-10, 2.0**-24, 1.5]])
    # ml_dtypes rounds through float32, and so does this.
    values = values.astype(np.float32).astype(np.float64)
    expected = to_bits(values.astype(dtype)).tolist()
    assert [nearest(v, FORMATS[name]) for v in values.tolist()] == expected
    assert nearest(1e30, FORMATS["fp16"]) == FORMATS["fp16"].largest


@pytest.mark.parametrize("intervals", BOUNDS)
def test_lines_are_least_squares(intervals):
    bounds, slopes, intercepts = lines_of(
        dataclasses.astuple(exponential(intervals, FORMATS["fp32"])), np.float32
    )
    assert slopes[0] == intercepts[0] == 0
    ends = [*bounds, 0.0]
    assert (np.diff(ends) > 0).all()
    lines = zip(ends[:-1], ends[1:], slopes[1:], intercepts[1:], strict=True)
    for low, high, slope, intercept in lines:
        x = np.linspace(low, high, 20_001, dtype=np.float64)
        fitted = np.polyfit(x, np.exp(x), 1)
        assert np.allclose([slope, intercept], fitted, atol=2e-4 * (high - low))


@pytest.mark.parametrize("intervals", BOUNDS)
def test_error_over_all_operands(intervals):
    parameters = PiecewiseLinearParameters(intervals=intervals)
    x = every("fp16")
    x = x[x.astype(np.float64) <= 0]
    y, interval = piecewise_linear(x, *lines_of(dataclasses.astuple(parameters.lines), x.dtype))
    errors = np.abs(y.astype(np.float64) - np.exp(x.astype(np.float64)))
    print(f"{intervals} intervals: at most {errors.max():.5f} off")
    assert len(x) > 31_000
    assert errors.max() < BOUNDS[intervals]
    assert set(interval) == set(range(intervals))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"intervals": 13, "stages": 1},
        {"intervals": 16, "stages": 2, "flush_subnormals": True},
        {"format": "bf16", "stages": 4},
        {"format": "fp8_e4m3", "intervals": 5, "stages": 3},
        {"format": "fp8_e5m2", "intervals": 2},
    ],
    ids=str,
)
def test_hardware_at_every_operand(settings):
    parameters = PiecewiseLinearParameters(**settings)
    assert run(BLOCK, parameters, {"x": every(parameters.format)}) == 0


def test_other_lines():
    """Lines of the user's own, with positive bounds and zero."""
    bits = [
        nearest(v, FORMATS["fp16"]) for v in (-1.5, 0.0, 0.75, 2.0, 0.0, -1.0, 0.5, 1.0, 3.0, 0.25)
    ]
    lines = Lines(tuple(bits[:3]), tuple(bits[3:7]), tuple(bits[6:]))
    unit = PiecewiseLinear(PiecewiseLinearParameters(intervals=4), lines)
    x = every("fp16")[::97]
    y, interval = piecewise_linear(x, *lines_of(dataclasses.astuple(lines), x.dtype))
    got = []

    async def testbench(ctx):
        for bits in to_bits(x).tolist():
            ctx.set(unit.x, bits)
            got.append((ctx.get(unit.y), ctx.get(unit.interval)))

    simulator = Simulator(unit)
    simulator.add_testbench(testbench)
    simulator.run()
    assert len(got) > 600
    assert got == list(zip(to_bits(y).tolist(), interval.tolist(), strict=True))
