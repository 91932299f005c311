"""Comparison: all pairs of 8-bit numbers, FP32 by proof.

All pairs of 16-bit numbers are in ``tests/sim/test_exhaustive.py``.
"""

import struct

import numpy as np
import pytest

from golden.arith.float_compare import float_compare
from golden.arith.formats import is_nan
from hw.arith.float_compare import RELATIONS, FloatCompare, FloatCompareParameters
from hw.arith.float_format import FORMATS
from sim.checks.formal.float_proof import prove
from tests.support.arith.exact import decode
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import bits, differences, pairs, registers_agree

PAIRS = [("fp8_e4m3", False), ("fp8_e5m2", False), ("fp8_e5m2", True), ("fp32", False)]
CLAIM = """(and (= less (ite (fp.lt {a} {b}) #b1 #b0)) (= equal (ite (fp.eq {a} {b}) #b1 #b0))
    (= unordered (ite (or (fp.isNaN {a}) (fp.isNaN {b})) #b1 #b0)))"""


@pytest.mark.parametrize("format, flush", PAIRS)
def test_unit_is_its_golden_model(format, flush):
    net = Netlist(FloatCompare(FloatCompareParameters(format, flush)))
    a, b = pairs(format, seed=1)
    assert net.flipflops == 0 and len(a) >= 1 << 16
    expected = float_compare(a, b, flush_subnormals=flush)
    assert all(relation.any() for relation in expected.values())
    assert differences(net, {"a": a, "b": b}, expected) == 0


def test_registers():
    net = Netlist(FloatCompare(FloatCompareParameters(stages=1)))
    assert net.flipflops == len(RELATIONS)
    a, b = pairs("fp16", seed=2)
    registers_agree(net, {"a": a, "b": b}, float_compare(a, b), stages=1, seed=1)


@pytest.mark.parametrize("flush", [False, True], ids=["", "flush"])
def test_every_fp32_pair_by_proof(flush):
    counted = ("(flush a_float)", "(flush b_float)") if flush else ("a_float", "b_float")
    claim = CLAIM.format(a=counted[0], b=counted[1])
    unit = FloatCompare(FloatCompareParameters("fp32", flush))
    result = prove(unit, claim, dict.fromkeys("ab", FORMATS["fp32"]))
    assert result.status == "PASS", result


def test_proof_refutes_that_zeros_differ():
    """Equal values may have different bits (zeros), and equal bits be unordered (NaNs)."""
    same = "(= equal (ite (and (= a b) (not (fp.isNaN a_float))) #b1 #b0))"
    result = prove(
        FloatCompare(FloatCompareParameters()), same, dict.fromkeys("ab", FORMATS["fp16"])
    )
    assert result.status == "FAIL"
    assert {result.counterexample[port] for port in "ab"} == {0x0000, 0x8000}


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
def test_golden_model_by_the_definition(format):
    """All pairs, compared as fractions."""
    a, b = pairs(format, seed=0)
    value = [decode(number, FORMATS[format]) for number in range(256)]
    number = [{"inf": 1 << 99, "-inf": -1 << 99}.get(v, v) for v in value]
    expected = []
    for x, y in np.stack([bits(a), bits(b)], axis=1).tolist():
        u, v = number[x], number[y]
        expected.append((0, 0, 1) if "nan" in (u, v) else (u < v, u == v, 0))
    assert len(expected) == 1 << 16
    got = float_compare(a, b)
    np.testing.assert_array_equal(np.stack([got[name] for name in RELATIONS], axis=1), expected)


def test_golden_model_as_python_compares():
    a, b = (operand[-20_000:] for operand in pairs("fp16", seed=3))
    x, y = (struct.unpack(f"<{len(v)}e", v.tobytes()) for v in (a, b))
    got = float_compare(a, b)
    np.testing.assert_array_equal(got["less"], [u < v for u, v in zip(x, y, strict=True)])
    np.testing.assert_array_equal(got["equal"], [u == v for u, v in zip(x, y, strict=True)])
    np.testing.assert_array_equal(got["unordered"], is_nan(a) | is_nan(b))
    assert all(relation.any() for relation in got.values())
