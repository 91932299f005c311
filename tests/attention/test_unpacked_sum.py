"""A PE's parts on an FPGA: proofs against IEEE 754, and the numbers at their edges."""

import dataclasses

import numpy as np
import pytest
from amaranth.hdl import Cat, Fragment, Module, Mux
from amaranth.lib import data

from golden.arith.formats import canonical, from_bits, to_bits
from golden.attention.pe_array import _add, _products, _rounded
from hw.arith.float_format import FP16, FP32, FloatFormat
from hw.attention import unpacked_sum
from hw.attention.packed_sum import ACCUMULATORS
from hw.attention.unpacked_sum import UnpackedSums
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out
from sim.checks.formal.float_proof import constant, equals, exponent_differences, prove
from sim.testbenches.operands import numbers
from tests.support.arith.netlist import Netlist
from tests.support.arith.pairs import differences
from tests.support.faults import with_fault

TARGETS = ("dsp", "dsp_shifts")
SHIFTED = FP32.bias - 62
"""An FP32 exponent field less the one of an unpacked sum."""
LOWEST, HIGHEST = SHIFTED + 24, SHIFTED + 126
"""Exponent fields of the FP32 operands here: no sum of two is out of an unpacked sum's range."""


@dataclasses.dataclass(frozen=True)
class Target:
    multiplier: str


def unpacked(number, fmt: FloatFormat) -> Cat:
    """Bits of a packed number as an unpacked sum."""
    fraction, field = number[: fmt.mantissa], number[fmt.mantissa : -1]
    special = field.all()
    exponent = (field - SHIFTED)[: unpacked_sum.EXPONENT]
    return Cat(fraction, field.any(), exponent, special, special & fraction.any(), number[-1])


def packed(total, fmt: FloatFormat) -> Cat:
    """Bits of an unpacked sum as a packed number."""
    number = total.significand[-1] & ~total.special
    fraction = Mux(number, total.significand[:-1], total.nan << fmt.mantissa - 1)
    field = Mux(number, total.exponent + SHIFTED, total.special.replicate(fmt.exponent))
    return Cat(
        fraction[: fmt.mantissa], field[: fmt.exponent], total.sign & ~(total.nan & total.special)
    )


class Wrapped(Component[None]):
    """A part of a PE between packed numbers.

    part
        ``add``: o = a + b; ``multiply``: o = a b of FP16; ``round``: o = a as FP16.
    """

    def __init__(self, part: str, name: str = "fp32", multiplier: str = "dsp", module=unpacked_sum):
        self._name = name
        self._part = part
        self._target = Target(multiplier)
        self._sums = module.UnpackedSums(name, 1, 1)
        super().__init__()

    def ports(self) -> Ports:
        width = ACCUMULATORS[self._name].width
        operand = 16 if self._part == "multiply" else width
        ports = {
            "a": wire_in(operand),
            "b": wire_in(operand),
            "o": wire_out(16 if self._part == "round" else width),
        }
        if self._part == "round":
            del ports["b"]
        return ports

    def elaborate(self, platform):
        m = Module()
        sums = self._sums
        fmt, layout = sums.float_format, sums.layout
        if self._part == "round":
            number = data.View(layout, unpacked(self.a, fmt))
            m.d.comb += self.o.eq(sums.to_fp16(m, self._target, number.as_value()))
            return m
        if self._part == "add":
            unit = sums.adder()
            m.d.comb += [
                unit.a.as_value().eq(unpacked(self.a, fmt)),
                unit.b.as_value().eq(unpacked(self.b, fmt)),
            ]
        else:
            unit = sums.multiplier()
            m.d.comb += [
                unit.a.eq(sums.unpack(m, self._target, self.a, "a")),
                unit.b.eq(sums.unpack(m, self._target, self.b, "b")),
            ]
        m.submodules.unit = Fragment.get(unit, self._target)
        m.d.comb += self.o.eq(packed(unit.o, fmt))
        return m


def in_range(port: str, fmt: FloatFormat = FP32) -> str:
    """The assumption that a port has a number that a PE's sum can be, or infinity, NaN or 0."""
    field = f"((_ extract {fmt.width - 2} {fmt.mantissa}) {port})"
    fraction = f"((_ extract {fmt.mantissa - 1} 0) {port})"
    zero, nothing = constant(0, fmt.exponent), constant(0, fmt.mantissa)
    inside = (
        f"(and (bvuge {field} {constant(LOWEST, fmt.exponent)})"
        f" (bvule {field} {constant(HIGHEST, fmt.exponent)}))"
    )
    return (
        f"(or {inside} (= {field} {constant(-1, fmt.exponent)})"
        f" (and (= {field} {zero}) (= {fraction} {nothing})))"
    )


def sum_claim(fmt: FloatFormat) -> str:
    claim = equals("o", "(fp.add RNE a_float b_float)", fmt)
    return f"(=> (and {in_range('a')} {in_range('b')}) {claim})"


@pytest.mark.parametrize("multiplier", TARGETS)
def test_rounding_is_ieee_754(multiplier):
    claim = f"(=> {in_range('a')} {equals('o', '((_ to_fp 5 11) RNE a_float)', FP16)})"
    result = prove(Wrapped("round", multiplier=multiplier), claim, {"a": FP32})
    assert result.status == "PASS" and result.queries == 1, result


CASES = exponent_differences("a", "b", FP32)
EQUAL = len(CASES) // 2 - 1
"""The case of equal exponents, where most bits can cancel; the next one has one bit to round."""


@pytest.mark.parametrize("multiplier", TARGETS)
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(CASES[EQUAL - 1 : EQUAL + 3] + CASES[-2:], id="some"),
        pytest.param(CASES, id="all", marks=pytest.mark.campaign),
    ],
)
def test_sum_is_ieee_754(cases, multiplier):
    unit = Wrapped("add", multiplier=multiplier)
    result = prove(unit, sum_claim(FP32), {"a": FP32, "b": FP32}, cases, seconds=600)
    assert result.status == "PASS" and result.queries == len(cases), result


FAULTS = {
    # A negative difference whose top bit is not complemented; a sticky bit that is forgotten in
    # the rounding; an infinity less an infinity; a coarse distance without its lost bits.
    "top_bit": ("total=Cat(total[:-1], carry | negative)", "total=Cat(total[:-1], carry)"),
    "sticky": ("total[0] & (total[1] | below)", "total[0] & total[1]"),
    "infinities": ("a.special & b.special & subtract", "0"),
    "coarse": ("coarse & Cat(kept[: len(up)]).any()", "coarse & Cat(kept[: len(up) - 1]).any()"),
    "zeros": ("(difference[-1] | ~nonzero[1])", "difference[-1]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_injected_fault_is_refuted(fault):
    module = with_fault(unpacked_sum, *FAULTS[fault])
    unit = Wrapped("add", multiplier="dsp_shifts", module=module)
    result = prove(unit, sum_claim(FP32), {"a": FP32, "b": FP32})
    assert result.status == "FAIL", result


def test_a_wrong_rounding_is_refuted():
    module = with_fault(unpacked_sum, "lost.any() | rest.any()", "lost.any()")
    claim = f"(=> {in_range('a')} {equals('o', '((_ to_fp 5 11) RNE a_float)', FP16)})"
    result = prove(Wrapped("round", module=module), claim, {"a": FP32})
    assert result.status == "FAIL", result


def bits_of(values: np.ndarray, name: str) -> np.ndarray:
    """Bits of numbers of an accumulator's format: the upper ones of FP32."""
    wide = to_bits(canonical(values.astype(np.float32))).astype(np.int64)
    return wide >> FP32.mantissa - ACCUMULATORS[name].mantissa


def sums(name: str, count: int, rng) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of numbers in the range of sums: of all exponents, close ones, special ones."""
    mantissa = ACCUMULATORS[name].mantissa

    def drawn(exponents):
        fraction = rng.integers(0, 1 << mantissa, count)
        # Long runs of ones and zeros, as they make carries.
        fraction ^= (1 << rng.integers(0, mantissa + 1, count)) - 1 & -rng.integers(0, 2, count)
        significand = (1 << mantissa) + (fraction & (1 << mantissa) - 1)
        return np.ldexp(significand * rng.choice([-1.0, 1.0], count), exponents - mantissa)

    first = rng.integers(-20, 60, count)
    near = np.clip(first + rng.integers(-mantissa - 3, mantissa + 4, count), -20, 60)
    a, b = drawn(first), drawn(near)
    b[: count // 8] = -np.nextafter(a, rng.choice([0, np.inf], count))[: count // 8]
    b[: count // 8] = to_bits(b[: count // 8].astype(np.float32)).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.5])
    x, y = np.meshgrid(special, np.concatenate([special, a[:50]]))
    a, b = (np.concatenate([p, q.ravel(), r.ravel()]) for p, q, r in ((a, x, y), (b, y, x)))
    down = FP32.mantissa - mantissa
    return tuple(from_bits(bits_of(v, name) << down, "fp32").astype(np.float64) for v in (a, b))


@pytest.mark.parametrize("multiplier", TARGETS)
@pytest.mark.parametrize("name", ["fp20", "fp22", "fp24", "fp32"])
def test_sums(name, multiplier):
    a, b = sums(name, 100_000, np.random.default_rng(1))
    if name == "fp32":
        a, b = a.astype(np.float32), b.astype(np.float32)
    expected = bits_of(_add(a, b, name), name)
    net = Netlist(Wrapped("add", name, multiplier))
    assert differences(net, {"a": bits_of(a, name), "b": bits_of(b, name)}, {"o": expected}) == 0


@pytest.mark.parametrize("multiplier", TARGETS)
@pytest.mark.parametrize("name", ["fp22", "fp32"])
def test_products(name, multiplier):
    """Many significands with every second one, subnormal ones included; exponents; special ones."""
    rng = np.random.default_rng(1)
    kinds = [numbers(kind, 40, rng) for kind in ("plain", "any", "small")]
    edges = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1, -65504, 2.0**-24], np.float16)
    every = np.arange(1 << 11, dtype=np.uint16)
    x, y = np.meshgrid(every[:: 16 if name == "fp32" else 32], every)
    random = rng.integers(0, 1 << 16, (2, 50_000)).astype(np.uint16)
    a = np.concatenate([to_bits(v).ravel() for v in [*kinds, np.repeat(edges, len(edges))]])
    b = np.concatenate([to_bits(v).ravel() for v in [*kinds[::-1], np.tile(edges, len(edges))]])
    a, b = np.concatenate([a, x.ravel(), random[0]]), np.concatenate([b, y.ravel(), random[1]])
    product = _products(from_bits(a, "fp16"), from_bits(b, "fp16"), name)
    net = Netlist(Wrapped("multiply", name, multiplier))
    assert differences(net, {"a": a, "b": b}, {"o": bits_of(product, name)}) == 0


@pytest.mark.parametrize("multiplier", TARGETS)
def test_every_factor(multiplier):
    """Each FP16 number times one, rounded to FP16 again, is itself."""
    every = np.arange(1 << 16)
    ones = np.full(1 << 16, 0x3C00)
    product = _products(from_bits(every, "fp16"), from_bits(ones, "fp16"), "fp20")
    net = Netlist(Wrapped("multiply", "fp20", multiplier))
    assert differences(net, {"a": every, "b": ones}, {"o": bits_of(product, "fp20")}) == 0
    back = Netlist(Wrapped("round", "fp20", multiplier))
    expected = to_bits(canonical(_rounded(product)))
    assert differences(back, {"a": bits_of(product, "fp20")}, {"o": expected}) == 0


def test_numbers_of_a_sum():
    layout = UnpackedSums("fp32", 1, 2).layout
    assert layout.size == 34 and UnpackedSums("fp22", 1, 2).width == 24
    assert layout.const({"sign": 1}).as_value().value == 1 << 33
