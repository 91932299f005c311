"""Conversion between formats: all 25 pairs, every 16-bit operand, every FP32 by proof."""

import itertools

import numpy as np
import pytest

from golden.arith.float_convert import float_convert
from golden.arith.formats import DTYPES, canonical, from_bits, is_nan, to_bits
from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FORMATS
from sim.checks.formal.float_proof import equals, prove
from sim.testbenches.arith.float_convert import testbench
from tests.support.arith.exact import decode, encode
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import differences, registers_agree, values

PAIRS = list(itertools.product(FORMATS, repeat=2))


def golden(parameters, a):
    return testbench._golden(parameters, a=a)


OPTIONS = [(source, format, False, False) for source, format in PAIRS]
OPTIONS += [(source, "fp8_e4m3", True, True) for source in ("fp16", "fp8_e4m3")]
OPTIONS += [
    ("fp32", "fp16", True, True),
    ("fp32", "bf16", True, True),
    ("fp16", "fp32", True, True),
]


@pytest.mark.parametrize("source, format, flush, saturate", OPTIONS)
def test_unit_is_its_golden_model(source, format, flush, saturate):
    parameters = FloatConvertParameters(format, flush, source=source, saturate=saturate)
    net = Netlist(FloatConvert(parameters))
    a = values(source, seed=1, count=1_000_000 if format == "fp16" else 50_000)
    assert len(a) >= 256
    assert differences(net, {"a": a}, golden(parameters, a)) == 0


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("source, format", [("fp32", "fp16"), ("fp16", "bf16")])
def test_registers(source, format, stages):
    parameters = FloatConvertParameters(format, source=source, stages=stages)
    net = Netlist(FloatConvert(parameters))
    assert net.flipflops > 0
    a = values(source, seed=0, count=50_000)
    registers_agree(net, {"a": a}, golden(parameters, a), stages, seed=1)


@pytest.mark.parametrize("source, format", PAIRS)
def test_golden_model_as_numpy_and_ml_dtypes_cast(source, format):
    a = values(source, seed=2)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = canonical(a.astype(DTYPES[format]))
    assert is_nan(expected).any()
    np.testing.assert_array_equal(to_bits(float_convert(a, format)), to_bits(expected))


@pytest.mark.parametrize(
    "source, format, saturate",
    [("fp8_e5m2", "fp8_e4m3", False), ("fp8_e5m2", "fp8_e4m3", True), ("fp16", "fp8_e4m3", True)],
)
def test_golden_model_by_the_definition(source, format, saturate):
    a = values(source, seed=0)
    result = FORMATS[format]
    expected = []
    for n in range(len(a)):
        value, negative = decode(n, FORMATS[source]), bool(n >> FORMATS[source].width - 1)
        if value == "nan":
            expected.append(result.quiet_nan)
            continue
        value = {"inf": 1 << 99, "-inf": -1 << 99}.get(value, value)
        expected.append(encode(value, negative, result, saturate))
    np.testing.assert_array_equal(to_bits(float_convert(a, format, saturate=saturate)), expected)
    assert len(set(expected)) > 100


@pytest.mark.parametrize("source, format", [("fp32", "fp16"), ("fp16", "fp32")])
def test_every_operand_by_proof(source, format):
    unit = FloatConvert(FloatConvertParameters(format, source=source))
    result = prove(unit, claim(format), {"a": FORMATS[source]})
    assert result.status == "PASS", result


def test_every_fp32_to_bf16_by_proof():
    """The solver has no BF16: add almost half to the bits, and truncate them."""
    odd = "((_ zero_extend 31) ((_ extract 16 16) a))"
    rounded = f"((_ extract 31 16) (bvadd a #x00007fff {odd}))"
    unit = FloatConvert(FloatConvertParameters("bf16"))
    nan = f"#x{FORMATS['bf16'].quiet_nan:04x}"
    result = prove(unit, f"(= o (ite (fp.isNaN a_float) {nan} {rounded}))", {"a": FORMATS["fp32"]})
    assert result.status == "PASS", result


def test_proof_refutes_another_result():
    unit = FloatConvert(FloatConvertParameters("fp16", saturate=True))
    result = prove(unit, claim("fp16"), {"a": FORMATS["fp32"]})
    assert result.status == "FAIL"
    assert abs(from_bits(np.array([result.counterexample["a"]]), "fp32").astype(np.float64)) > 65504


def claim(format):
    result = FORMATS[format]
    return equals("o", f"((_ to_fp {result.exponent} {result.precision}) RNE a_float)", result)
