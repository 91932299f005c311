"""Maximum: all pairs of 8-bit numbers, FP32 by proof.

All pairs of 16-bit numbers are in ``tests/sim/test_exhaustive.py``.
"""

import numpy as np
import pytest

from golden.arith.float_max import float_max
from golden.arith.formats import from_bits
from hw.arith.float_format import FORMATS
from hw.arith.float_max import FloatMax, FloatMaxParameters
from sim.checks.formal.float_proof import equals, prove
from tests.support.arith.exact import decode
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import bits, differences, pairs, registers_agree

PAIRS = [("fp8_e4m3", False), ("fp8_e5m2", False), ("fp8_e5m2", True), ("fp32", False)]
# The theory leaves open which of two zeros is the larger one.
LARGER = """(ite (and (fp.isZero {a}) (fp.isZero {b})) (ite (fp.isNegative {a}) {b} {a})
    (fp.max {a} {b}))"""


@pytest.mark.parametrize("format, flush", PAIRS)
def test_unit_is_its_golden_model(format, flush):
    net = Netlist(FloatMax(FloatMaxParameters(format, flush)))
    a, b = pairs(format, seed=1)
    assert net.flipflops == 0 and len(a) >= 1 << 16
    expected = {"o": float_max(a, b, flush_subnormals=flush)}
    assert differences(net, {"a": a, "b": b}, expected) == 0


def test_registers():
    net = Netlist(FloatMax(FloatMaxParameters(stages=1)))
    assert net.flipflops == 16
    a, b = pairs("fp16", seed=2)
    registers_agree(net, {"a": a, "b": b}, {"o": float_max(a, b)}, stages=1, seed=1)


@pytest.mark.parametrize("flush", [False, True], ids=["", "flush"])
def test_every_fp32_pair_by_proof(flush):
    counted = ("(flush a_float)", "(flush b_float)") if flush else ("a_float", "b_float")
    claim = equals("o", LARGER.format(a=counted[0], b=counted[1]), FORMATS["fp32"])
    unit = FloatMax(FloatMaxParameters("fp32", flush))
    result = prove(unit, claim, dict.fromkeys("ab", FORMATS["fp32"]))
    assert result.status == "PASS", result


def test_proof_refutes_that_a_nan_wins():
    """Returns NaN if either operand is NaN, as IEEE 754's maximum, unlike maximumNumber."""
    larger = LARGER.format(a="a_float", b="b_float")
    nan_wins = f"(ite (or (fp.isNaN a_float) (fp.isNaN b_float)) (_ NaN 5 11) {larger})"
    claim, floats = equals("o", nan_wins, FORMATS["fp16"]), dict.fromkeys("ab", FORMATS["fp16"])
    result = prove(FloatMax(FloatMaxParameters()), claim, floats)
    assert result.status == "FAIL"
    a, b = from_bits(np.array([result.counterexample[port] for port in "ab"]), "fp16")
    assert np.isnan(a) != np.isnan(b)


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
def test_golden_model_by_the_definition(format):
    """All pairs, with the maximum of fractions and explicit rules for NaN."""
    a, b = pairs(format, seed=0)
    value = [decode(number, FORMATS[format]) for number in range(256)]
    number = [{"inf": 1 << 99, "-inf": -1 << 99}.get(v, v) for v in value]
    expected = []
    for pair in np.stack([bits(a), bits(b)], axis=1).tolist():
        numbers = [bits for bits in pair if number[bits] != "nan"]
        # The sign decides between zeros.
        ordered = sorted(numbers, key=lambda bits: (number[bits], -(bits >> 7)))
        expected.append(ordered[-1] if ordered else FORMATS[format].quiet_nan)
    assert len(expected) == 1 << 16
    np.testing.assert_array_equal(bits(float_max(a, b)), expected)


def test_golden_model_as_numpy_does():
    a, b = pairs("fp32", seed=4)
    chosen = (a != 0) | (b != 0)
    with np.errstate(invalid="ignore"):
        expected = np.fmax(a, b)
    assert np.count_nonzero(chosen) > 100_000
    np.testing.assert_array_equal(float_max(a, b)[chosen], expected[chosen])
