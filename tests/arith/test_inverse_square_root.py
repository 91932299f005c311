"""1 / sqrt(x): every operand of every format, in the model and in hardware."""

import numpy as np
import pytest

from golden.arith import inverse_square_root as golden
from golden.arith.formats import DTYPES, flush, from_bits, to_bits
from golden.arith.inverse_square_root import inverse_square_root
from hw.arith.inverse_square_root import TABLES, InverseSquareRootParameters, double_root
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

BLOCK = find("arith.inverse_square_root")
BOUNDS = {"fp16": 0.874, "bf16": 0.798, "fp8_e4m3": 0.5, "fp8_e5m2": 0.5}


@pytest.mark.parametrize("name", TABLES)
def test_errors_over_all_operands(name):
    x = every(name)
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = 1 / np.sqrt(float64(x))
    errors = ulp_errors(inverse_square_root(x), exact)
    print(f"{name}: {errors.max():.4f} ulp, {np.count_nonzero(errors > 0.5)} above 1/2")
    assert errors.max() <= BOUNDS[name]
    power = (np.frexp(exact)[0] == 0.5) & np.isfinite(exact)
    assert power.sum() > 7
    assert (errors[power] == 0).all()


@pytest.mark.parametrize("name", TABLES)
def test_special_operands(name):
    kind = InverseSquareRootParameters(format=name).float_format
    sign, one = 1 << (kind.width - 1), kind.bias << kind.mantissa
    nan = kind.quiet_nan
    known = {one: one, one + (2 << kind.mantissa): one - (1 << kind.mantissa)}
    known |= {nan: nan, nan | sign: nan, one | sign: nan, sign | 1: nan, 0: kind.overflow}
    if kind.infinities:
        known |= {sign: sign | kind.infinity, kind.infinity: 0, kind.infinity | sign: nan}
        known |= {kind.infinity + 1: nan}
    else:
        known |= {sign: nan}
    got = to_bits(inverse_square_root(from_bits(np.array(list(known)), name)))
    assert got.tolist() == list(known.values())


def test_flushed_operands():
    x = every("fp16")
    flushed = inverse_square_root(x, flush_subnormals=True)
    assert (to_bits(flushed) == to_bits(inverse_square_root(flush(x)))).all()
    assert np.count_nonzero(to_bits(flushed) != to_bits(inverse_square_root(x))) == 2046


@pytest.mark.parametrize("name", TABLES)
def test_both_sides_have_the_same_tables(name):
    table = golden.TABLES[DTYPES[name]]
    assert_same_tables(TABLES[name], double_root, table, golden.double_root)


@pytest.mark.parametrize(
    "name, stages, flush_subnormals",
    [("fp16", 0, False), ("bf16", 3, True)],
)
def test_hardware_on_all_operands(name, stages, flush_subnormals):
    parameters = InverseSquareRootParameters(
        format=name, stages=stages, flush_subnormals=flush_subnormals
    )
    assert run(BLOCK, parameters, {"x": every(name)}) == 0


@pytest.mark.parametrize("flush_subnormals", [False, True])
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_small_formats_on_all_operands(name, flush_subnormals):
    parameters = InverseSquareRootParameters(format=name, flush_subnormals=flush_subnormals)
    assert simulate(BLOCK, parameters, {"x": every(name)}) == 0


@pytest.mark.parametrize("stages", range(1, 4))
def test_stages(stages):
    x = random_floats("fp16", 300, [], np.random.default_rng(stages))
    parameters = InverseSquareRootParameters(stages=stages, flush_subnormals=stages % 2 == 0)
    assert simulate(BLOCK, parameters, {"x": x}) == 0
