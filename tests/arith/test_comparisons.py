"""Maximum, minimum and comparison: all pairs of 8-bit numbers, FP32 by proof.

All pairs of 16-bit numbers are in ``tests/sim/commands/test_exhaustive.py``.
"""

import struct
from fractions import Fraction

import numpy as np
import pytest

from golden.arith.float_compare import float_compare
from golden.arith.float_max import float_max
from golden.arith.float_min import float_min
from golden.arith.formats import from_bits, is_nan
from hw.arith.float_compare import RELATIONS, FloatCompare, FloatCompareParameters
from hw.arith.float_format import FORMATS
from hw.arith.float_max import FloatMax, FloatMaxParameters
from hw.arith.float_min import FloatMin, FloatMinParameters
from sim.checks.formal.float_proof import equals, prove
from tests.support.arith.exact import decode
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import bits, differences, pairs, registers_agree

# SMT-LIB of the results. The theory leaves open which of two zeros is the larger one.
LARGER = """(ite (and (fp.isZero {a}) (fp.isZero {b})) (ite (fp.isNegative {a}) {b} {a})
    (fp.max {a} {b}))"""
SMALLER = """(ite (and (fp.isZero {a}) (fp.isZero {b})) (ite (fp.isNegative {a}) {a} {b})
    (fp.min {a} {b}))"""
RELATED = """(and (= less (ite (fp.lt {a} {b}) #b1 #b0)) (= equal (ite (fp.eq {a} {b}) #b1 #b0))
    (= unordered (ite (or (fp.isNaN {a}) (fp.isNaN {b})) #b1 #b0)))"""

UNITS = {
    "max": (FloatMax, FloatMaxParameters),
    "min": (FloatMin, FloatMinParameters),
    "compare": (FloatCompare, FloatCompareParameters),
}


def create(name: str, *settings, **more):
    unit, parameters = UNITS[name]
    return unit(parameters(*settings, **more))


def golden(name: str, a, b, flush: bool = False) -> dict[str, np.ndarray]:
    """The golden model's results by port."""
    if name == "compare":
        return float_compare(a, b, flush_subnormals=flush)
    model = {"max": float_max, "min": float_min}[name]
    return {"o": model(a, b, flush_subnormals=flush)}


def claim(name: str, flush: bool = False) -> str:
    """That an FP32 unit gives the results of SMT-LIB's theory."""
    a, b = ("(flush a_float)", "(flush b_float)") if flush else ("a_float", "b_float")
    if name == "compare":
        return RELATED.format(a=a, b=b)
    result = {"max": LARGER, "min": SMALLER}[name]
    return equals("o", result.format(a=a, b=b), FORMATS["fp32"])


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize(
    "format, flush",
    [("fp8_e4m3", False), ("fp8_e5m2", False), ("fp8_e5m2", True), ("fp32", False)],
)
def test_unit_is_its_golden_model(name, format, flush):
    net = Netlist(create(name, format, flush))
    a, b = pairs(format, seed=1)
    assert net.flipflops == 0 and len(a) >= 1 << 16
    expected = golden(name, a, b, flush)
    assert all(result.any() for result in expected.values())
    assert differences(net, {"a": a, "b": b}, expected) == 0


@pytest.mark.parametrize("name, flipflops", [("max", 16), ("min", 16), ("compare", len(RELATIONS))])
def test_registers(name, flipflops):
    net = Netlist(create(name, stages=1))
    assert net.flipflops == flipflops
    a, b = pairs("fp16", seed=2)
    registers_agree(net, {"a": a, "b": b}, golden(name, a, b), stages=1, seed=1)


@pytest.mark.parametrize("flush", [False, True], ids=["", "flush"])
@pytest.mark.parametrize("name", UNITS)
def test_every_fp32_pair_by_proof(name, flush):
    unit = create(name, "fp32", flush)
    result = prove(unit, claim(name, flush), dict.fromkeys("ab", FORMATS["fp32"]))
    assert result.status == "PASS", result


def refuted(name: str, claim: str) -> dict[str, int]:
    """Operands for which an FP16 unit contradicts a claim, by port."""
    result = prove(create(name), claim, dict.fromkeys("ab", FORMATS["fp16"]))
    assert result.status == "FAIL"
    return {port: result.counterexample[port] for port in "ab"}


def test_proof_refutes_that_a_nan_wins():
    """Returns NaN if either operand is NaN, as IEEE 754's maximum, unlike maximumNumber."""
    larger = LARGER.format(a="a_float", b="b_float")
    nan_wins = f"(ite (or (fp.isNaN a_float) (fp.isNaN b_float)) (_ NaN 5 11) {larger})"
    operands = refuted("max", equals("o", nan_wins, FORMATS["fp16"]))
    a, b = from_bits(np.array(list(operands.values())), "fp16")
    assert np.isnan(a) != np.isnan(b)


def test_proof_refutes_that_zeros_differ():
    """Equal values may have different bits (zeros), and equal bits be unordered (NaNs)."""
    same = "(= equal (ite (and (= a b) (not (fp.isNaN a_float))) #b1 #b0))"
    assert set(refuted("compare", same).values()) == {0x0000, 0x8000}


def numbers(format: str) -> list[Fraction | int | str]:
    """Every value of an 8-bit format; an infinity is a number beyond all others."""
    values = [decode(n, FORMATS[format]) for n in range(256)]
    return [{"inf": 1 << 99, "-inf": -1 << 99}.get(value, value) for value in values]


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
def test_golden_maximum_by_the_definition(format):
    """All pairs, with the maximum of fractions and explicit rules for NaN."""
    a, b = pairs(format, seed=0)
    number, expected = numbers(format), []
    for pair in np.stack([bits(a), bits(b)], axis=1).tolist():
        candidates = [bits for bits in pair if number[bits] != "nan"]
        # The sign decides between zeros.
        ordered = sorted(candidates, key=lambda bits: (number[bits], -(bits >> 7)))
        expected.append(ordered[-1] if ordered else FORMATS[format].quiet_nan)
    assert len(expected) == 1 << 16
    np.testing.assert_array_equal(bits(float_max(a, b)), expected)


def test_golden_maximum_as_numpy_does():
    a, b = pairs("fp32", seed=4)
    chosen = (a != 0) | (b != 0)
    with np.errstate(invalid="ignore"):
        expected = np.fmax(a, b)
    assert np.count_nonzero(chosen) > 100_000
    np.testing.assert_array_equal(float_max(a, b)[chosen], expected[chosen])


@pytest.mark.parametrize("format", FORMATS)
def test_golden_minimum_mirrors_the_maximum(format):
    """min(a, b) = -max(-a, -b), also for zeros; only the canonical NaN is not negated."""
    a, b = pairs(format, seed=5)
    sign = 1 << FORMATS[format].width - 1
    negated = (
        from_bits(bits(operand) ^ bits(operand).dtype.type(sign), format) for operand in (a, b)
    )
    mirrored, got = float_max(*negated), float_min(a, b)
    np.testing.assert_array_equal(is_nan(got), is_nan(a) & is_nan(b))
    np.testing.assert_array_equal(is_nan(got), is_nan(mirrored))
    number = ~is_nan(got)
    assert np.count_nonzero(number) > 60_000
    np.testing.assert_array_equal(bits(got)[number], bits(mirrored)[number] ^ sign)
    assert set(bits(got)[~number].tolist()) == {FORMATS[format].quiet_nan}


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
def test_golden_comparison_by_the_definition(format):
    """All pairs, compared as fractions."""
    a, b = pairs(format, seed=0)
    number, expected = numbers(format), []
    for x, y in np.stack([bits(a), bits(b)], axis=1).tolist():
        u, v = number[x], number[y]
        expected.append((0, 0, 1) if "nan" in (u, v) else (u < v, u == v, 0))
    assert len(expected) == 1 << 16
    got = float_compare(a, b)
    np.testing.assert_array_equal(np.stack([got[name] for name in RELATIONS], axis=1), expected)


def test_golden_comparison_as_python_compares():
    a, b = (operand[-20_000:] for operand in pairs("fp16", seed=3))
    x, y = (struct.unpack(f"<{len(v)}e", v.tobytes()) for v in (a, b))
    got = float_compare(a, b)
    np.testing.assert_array_equal(got["less"], [u < v for u, v in zip(x, y, strict=True)])
    np.testing.assert_array_equal(got["equal"], [u == v for u, v in zip(x, y, strict=True)])
    np.testing.assert_array_equal(got["unordered"], is_nan(a) | is_nan(b))
    assert all(relation.any() for relation in got.values())
