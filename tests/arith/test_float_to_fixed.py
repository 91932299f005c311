"""Floating point to fixed point: every 16-bit operand, every rounding, limits and flags."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from golden.arith.float_to_fixed import float_to_fixed
from golden.arith.formats import from_bits
from hw.arith.float_format import FORMATS
from hw.arith.float_to_fixed import ROUNDINGS, FloatToFixed, FloatToFixedParameters
from sim.checks.formal.float_proof import constant, prove
from sim.testbenches.arith.float_to_fixed import testbench
from tests.support.arith.exact import decode
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import differences, registers_agree, values

# Round up past the limit, nothing to round, no limit in reach, only subnormals in reach, the
# widest: every structure that the unit can have.
CONFIGURATIONS = [
    *(FloatToFixedParameters(rounding=rounding) for rounding in ROUNDINGS),
    *(FloatToFixedParameters(width=6, rounding=rounding) for rounding in ROUNDINGS),
    FloatToFixedParameters(width=2, fraction=-3),
    FloatToFixedParameters(width=17, fraction=5, flush_subnormals=True),
    FloatToFixedParameters(width=48, fraction=24, flush_subnormals=True),
    FloatToFixedParameters(width=8, fraction=20),
    FloatToFixedParameters(width=16, fraction=16, signed=False, rounding="ceiling"),
    FloatToFixedParameters(width=9, fraction=2, signed=False, rounding="floor"),
    FloatToFixedParameters(width=40, fraction=0, signed=False),
    FloatToFixedParameters("bf16", width=8, fraction=4),
    FloatToFixedParameters("fp32", width=32),
    FloatToFixedParameters("fp32", width=12, fraction=10, rounding="floor"),
    FloatToFixedParameters("fp8_e4m3", width=8, fraction=0),
    FloatToFixedParameters("fp8_e4m3", width=20, fraction=9, rounding="truncate"),
    FloatToFixedParameters("fp8_e5m2", width=5, fraction=-4, rounding="ceiling"),
]


def golden(parameters, a):
    return testbench._golden(parameters, a=a)


@pytest.mark.parametrize("parameters", CONFIGURATIONS, ids=lambda p: p.slug())
def test_unit_is_its_golden_model(parameters):
    net = Netlist(FloatToFixed(parameters))
    a = values(parameters.format, seed=1)
    expected = golden(parameters, a)
    assert len(a) >= 256 and expected["overflow"].any()
    assert differences(net, {"a": a}, expected) == 0


@pytest.mark.parametrize("stages", [1, 2])
def test_registers(stages):
    parameters = FloatToFixedParameters(stages=stages, width=8, rounding="floor")
    net = Netlist(FloatToFixed(parameters))
    assert net.flipflops > 0
    a = values("fp16", seed=0)
    registers_agree(net, {"a": a}, golden(parameters, a), stages, seed=1)


def by_definition(value, p):
    """Result, overflow and inexact of a value, in integer arithmetic."""
    low = -(1 << p.width - 1) if p.signed else 0
    high = (1 << p.width - p.signed) - 1
    if isinstance(value, str):
        return low if value == "-inf" else high, 1, 0
    scaled = value * Fraction(2) ** p.fraction
    roundings = {"nearest_even": round, "truncate": math.trunc, "floor": math.floor}
    rounded = (roundings | {"ceiling": math.ceil})[p.rounding](scaled)
    if not low <= rounded <= high:
        return low if rounded < low else high, 1, 0
    return rounded, 0, int(rounded != scaled)


DEFINED = [
    FloatToFixedParameters(format, width=width, fraction=fraction, rounding=rounding, signed=signed)
    for (format, width, fraction), rounding, signed in itertools.product(
        [("fp8_e4m3", 8, 3), ("fp8_e4m3", 4, -2), ("fp8_e5m2", 8, 10)], ROUNDINGS, [True, False]
    )
]


@pytest.mark.parametrize("p", [*DEFINED, FloatToFixedParameters()], ids=lambda p: p.slug())
def test_golden_model_by_the_definition(p):
    """Every value, with floor, ceiling, truncation and round() of Python's fractions."""
    a = values(p.format, seed=0)
    expected = [by_definition(decode(n, FORMATS[p.format]), p) for n in range(len(a))]
    got = golden(p, a)
    np.testing.assert_array_equal(
        np.stack([got["o"], got["overflow"], got["inexact"]], 1), expected
    )
    seen = {(overflow, inexact) for _, overflow, inexact in expected}
    assert seen == {(0, 0), (0, 1), (1, 0)}


def test_golden_model_as_numpy_casts():
    a = values("fp32", seed=4)
    a = a[np.abs(a) < 2**31]
    assert len(a) > 50_000
    got = float_to_fixed(a, 32, rounding="truncate")
    np.testing.assert_array_equal(got["o"], a.astype(np.int32))
    got = float_to_fixed(a, 32)
    np.testing.assert_array_equal(got["o"], np.rint(a.astype(np.float64)).astype(np.int64))


@pytest.mark.parametrize("mode, rounding", [("RNE", "nearest_even"), ("RTN", "floor")])
def test_every_fp32_by_proof(mode, rounding):
    claim, floats = proof_claim(mode, 32), {"a": FORMATS["fp32"]}
    unit = FloatToFixed(FloatToFixedParameters("fp32", width=32, rounding=rounding))
    result = prove(unit, claim, floats)
    assert result.status == "PASS", result


def test_proof_refutes_another_rounding():
    unit = FloatToFixed(FloatToFixedParameters("fp32", width=32, rounding="truncate"))
    result = prove(unit, proof_claim("RNE", 32), {"a": FORMATS["fp32"]})
    assert result.status == "FAIL"
    a = from_bits(np.array([result.counterexample["a"]]), "fp32")
    assert a != np.trunc(a)


def proof_claim(mode, width):
    """In binary64, in which every operand and both limits are exact."""
    low, high = constant(1 << width - 1, width), constant((1 << width - 1) - 1, width)
    return f"""(let ((exact ((_ to_fp 11 53) RNE a_float)))
      (let ((rounded (fp.roundToIntegral {mode} exact))
            (least ((_ to_fp 11 53) RNE {low})) (most ((_ to_fp 11 53) RNE {high})))
      (let ((fits (and (fp.leq least rounded) (fp.leq rounded most))))
      (and (= overflow (ite fits #b0 #b1))
        (= inexact (ite (and fits (not (fp.eq exact rounded))) #b1 #b0))
        (= o (ite fits ((_ fp.to_sbv {width}) {mode} exact)
          (ite (fp.lt exact least) {low} {high})))))))"""
