"""The reciprocal: every operand of every format, in the model and in hardware."""

import numpy as np
import pytest

from golden.arith import reciprocal as golden
from golden.arith.formats import DTYPES, flush, from_bits, to_bits
from hw.arith.reciprocal import TABLES, ReciprocalParameters, double_reciprocal
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

BLOCK = find("arith.reciprocal")

# Largest errors in normal and in subnormal results.
BOUNDS = {
    "fp16": (0.793, 0.999),
    "bf16": (0.648, 0.999),
    "fp8_e4m3": (0.5, 0.999),
    "fp8_e5m2": (0.5, 0.999),
}


@pytest.mark.parametrize("name", TABLES)
def test_errors_over_all_operands(name):
    x = every(name)
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = 1 / float64(x)
    errors = ulp_errors(golden.reciprocal(x), exact)
    subnormal = np.abs(exact) < 2.0 ** (1 - ReciprocalParameters(format=name).float_format.bias)
    normal, small = errors[~subnormal].max(), errors[subnormal].max()
    print(f"{name}: {normal:.4f} ulp, {small:.4f} ulp in {subnormal.sum()} subnormal results")
    assert subnormal.sum() > len(x) // 200
    assert normal <= BOUNDS[name][0]
    assert small <= BOUNDS[name][1]
    power = np.frexp(exact)[0] == 0.5
    power &= np.abs(exact) <= 2.0 ** (ReciprocalParameters(format=name).float_format.bias)
    assert power.sum() > 10
    assert (errors[power] == 0).all()


@pytest.mark.parametrize("name", TABLES)
def test_special_operands(name):
    kind = ReciprocalParameters(format=name).float_format
    sign = 1 << (kind.width - 1)
    one = kind.bias << kind.mantissa
    known = {one: one, one | sign: one | sign, kind.quiet_nan | sign: kind.quiet_nan}
    known |= {0: kind.overflow, 1: kind.overflow}
    if kind.infinities:
        known |= {sign: sign | kind.infinity, sign + 1: sign | kind.infinity}
        known |= {kind.infinity: 0, kind.infinity | sign: sign, kind.infinity + 1: kind.quiet_nan}
    else:
        known |= {sign: kind.quiet_nan}
    got = to_bits(golden.reciprocal(from_bits(np.array(list(known)), name)))
    assert got.tolist() == list(known.values())


def test_never_increases():
    x = np.sort(float64(every("fp16")))
    x = x[x > 0].astype(np.float16)
    results = golden.reciprocal(x).astype(np.float64)
    assert len(x) == 31744
    assert (results[1:] <= results[:-1]).all()


def test_flushed():
    x = every("fp16")
    flushed = golden.reciprocal(x, flush_subnormals=True)
    assert (to_bits(flushed) == to_bits(flush(golden.reciprocal(flush(x))))).all()
    assert np.count_nonzero(to_bits(flushed) != to_bits(golden.reciprocal(x))) > 1000


@pytest.mark.parametrize("name", TABLES)
def test_both_sides_have_the_same_tables(name):
    table = golden.TABLES[DTYPES[name]]
    assert_same_tables(TABLES[name], double_reciprocal, table, golden.double_reciprocal)


@pytest.mark.parametrize(
    "name, stages, flush_subnormals",
    [("fp16", 0, False), ("bf16", 3, True)],
)
def test_hardware_on_all_operands(name, stages, flush_subnormals):
    parameters = ReciprocalParameters(format=name, stages=stages, flush_subnormals=flush_subnormals)
    assert run(BLOCK, parameters, {"x": every(name)}) == 0


@pytest.mark.parametrize("flush_subnormals", [False, True])
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_small_formats_on_all_operands(name, flush_subnormals):
    parameters = ReciprocalParameters(format=name, flush_subnormals=flush_subnormals)
    assert simulate(BLOCK, parameters, {"x": every(name)}) == 0


@pytest.mark.parametrize("stages", range(1, 4))
def test_stages(stages):
    x = random_floats("fp16", 300, [], np.random.default_rng(stages))
    parameters = ReciprocalParameters(stages=stages, flush_subnormals=stages % 2 == 0)
    assert simulate(BLOCK, parameters, {"x": x}) == 0


def test_no_preset_has_fp32():
    assert "fp32" not in ReciprocalParameters.presets()
