"""Addition and subtraction: every pair of 8-bit numbers, proofs against IEEE 754 for FP32.

All pairs of 16-bit numbers are in ``tests/sim/commands/test_exhaustive.py``.
"""

import functools
from fractions import Fraction

import numpy as np
import pytest
from amaranth.hdl import Const, Elaboratable, Module, Mux, Signal
from amaranth.sim import Simulator

from golden.arith.float_add import float_add
from golden.arith.formats import DTYPES, from_bits, to_bits
from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_format import FORMATS
from sim.checks.formal.float_proof import equals, exponent_differences, prove
from sim.testbenches.arith.float_add import testbench
from tests.support.arith import exact
from tests.support.arith.exact import encode
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import differences, pairs, registers_agree

SEED = 1
SMALL = ("fp8_e4m3", "fp8_e5m2")
FLUSH = pytest.mark.parametrize("flush", [False, True], ids=["full", "flush"])


def operands(parameters, count):
    """All pairs of 8-bit numbers, else corners with corners and random ones; sums, differences."""
    a, b = pairs(parameters.format, seed=SEED, count=10)
    a, b = np.tile(a, 2), np.tile(b, 2)
    subtract = np.arange(len(a)) // (len(a) // 2)
    if DTYPES[parameters.format].itemsize > 1:
        random, _ = testbench.draw(parameters, None, count, seed=SEED)
        a, b = np.concatenate([a, random["a"]]), np.concatenate([b, random["b"]])
        subtract = np.concatenate([subtract, random["subtract"]])
    return {"a": a, "b": b, "subtract": subtract}


@FLUSH
@pytest.mark.parametrize("format, count", [("fp32", 1_000_000), *((f, 1 << 17) for f in SMALL)])
def test_unit_is_its_golden_model(format, count, flush):
    parameters = FloatAddParameters(format, flush)
    values = operands(parameters, count)
    assert len(values["a"]) >= count
    expected = testbench._golden(parameters, **values)
    assert differences(Netlist(FloatAdd(parameters)), values, expected) == 0


@pytest.mark.parametrize(
    "format, stages, flush",
    [("fp16", 1, False), ("fp16", 2, False), ("fp16", 3, True), ("fp16", 4, False)]
    + [("fp8_e4m3", 4, True)],
)
def test_registers(format, stages, flush):
    parameters = FloatAddParameters(format, flush, stages=stages)
    net = Netlist(FloatAdd(parameters))
    assert net.flipflops >= FORMATS[format].width * stages
    values = operands(parameters, 20_000)
    registers_agree(net, values, testbench._golden(parameters, **values), stages, seed=SEED)


def claim(parameters):
    a, b = (
        ("(flush a_float)", "(flush b_float)")
        if parameters.flush_subnormals
        else (
            "a_float",
            "b_float",
        )
    )
    total = f"(fp.add RNE {a} (ite (= subtract #b1) (fp.neg {b}) {b}))"
    return f"(flush {total})" if parameters.flush_subnormals else total


def proof(unit, parameters, cases=("true",), seconds=600):
    f = parameters.float_format
    return prove(unit, equals("o", claim(parameters), f), {"a": f, "b": f}, cases, seconds)


@pytest.mark.parametrize(
    "format, flush",
    [
        ("fp8_e5m2", True),
        ("bf16", False),
        pytest.param("bf16", True, marks=pytest.mark.campaign),
        pytest.param("fp16", False, marks=pytest.mark.campaign),
        pytest.param("fp16", True, marks=pytest.mark.campaign),
    ],
)
def test_unit_is_ieee_754_addition(format, flush):
    parameters = FloatAddParameters(format, flush)
    result = proof(FloatAdd(parameters), parameters)
    assert result.status == "PASS" and result.queries == 1, result


@pytest.mark.campaign
@FLUSH
def test_fp32_is_ieee_754_addition(flush):
    parameters = FloatAddParameters("fp32", flush)
    cases = exponent_differences("a", "b", parameters.float_format)
    result = proof(FloatAdd(parameters), parameters, cases)
    assert result.status == "PASS" and result.queries == len(cases) == 55, result


class WithoutSticky(FloatAdd):
    def _align(self, *arguments):
        aligned, _ = super()._align(*arguments)
        return aligned, Const(0)


class WithoutSignOfDifferences(FloatAdd):
    def _add(self, m, larger, aligned, sticky, subtract, sign):
        total, _ = super()._add(m, larger, aligned, sticky, subtract, sign)
        return total, sign


class WithAnotherNan(FloatAdd):
    def _normalise(self, m, total, exponent, sign, nan):
        return super()._normalise(m, total, exponent, sign, nan) ^ (nan & sign)


@pytest.mark.parametrize(
    "unit, format",
    [
        (WithoutSticky, "fp32"),
        (WithoutSignOfDifferences, "bf16"),
        (WithAnotherNan, "fp16"),
    ],
)
def test_proof_refutes_a_wrong_unit(unit, format):
    parameters = FloatAddParameters(format)
    result = proof(unit(parameters), parameters)
    assert result.status == "FAIL", result
    a, b, o = (
        from_bits(np.array([result.counterexample[port]]), format) for port in ("a", "b", "o")
    )
    right = float_add(a, b, result.counterexample["subtract"] == 1)
    assert to_bits(right) != to_bits(o)


@pytest.mark.parametrize("most", [1, 2])
def test_cases_of_a_proof_cover_all_operands(most):
    """The last two cases cover all remaining operands: a claim that fails there is refuted."""
    parameters = FloatAddParameters("fp8_e5m2")
    f = parameters.float_format
    cases = exponent_differences("a", "b", f)
    anything = f"(or {' '.join(cases)})"
    assert prove(FloatAdd(parameters), anything, {"a": f, "b": f}).status == "PASS"
    rest = f"(or {' '.join(cases[:-most])})"
    assert prove(FloatAdd(parameters), rest, {"a": f, "b": f}).status == "FAIL"


decode = functools.cache(exact.decode)


def by_definition(a: int, b: int, f) -> int:
    """Bits of a sum, computed with fractions."""
    x, y = decode(a, f), decode(b, f)
    texts = {v for v in (x, y) if isinstance(v, str)}
    if "nan" in texts or len(texts) == 2:
        return f.quiet_nan
    if texts:
        return f.infinity | ("-inf" in texts) << f.width - 1
    negative = bool(a >> f.width - 1) and bool(b >> f.width - 1)
    return encode(x + y, negative and x + y == 0, f, saturate=False)


@pytest.mark.parametrize("format, count", [("fp8_e4m3", 0), ("fp8_e5m2", 0), ("fp16", 3000),
                                           ("bf16", 3000), ("fp32", 3000)])  # fmt: skip
def test_golden_model_by_the_definition(format, count):
    f = FORMATS[format]
    if count:
        drawn, _ = testbench.draw(FloatAddParameters(format), None, count, seed=SEED)
        a, b = drawn["a"], drawn["b"]
    else:
        a, b = pairs(format, seed=SEED)
    got = to_bits(float_add(a, b)).tolist()
    bits_a, bits_b = to_bits(a).tolist(), to_bits(b).tolist()
    worst = Fraction(0)
    compared = 0
    for x, y, o in zip(bits_a, bits_b, got, strict=True):
        assert o == by_definition(x, y, f), f"{x:#x} + {y:#x} is {o:#x}"
        compared += 1
        values = [decode(bits, f) for bits in (x, y, o)]
        if not any(isinstance(value, str) for value in values):
            place = max((o >> f.mantissa) % (1 << f.exponent), 1) - f.bias - f.mantissa
            worst = max(worst, abs(values[2] - values[0] - values[1]) / Fraction(2) ** place)
    print(f"{format}: at most {float(worst)} ulp in {compared} sums")
    assert compared == (count or 1 << 16) and worst == Fraction(1, 2)
    difference = float_add(a, b, np.ones(len(a), bool))
    negated = from_bits(to_bits(b) ^ (1 << f.width - 1), format)
    np.testing.assert_array_equal(to_bits(difference), to_bits(float_add(a, negated)))


@pytest.mark.parametrize("format, width", [("fp16", 16), ("fp32", 32)])
def test_golden_model_by_softfloat(format, width):
    softfloat = pytest.importorskip("softfloatpy")
    add, number = {
        "fp16": (softfloat.f16_add, softfloat.Float16),
        "fp32": (softfloat.f32_add, softfloat.Float32),
    }[format]
    drawn, _ = testbench.draw(FloatAddParameters(format), None, 10_000, seed=SEED)
    got = float_add(drawn["a"], drawn["b"])
    compared = 0
    for a, b, o in zip(*(to_bits(v).tolist() for v in (drawn["a"], drawn["b"], got)), strict=True):
        reference = add(number.from_bytes(a.to_bytes(width // 8, "big")),
                        number.from_bytes(b.to_bytes(width // 8, "big")))  # fmt: skip
        expected = int.from_bytes(reference.to_bytes(), "big")
        if not isinstance(decode(expected, FORMATS[format]), str):
            assert o == expected, f"{a:#x} + {b:#x}"
            compared += 1
    assert compared > 3_000


def test_zeros_and_flushed_numbers():
    plus, minus, least, normal = (np.array([n], np.uint16).view(np.float16)
                                  for n in (0, 0x8000, 0x0001, 0x0400))  # fmt: skip
    for a, b, subtract, flush, expected in [
        (normal, normal, True, False, 0x0000),
        (minus, minus, False, False, 0x8000),
        (minus, plus, True, False, 0x8000),
        (plus, minus, False, False, 0x0000),
        (least, least, False, False, 0x0002),
        (least, least, False, True, 0x0000),
        (-least, -least, False, True, 0x8000),
        (-normal, -least, True, False, 0x83FF),
        (-normal, -least, True, True, 0x8400),
        (-normal, np.float16(1.5) * normal, False, True, 0x0000),
        (normal, np.float16(1.5) * normal, True, True, 0x8000),
    ]:
        got = float_add(a, b, subtract, flush_subnormals=flush)
        assert to_bits(got)[0] == expected, (a, b, subtract, flush)


class Accumulator(Elaboratable):
    """An accumulator: a one-stage adder whose result is its operand after the first number."""

    def __init__(self):
        self.unit = FloatAdd(FloatAddParameters(stages=1))
        self.first, self.number = Signal(), Signal(16)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = self.unit
        m.d.comb += [
            self.unit.a.eq(Mux(self.first, 0, self.unit.o)),
            self.unit.b.eq(self.number),
        ]
        return m


def test_accumulates_a_number_each_cycle():
    rng = np.random.default_rng(SEED)
    numbers = rng.standard_normal((300, 1)).astype(np.float16)
    total, expected = np.zeros(1, np.float16), []
    for number in numbers:
        total = float_add(total, number)
        expected.append(to_bits(total)[0])
    accumulator, got = Accumulator(), []

    async def drive(context):
        for place, bits in enumerate(to_bits(numbers).ravel().tolist()):
            context.set(accumulator.first, int(place == 0))
            context.set(accumulator.number, bits)
            await context.tick()
            got.append(context.get(accumulator.unit.o))

    simulator = Simulator(accumulator)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()
    np.testing.assert_array_equal(got, expected)
    assert len(got) == 300
