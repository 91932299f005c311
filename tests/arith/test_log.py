"""The natural logarithm: every operand of every format, in the model and in hardware."""

import numpy as np
import pytest

from golden.arith import log as golden
from golden.arith.formats import DTYPES, flush, from_bits, to_bits
from golden.arith.log import log
from hw.arith.log import TABLES, LogParameters, slope
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

BLOCK = find("arith.log")
BOUNDS = {"fp16": 0.831, "bf16": 0.682, "fp8_e4m3": 0.500, "fp8_e5m2": 0.521}


@pytest.mark.parametrize("name", TABLES)
def test_errors_over_all_operands(name):
    x = every(name)
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.log(float64(x))
    errors = ulp_errors(log(x), exact)
    print(f"{name}: {errors.max():.4f} ulp, {np.count_nonzero(errors > 0.5)} above 1/2")
    assert errors.max() <= BOUNDS[name]
    assert np.count_nonzero(np.isfinite(exact)) > len(x) // 3


@pytest.mark.parametrize("name", TABLES)
def test_special_operands(name):
    kind = LogParameters(format=name).float_format
    sign, one = 1 << (kind.width - 1), kind.bias << kind.mantissa
    nan = kind.quiet_nan
    known = {one: 0, one | sign: nan, nan: nan, nan | sign: nan, sign | 1: nan}
    if kind.infinities:
        known |= {0: sign | kind.infinity, sign: sign | kind.infinity}
        known |= {kind.infinity: kind.infinity, kind.infinity | sign: nan, kind.infinity + 1: nan}
    else:
        known |= {0: nan, sign: nan}
    got = to_bits(log(from_bits(np.array(list(known)), name)))
    assert got.tolist() == list(known.values())


def test_never_decreases():
    x = np.sort(float64(every("fp16")))
    x = x[x > 0].astype(np.float16)
    results = log(x).astype(np.float64)
    assert len(x) == 31744
    assert (results[1:] >= results[:-1]).all()


def test_flushed_operands():
    x = every("fp16")
    flushed = log(x, flush_subnormals=True)
    assert (to_bits(flushed) == to_bits(log(flush(x)))).all()
    assert np.count_nonzero(to_bits(flushed) != to_bits(log(x))) == 2046


@pytest.mark.parametrize("name", TABLES)
def test_both_sides_have_the_same_tables(name):
    assert_same_tables(TABLES[name], slope, golden.TABLES[DTYPES[name]], golden.slope)


@pytest.mark.parametrize(
    "name, stages, flush_subnormals",
    [("fp16", 0, False), ("bf16", 4, True)],
)
def test_hardware_on_all_operands(name, stages, flush_subnormals):
    parameters = LogParameters(format=name, stages=stages, flush_subnormals=flush_subnormals)
    assert run(BLOCK, parameters, {"x": every(name)}) == 0


@pytest.mark.parametrize("flush_subnormals", [False, True])
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_small_formats_on_all_operands(name, flush_subnormals):
    parameters = LogParameters(format=name, flush_subnormals=flush_subnormals)
    assert simulate(BLOCK, parameters, {"x": every(name)}) == 0


@pytest.mark.parametrize("stages", range(1, 5))
def test_stages(stages):
    x = np.abs(random_floats("fp16", 300, [], np.random.default_rng(stages)))
    parameters = LogParameters(stages=stages, flush_subnormals=stages % 2 == 0)
    assert simulate(BLOCK, parameters, {"x": x}) == 0
