"""Minimum: the negated maximum of negated operands; NaNs by themselves.

All pairs of 16-bit numbers are in ``tests/sim/test_exhaustive.py``.
"""

import numpy as np
import pytest

from golden.arith.float_max import float_max
from golden.arith.float_min import float_min
from golden.arith.formats import from_bits, is_nan
from hw.arith.float_format import FORMATS
from hw.arith.float_min import FloatMin, FloatMinParameters
from sim.checks.formal.float_proof import equals, prove
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import bits, differences, pairs, registers_agree

PAIRS = [("fp8_e4m3", False), ("fp8_e5m2", False), ("fp8_e5m2", True), ("fp32", False)]
# The theory leaves open which of two zeros is the smaller one.
SMALLER = """(ite (and (fp.isZero {a}) (fp.isZero {b})) (ite (fp.isNegative {a}) {a} {b})
    (fp.min {a} {b}))"""


@pytest.mark.parametrize("format, flush", PAIRS)
def test_unit_is_its_golden_model(format, flush):
    net = Netlist(FloatMin(FloatMinParameters(format, flush)))
    a, b = pairs(format, seed=1)
    assert net.flipflops == 0 and len(a) >= 1 << 16
    expected = {"o": float_min(a, b, flush_subnormals=flush)}
    assert differences(net, {"a": a, "b": b}, expected) == 0


def test_registers():
    net = Netlist(FloatMin(FloatMinParameters(stages=1)))
    assert net.flipflops == 16
    a, b = pairs("fp16", seed=2)
    registers_agree(net, {"a": a, "b": b}, {"o": float_min(a, b)}, stages=1, seed=1)


def test_every_fp32_pair_by_proof():
    claim = equals("o", SMALLER.format(a="a_float", b="b_float"), FORMATS["fp32"])
    unit = FloatMin(FloatMinParameters("fp32"))
    result = prove(unit, claim, dict.fromkeys("ab", FORMATS["fp32"]))
    assert result.status == "PASS", result


@pytest.mark.parametrize("format", FORMATS)
def test_golden_model_mirrors_the_maximum(format):
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
