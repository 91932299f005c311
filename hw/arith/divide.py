"""Division of floating-point numbers."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from hw.arith.datapath import Datapath
from hw.arith.float_format import FloatFormat
from hw.arith.leading_zeros import leading_one, shift_to_top
from hw.arith.multipartite import Field, Multipartite, TableParameters
from hw.arith.reciprocal import double_reciprocal

TABLES = {
    "fp16": Multipartite(10, 6, (Field(5, 2, 4), Field(4, 0, 2)), 7, 3, True),
    "bf16": Multipartite(7, 5, (Field(3, 0, 2),), 4, 2, True),
    "fp8_e4m3": Multipartite(3, 3, (), -1, 3, True),
    "fp8_e5m2": Multipartite(2, 2, (), -1, 2, True),
}


@dataclasses.dataclass(frozen=True)
class DivideParameters(TableParameters):
    CUTS: ClassVar = (
        (),
        ("result",),
        ("factors", "result"),
        ("factors", "product", "result"),
        ("normal", "factors", "product", "result"),
    )


class Divide(Datapath):
    """``o`` = ``a`` / ``b``.

    Both are normalised. Tables give the reciprocal of b's significand, less than 2^-(p + 1) off in
    proportion where p is the precision, and one multiplication the quotient, less than half a unit
    off before it is rounded. A comparison of the significands tells beforehand whether the quotient
    is below one, and so where to round. Quotients below the normal numbers are shifted down and cut
    off.

    Accuracy, over all operands: at most 0.931 units in the last place for FP16, 0.879 for BF16,
    0.572 for FP8 E4M3 and 0.600 for FP8 E5M2; in subnormal results, which are cut off, less than
    one unit. Quotients that are numbers of the format are exact. 0 / 0 and inf / inf are NaN, x / 0
    is infinity, or NaN in a format without infinities. With `flush_subnormals`, subnormal operands
    count as zeros of their sign, and a result whose rounded value is subnormal becomes zero.

    Members
    -------
    a, b : :py:`In(width)`
    o : :py:`Out(width)`
    """

    summary = "Quotient, less than one unit in the last place off"
    source = "library"

    def __init__(self, parameters: DivideParameters):
        kind = parameters.float_format.width
        super().__init__(parameters, {"a": kind, "b": kind}, {"o": kind})

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        kind, table = self.parameters.float_format, TABLES[self.parameters.format]
        flush = self.parameters.flush_subnormals
        a, a_exponent, a_zero, a_infinite, a_nan = _unpack(m, "a", self.a, kind, flush)
        b, b_exponent, b_zero, b_infinite, b_nan = _unpack(m, "b", self.b, kind, flush)
        is_nan, is_above, is_zero = Signal(), Signal(), Signal()
        m.d.comb += is_nan.eq(a_nan | b_nan | a_zero & b_zero | a_infinite & b_infinite)
        m.d.comb += [is_above.eq(a_infinite | b_zero), is_zero.eq(a_zero | b_infinite)]
        flags = Cat(self.a[-1] ^ self.b[-1], is_nan, is_above, is_zero)
        a, b, a_exponent, b_exponent, flags = cut(
            "normal", a=a, b=b, a_exponent=a_exponent, b_exponent=b_exponent, flags=flags
        )

        reciprocal = Signal(table.width + table.guard + 1)
        m.d.comb += reciprocal.eq(sum(table.terms(m, double_reciprocal, b), 0))
        # Whether the quotient of the significands is at least one.
        is_one = Signal()
        m.d.comb += is_one.eq(a >= b)
        # One less than the field, for the significand comes with its highest bit.
        field = Signal(signed(kind.exponent + 3))
        m.d.comb += field.eq(a_exponent - b_exponent + (kind.bias - 2) + is_one)
        a, reciprocal, is_one, field, flags = cut(
            "factors", a=a, reciprocal=reciprocal, is_one=is_one, field=field, flags=flags
        )

        dropped = len(reciprocal) - 1
        product = Signal(len(reciprocal) + kind.mantissa + 1)
        half = Mux(is_one, 1 << dropped, 1 << dropped - 1)
        m.d.comb += product.eq(Cat(a, 1) * reciprocal + half)
        significand = Signal(kind.mantissa + 2)
        m.d.comb += significand.eq(Mux(is_one, product >> dropped + 1, product >> dropped))
        significand, field, flags = cut(
            "product", significand=significand, field=field, flags=flags
        )

        is_small, is_large = Signal(), Signal()
        m.d.comb += is_small.eq(field[-1])
        m.d.comb += is_large.eq(field >= kind.largest >> kind.mantissa)
        depth = Signal(len(field) - 1)
        m.d.comb += depth.eq(-field)
        levels = (kind.mantissa + 1).bit_length()
        lost = depth[1:].any() if flush else depth[levels:].any()
        shift = Signal(levels)
        m.d.comb += shift.eq(Mux(is_small, depth[:levels], 0))
        shifted = Signal(len(significand))
        m.d.comb += shifted.eq(significand >> shift)
        if flush:
            shifted = Mux(is_small & ~shifted[kind.mantissa], 0, shifted)
        magnitude = Signal(kind.width)
        start = Mux(is_small, 0, field[: kind.exponent])
        m.d.comb += magnitude.eq(shifted + (start << kind.mantissa))
        # Without infinities, rounding can go beyond the code that stands for overflow.
        beyond = is_large if kind.infinities else is_large | (magnitude >= kind.overflow)

        sign, is_nan, is_above, is_zero = flags
        o = Signal(kind.width)
        with m.If(is_nan):
            m.d.comb += o.eq(kind.quiet_nan)
        with m.Elif(is_above | beyond & ~is_zero):
            m.d.comb += o.eq(Cat(Const(kind.overflow, kind.width - 1), sign & kind.infinities))
        with m.Elif(is_zero | is_small & lost):
            m.d.comb += o[-1].eq(sign)
        with m.Else():
            m.d.comb += o.eq(Cat(magnitude[:-1], sign))
        m.d.comb += self.o.eq(cut("result", o=o))
        return m


def _unpack(m: Module, name: str, x: Value, kind: FloatFormat, flush: bool) -> tuple[Value, ...]:
    """Fraction and signed exponent field of a normalised operand; is it zero, infinite, NaN."""
    mantissa, exponent = x[: kind.mantissa], x[kind.mantissa : -1]
    is_subnormal, is_zero, is_infinite, is_nan = (
        Signal(name=f"{name}_is_{what}") for what in ("subnormal", "zero", "infinite", "nan")
    )
    m.d.comb += is_subnormal.eq(exponent == 0)
    m.d.comb += is_zero.eq(is_subnormal & (flush | (mantissa == 0)))
    m.d.comb += is_infinite.eq(kind.infinities & (x[:-1] == kind.overflow))
    m.d.comb += is_nan.eq(x[:-1] > kind.overflow - (not kind.infinities))
    fraction = Signal(kind.mantissa, name=f"{name}_fraction")
    field = Signal(signed(kind.exponent + 1), name=f"{name}_field")
    m.d.comb += [fraction.eq(mantissa), field.eq(exponent)]
    if not flush:
        place = leading_one(m, mantissa, f"{name}_leading")
        normal = shift_to_top(m, mantissa, place, f"{name}_normal")
        with m.If(is_subnormal):
            m.d.comb += fraction.eq(normal << 1)
            m.d.comb += field.eq(place - ((1 << len(place)) - 1))
    return fraction, field, is_zero, is_infinite, is_nan
