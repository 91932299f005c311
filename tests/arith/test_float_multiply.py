"""Multiplication: all pairs of 8-bit numbers, FP32 samples, registers, the bit-exact model.

All pairs of 16-bit numbers are in ``tests/sim/commands/test_exhaustive.py``.
"""

import ml_dtypes
import numpy as np
import pytest

from golden.arith.float_multiply import float_multiply
from golden.arith.formats import DTYPES, canonical, flush, from_bits
from hw.arith.float_format import FORMATS
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from sim.testbenches.arith.float_multiply import testbench
from tests.support.arith.exact import decode, encode
from tests.support.arith.functions import ulp_errors
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import bits, differences, pairs, registers_agree

MILLION = 1_000_000
SAMPLED = ["fp8_e4m3", "fp8_e5m2", "fp32"]


@pytest.mark.parametrize("format", SAMPLED)
def test_unit_is_its_golden_model(format):
    net = Netlist(FloatMultiply(FloatMultiplyParameters(format)))
    a, b = pairs(format, seed=1, count=MILLION)
    assert net.flipflops == 0
    assert len(a) >= (MILLION if DTYPES[format].itemsize > 1 else 1 << 16)
    assert differences(net, {"a": a, "b": b}, {"o": float_multiply(a, b)}) == 0


@pytest.mark.parametrize("format", SAMPLED)
def test_flushing_unit_is_its_golden_model(format):
    net = Netlist(FloatMultiply(FloatMultiplyParameters(format, True)))
    drawn, _ = testbench.draw(FloatMultiplyParameters(format), None, 200_000, seed=2)
    edges = pairs(format, seed=2, count=1)
    a, b = (np.concatenate([drawn[port], x]) for port, x in zip("ab", edges, strict=True))
    result = float_multiply(a, b, flush_subnormals=True)
    # Some products below the smallest normal number round up to it.
    with np.errstate(all="ignore"):
        exact = np.abs(a.astype(np.float64) * b.astype(np.float64))
    smallest = float(ml_dtypes.finfo(a.dtype).smallest_normal)
    assert np.count_nonzero((exact < smallest) & (np.abs(result) == smallest)) > 0
    assert differences(net, {"a": a, "b": b}, {"o": result}) == 0


@pytest.mark.parametrize(("stages", "flushing"), [(1, False), (2, True), (3, False), (4, True)])
def test_registers(stages, flushing):
    parameters = FloatMultiplyParameters("fp16", flushing, stages=stages)
    net = Netlist(FloatMultiply(parameters))
    assert net.flipflops >= 16 * stages
    drawn, _ = testbench.draw(parameters, None, 20_000, seed=3)
    expected = {"o": float_multiply(**drawn, flush_subnormals=flushing)}
    registers_agree(net, drawn, expected, stages=stages, seed=stages)


def product(a: int, b: int, float_format) -> int:
    """Bits of the product by the definition, from exact fractions."""
    x, y = decode(a, float_format), decode(b, float_format)
    negative = (a ^ b) >> float_format.width - 1
    if "nan" in (x, y) or (isinstance(x, str) and y == 0) or (isinstance(y, str) and x == 0):
        return float_format.quiet_nan
    if isinstance(x, str) or isinstance(y, str):
        return float_format.infinity | negative << float_format.width - 1
    return encode(x * y, bool(negative), float_format, saturate=False)


@pytest.mark.parametrize(
    ("format", "flushing"),
    [*((format, False) for format in FORMATS), ("fp8_e4m3", True), ("fp16", True), ("fp32", True)],
)
def test_golden_model_by_the_definition(format, flushing):
    a, b = pairs(format, seed=4, count=3000)
    if DTYPES[format].itemsize > 1:
        a, b = a[-3000:], b[-3000:]
    counted = [bits(flush(x) if flushing else x).tolist() for x in (a, b)]
    exact = [product(x, y, FORMATS[format]) for x, y in zip(*counted, strict=True)]
    expected = from_bits(np.array(exact), format)
    expected = flush(expected) if flushing else expected
    np.testing.assert_array_equal(
        bits(float_multiply(a, b, flush_subnormals=flushing)), bits(expected)
    )


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2", "fp16", "bf16"])
def test_error(format):
    a, b = pairs(format, seed=5)
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) * b.astype(np.float64)
    error = ulp_errors(float_multiply(a, b), exact).max()
    print(f"{format}: at most {error} ulp")
    assert error == 0.5


@pytest.mark.parametrize(("format", "name"), [("fp16", "f16"), ("fp32", "f32")])
def test_golden_model_as_softfloat_does(format, name):
    softfloat = pytest.importorskip("softfloatpy")
    a, b = pairs(format, seed=6, count=20_000)
    multiply = getattr(softfloat, f"{name}_mul")
    kind = getattr(softfloat, f"Float{name[1:]}")
    size = DTYPES[format].itemsize
    numbers = [[kind.from_bytes(x.tobytes()[::-1]) for x in bits(operand)] for operand in (a, b)]
    products = [multiply(x, y) for x, y in zip(*numbers, strict=True)]
    exact = np.frombuffer(b"".join(x.to_bytes() for x in products), f">u{size}")
    expected = canonical(from_bits(exact.astype(f"u{size}"), format))
    np.testing.assert_array_equal(bits(float_multiply(a, b)), bits(expected))
