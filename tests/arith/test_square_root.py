"""The square root: every operand of the small formats, many of the large one, rounded correctly."""

import numpy as np
import pytest

from golden.arith.formats import DTYPES, canonical, flush, from_bits, to_bits
from golden.arith.square_root import square_root
from hw.arith.square_root import SquareRootParameters
from hw.catalogue import find
from sim.testbenches.arith.operands import random_floats
from tests.support.arith.functions import every, float64, run, simulate, ulp_errors

BLOCK = find("arith.square_root")
SMALL = ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2"]


def operands(name, count=200_000, seed=1):
    if name in SMALL:
        return every(name)
    return random_floats(name, count, [], np.random.default_rng(seed))


@pytest.mark.parametrize("name", [*SMALL, "fp32"])
def test_correct_rounding(name):
    """A root in float64 is precise enough to be rounded again correctly."""
    x = operands(name)
    with np.errstate(invalid="ignore"):
        exact = np.sqrt(float64(x))
        expected = canonical(exact.astype(DTYPES[name]))
    assert (to_bits(square_root(x)) == to_bits(expected)).all()
    errors = ulp_errors(square_root(x), exact)
    print(f"{name}: {errors.max():.5f} ulp, {len(x)} operands")
    assert 0.4 < errors.max() <= 0.5


@pytest.mark.parametrize("name", [*SMALL, "fp32"])
def test_special_operands(name):
    kind = SquareRootParameters(format=name).float_format
    sign, one = 1 << (kind.width - 1), kind.bias << kind.mantissa
    four = one + (2 << kind.mantissa)
    known = {0: 0, sign: sign, one: one, four: four - (1 << kind.mantissa)}
    known |= {sign | 1: kind.quiet_nan, sign | one: kind.quiet_nan}
    known |= {kind.quiet_nan: kind.quiet_nan, kind.quiet_nan | sign: kind.quiet_nan}
    if kind.infinities:
        known |= {kind.infinity: kind.infinity, kind.infinity | sign: kind.quiet_nan}
        known |= {kind.infinity + 1: kind.quiet_nan}
    got = to_bits(square_root(from_bits(np.array(list(known)), name)))
    assert got.tolist() == list(known.values())


def test_flushed_operands():
    x = every("fp16")
    flushed = square_root(x, flush_subnormals=True)
    assert (to_bits(flushed) == to_bits(square_root(flush(x)))).all()
    assert np.count_nonzero(to_bits(flushed) != to_bits(square_root(x))) == 2046


@pytest.mark.parametrize(
    "name, stages, flush_subnormals",
    [("fp16", 0, False), ("bf16", 2, True), ("fp32", 8, False)],
)
def test_hardware(name, stages, flush_subnormals):
    parameters = SquareRootParameters(format=name, stages=stages, flush_subnormals=flush_subnormals)
    assert run(BLOCK, parameters, {"x": operands(name)}) == 0


@pytest.mark.parametrize("flush_subnormals", [False, True])
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_small_formats_on_all_operands(name, flush_subnormals):
    parameters = SquareRootParameters(format=name, flush_subnormals=flush_subnormals)
    assert simulate(BLOCK, parameters, {"x": every(name)}) == 0


@pytest.mark.parametrize("name", ["fp16", "fp32"])
@pytest.mark.parametrize("stages", range(1, len(SquareRootParameters.CUTS)))
def test_stages(name, stages):
    x = operands(name)[:: 1 + len(operands(name)) // 150]
    parameters = SquareRootParameters(format=name, stages=stages, flush_subnormals=stages % 2 == 0)
    assert simulate(BLOCK, parameters, {"x": x}) == 0
