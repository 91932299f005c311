"""Fixed point to floating point: every 16-bit operand, carries, subnormals, overflow."""

from fractions import Fraction

import numpy as np
import pytest

from golden.arith.fixed_to_float import fixed_to_float
from golden.arith.formats import DTYPES, to_bits
from hw.arith.fixed_to_float import FixedToFloat, FixedToFloatParameters
from hw.arith.float_format import FORMATS
from sim.checks.formal.float_proof import equals, prove
from sim.testbenches.arith.fixed_to_float import testbench
from tests.support.arith.exact import encode
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import differences, integers, registers_agree

CONFIGURATIONS = [
    FixedToFloatParameters(),
    FixedToFloatParameters(width=2),
    FixedToFloatParameters(width=16, fraction=18),
    FixedToFloatParameters(width=16, fraction=24),
    FixedToFloatParameters(width=16, fraction=28),
    FixedToFloatParameters(width=16, fraction=28, flush_subnormals=True),
    FixedToFloatParameters(width=16, fraction=28, signed=False),
    FixedToFloatParameters(width=13, fraction=-9, signed=False),
    FixedToFloatParameters(width=7, fraction=-15),
    FixedToFloatParameters(width=48, fraction=20),
    FixedToFloatParameters("bf16", width=15, fraction=4),
    FixedToFloatParameters("bf16", width=24, signed=False),
    FixedToFloatParameters("fp32", width=9),
    FixedToFloatParameters("fp32", width=48, fraction=160),
    FixedToFloatParameters("fp8_e4m3", width=16),
    FixedToFloatParameters("fp8_e4m3", width=16, fraction=18, flush_subnormals=True),
    FixedToFloatParameters("fp8_e4m3", width=10, signed=False),
    FixedToFloatParameters("fp8_e5m2", width=11, fraction=-8),
]


def golden(parameters, a):
    return testbench._golden(parameters, a=a)


@pytest.mark.parametrize("parameters", CONFIGURATIONS, ids=lambda p: p.slug())
def test_unit_is_its_golden_model(parameters):
    net = Netlist(FixedToFloat(parameters))
    a = integers(parameters.width, parameters.signed, seed=1)
    assert len(a) >= min(1 << parameters.width, 1 << 16)
    assert differences(net, {"a": a}, golden(parameters, a)) == 0


@pytest.mark.parametrize("stages", [1, 2])
def test_registers(stages):
    parameters = FixedToFloatParameters(stages=stages, fraction=24)
    net = Netlist(FixedToFloat(parameters))
    assert net.flipflops > 0
    a = integers(16, True, seed=0)
    registers_agree(net, {"a": a}, golden(parameters, a), stages, seed=1)


@pytest.mark.parametrize(
    "format, width, fraction",
    [
        ("fp16", 12, 0),
        ("fp16", 13, 25),
        ("fp16", 17, 0),
        ("bf16", 14, 3),
        ("fp32", 12, 150),
        ("fp8_e4m3", 10, 0),
        ("fp8_e4m3", 8, 12),
        ("fp8_e5m2", 8, 20),
        ("fp8_e5m2", 8, -12),
    ],
)
def test_golden_model_by_the_definition(format, width, fraction):
    a = np.unique(integers(width, True, seed=5, count=4000))
    scale = Fraction(2) ** -fraction
    expected = [encode(n * scale, False, FORMATS[format], saturate=False) for n in a.tolist()]
    assert len(expected) >= min(1 << width, 1000)
    np.testing.assert_array_equal(to_bits(fixed_to_float(a, format, fraction=fraction)), expected)


@pytest.mark.parametrize("format", ["fp16", "fp32", "bf16"])
def test_golden_model_as_numpy_casts(format):
    """float32 only holds exact values here, so that NumPy does not round twice."""
    a = integers(24 if format != "fp32" else 40, True, seed=6)
    with np.errstate(over="ignore"):
        expected = a.astype(np.float32).astype(DTYPES[format])
    np.testing.assert_array_equal(to_bits(fixed_to_float(a, format)), to_bits(expected))


@pytest.mark.parametrize("format, signed", [("fp32", True), ("fp32", False), ("fp16", True)])
def test_every_32_bit_integer_by_proof(format, signed):
    unit = FixedToFloat(FixedToFloatParameters(format, width=32, signed=signed))
    result = prove(unit, claim(format, signed), {"o": FORMATS[format]})
    assert result.status == "PASS", result


def test_proof_refutes_the_other_signedness():
    unit = FixedToFloat(FixedToFloatParameters("fp32", width=32))
    result = prove(unit, claim("fp32", signed=False), {"o": FORMATS["fp32"]})
    assert result.status == "FAIL"
    assert result.counterexample["a"] >> 31


def claim(format, signed):
    kind = "to_fp" if signed else "to_fp_unsigned"
    float_format = FORMATS[format]
    sizes = f"{float_format.exponent} {float_format.precision}"
    return equals("o", f"((_ {kind} {sizes}) RNE a)", float_format)
