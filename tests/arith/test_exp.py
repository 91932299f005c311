"""The exponential function: every operand of every format, in the model and in hardware."""

import numpy as np
import pytest

from golden.arith import exp as golden
from golden.arith.formats import DTYPES, flush, from_bits, to_bits
from hw.arith.exp import WIDTHS, ExpParameters, excess
from hw.catalogue import find
from sim.testbenches.arith.operands import random_floats
from tests.support.arith.functions import (
    assert_same_tables,
    every,
    float64,
    run,
    simulate,
    ulp_errors,
)

BLOCK = find("arith.exp")

# Largest errors in normal and in subnormal results.
BOUNDS = {
    "fp16": (0.876, 0.997),
    "bf16": (0.795, 0.991),
    "fp8_e4m3": (0.680, 0.770),
    "fp8_e5m2": (0.500, 0.500),
}


@pytest.mark.parametrize("name", WIDTHS)
def test_errors_over_all_operands(name):
    x = every(name)
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64))
    errors = ulp_errors(golden.exp(x), exact)
    subnormal = exact < 2.0 ** (1 - ExpParameters(format=name).float_format.bias)
    normal, small = errors[~subnormal].max(), errors[subnormal].max()
    print(f"{name}: {normal:.4f} ulp, {small:.4f} ulp in {subnormal.sum()} subnormal results")
    assert subnormal.sum() > len(x) // 10
    assert normal <= BOUNDS[name][0] < 1
    assert small <= BOUNDS[name][1] < 1


@pytest.mark.parametrize("name", WIDTHS)
def test_special_operands(name):
    kind = ExpParameters(format=name).float_format
    sign = 1 << (kind.width - 1)
    one = kind.bias << kind.mantissa
    known = {0: one, sign: one, 1: one, sign | 1: one, kind.quiet_nan | sign: kind.quiet_nan}
    known |= {kind.largest: kind.overflow, kind.largest | sign: 0}
    if kind.infinities:
        known |= {kind.infinity: kind.infinity, kind.infinity | sign: 0}
        known |= {kind.infinity + 1: kind.quiet_nan}
    got = to_bits(golden.exp(from_bits(np.array(list(known)), name)))
    assert got.tolist() == list(known.values())


@pytest.mark.parametrize("name", WIDTHS)
def test_never_decreases(name):
    x = float64(every(name))
    order = np.argsort(x[np.isfinite(x)])
    results = golden.exp(every(name)[np.isfinite(x)][order]).astype(np.float64)
    steps = np.diff(results[np.isfinite(results)])
    assert len(steps) > len(x) // 2
    assert (steps >= 0).all()


def test_flushed_results():
    x = every("fp16")
    flushed = golden.exp(x, flush_subnormals=True)
    assert (to_bits(flushed) == to_bits(flush(golden.exp(x)))).all()
    assert np.count_nonzero(to_bits(flushed) != to_bits(golden.exp(x))) > 800


@pytest.mark.parametrize("name", WIDTHS)
def test_both_sides_have_the_same_tables(name):
    widths = WIDTHS[name]
    highest, product, table = golden.WIDTHS[DTYPES[name]]
    assert (widths.exponent, widths.product) == (highest, product)
    assert_same_tables(widths.table, excess, table, golden.excess)


@pytest.mark.parametrize(
    "name, stages, flush_subnormals",
    [("fp16", 0, False), ("bf16", 4, True)],
)
def test_hardware_on_all_operands(name, stages, flush_subnormals):
    parameters = ExpParameters(format=name, stages=stages, flush_subnormals=flush_subnormals)
    assert run(BLOCK, parameters, {"x": every(name)}) == 0


@pytest.mark.parametrize("flush_subnormals", [False, True])
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_small_formats_on_all_operands(name, flush_subnormals):
    parameters = ExpParameters(format=name, flush_subnormals=flush_subnormals)
    assert simulate(BLOCK, parameters, {"x": every(name)}) == 0


@pytest.mark.parametrize("stages", range(1, 5))
def test_stages(stages):
    x = random_floats("fp16", 300, [], np.random.default_rng(stages))
    parameters = ExpParameters(stages=stages, flush_subnormals=stages % 2 == 0)
    assert simulate(BLOCK, parameters, {"x": x}) == 0


def test_no_preset_has_fp32():
    assert "fp32" not in ExpParameters.presets()
