"""The natural logarithm of a floating-point number."""

import dataclasses
from decimal import Context, Decimal
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed

from hw.arith.datapath import Datapath
from hw.arith.leading_zeros import leading_one, shift_to_top
from hw.arith.multipartite import SCALE, Field, Multipartite, TableParameters
from hw.arith.square_root import classify

TABLES = {
    "fp16": Multipartite(10, 5, (Field(5, 3, 5), Field(4, 0, 3)), 7, 3, True),
    "bf16": Multipartite(7, 5, (Field(3, 0, 2),), 4, 3, True),
    "fp8_e4m3": Multipartite(3, 3, (), 2, 3, True),
    "fp8_e5m2": Multipartite(2, 2, (), 2, 3, True),
}

EXACT = Context(prec=40)
LN_2 = int(EXACT.multiply(EXACT.ln(Decimal(2)), 1 << SCALE))


def slope(n: int, k: int) -> int:
    """ln(m) / (m - 1) times 2^SCALE, rounded down, with 1 for m = 1.

    For t = n / 2^k, m rises from 3/4 to 1 as t rises to 1/2, and then to 3/2. So the highest bit of
    t is the complement of that of the operand's fraction, and the others are the same.
    """
    rise = 2 * n - (1 << k)
    if not rise:
        return 1 << SCALE
    distance = EXACT.divide(Decimal(rise), Decimal((4 if rise < 0 else 2) << k))
    return int(EXACT.multiply(EXACT.divide(EXACT.ln(1 + distance), distance), 1 << SCALE))


@dataclasses.dataclass(frozen=True)
class LogParameters(TableParameters):
    CUTS: ClassVar = (
        (),
        ("result",),
        ("product", "result"),
        ("factors", "sum", "result"),
        ("factors", "product", "sum", "result"),
    )
    PIPELINED: ClassVar = 3


class Log(Datapath):
    """``o`` = ln(``x``).

    With x = 2^E m and 3/4 <= m < 3/2, ln(x) = E ln(2) + (m - 1) g where tables give
    g = ln(m) / (m - 1). Close to 1, E is zero and nothing cancels: m - 1 is exact and the product
    as precise, in proportion, as g. The sum is formed as a magnitude, since the sign is known from
    E and m, and normalised and rounded.

    Accuracy, over all operands: at most 0.831 units in the last place for FP16, 0.682 for BF16 and
    0.521 for FP8 E5M2, rounded correctly for FP8 E4M3. FP16 results never decrease with ``x``.
    ln(1) = +0, ln(inf) = inf, a zero of either sign gives minus infinity, or NaN in a format
    without, and negative numbers give NaN. With `flush_subnormals`, subnormal operands count as
    zeros of their sign; no result is subnormal.

    Members
    -------
    x : :py:`In(width)`
    o : :py:`Out(width)`
    """

    summary = "Natural logarithm"
    source = "library"

    def __init__(self, parameters: LogParameters):
        kind = parameters.float_format.width
        super().__init__(parameters, {"x": kind}, {"o": kind})

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        kind, table = self.parameters.float_format, TABLES[self.parameters.format]
        flush = self.parameters.flush_subnormals
        mantissa, field = self.x[: kind.mantissa], self.x[kind.mantissa : -1]
        is_subnormal, is_zero, is_infinite, is_nan = classify(m, self.x, kind, flush)
        fraction, exponent = Signal(kind.mantissa), Signal(signed(kind.exponent + 1))
        m.d.comb += [fraction.eq(mantissa), exponent.eq(field - kind.bias)]
        if not flush:
            place = leading_one(m, mantissa)
            normal = shift_to_top(m, mantissa, place, "mantissa")
            with m.If(is_subnormal):
                m.d.comb += fraction.eq(normal << 1)
                m.d.comb += exponent.eq(place - (kind.bias + (1 << len(place)) - 1))
        flags = Cat(is_nan, is_zero, is_infinite)

        # From 3/2 on a significand is halved, and so below one.
        upper, distance = fraction[-1], Signal(kind.mantissa)
        m.d.comb += distance.eq(Mux(upper, -fraction, fraction << 1))
        steepness = Signal(table.width + table.guard + 1)
        index = Cat(fraction[:-1], ~upper)
        m.d.comb += steepness.eq(sum(table.terms(m, slope, index), 0))
        whole, size = Signal(signed(len(exponent))), Signal(len(exponent))
        m.d.comb += [whole.eq(exponent + upper), size.eq(Mux(whole[-1], -whole, whole))]
        sign, subtract = Signal(), Signal()
        m.d.comb += sign.eq(whole[-1] | (whole == 0) & upper)
        m.d.comb += subtract.eq(sign ^ upper)
        factors = {"distance": distance, "steepness": steepness, "size": size}
        signs = Cat(subtract, sign, flags)
        distance, steepness, size, signs = cut("factors", **factors, signs=signs)

        # Places behind the point of E ln(2), and of the product.
        coarse, fine = kind.mantissa + 6, kind.mantissa + 1 + table.width + table.guard
        product = Signal(len(distance) + len(steepness))
        multiple = Signal(coarse + kind.exponent)
        m.d.comb += product.eq(distance * steepness)
        m.d.comb += multiple.eq(size * (LN_2 + (1 << SCALE - coarse - 1) >> SCALE - coarse))
        product, multiple, signs = cut("product", product=product, multiple=multiple, signs=signs)

        total = Signal(fine + kind.exponent)
        shifted = Cat(Const(0, fine - coarse), multiple)
        m.d.comb += total.eq(shifted + (product ^ signs[0].replicate(len(total))) + signs[0])
        total, signs = cut("sum", total=total, signs=signs[1:])

        place = leading_one(m, total, "total")
        normal = shift_to_top(m, total, place, "total")
        # The highest place's number in its exponent's field, less one for the significand's one.
        top = kind.exponent - 1 + kind.bias - 1 - ((1 << len(place)) - 1)
        start = Signal(kind.exponent)
        m.d.comb += start.eq(place + top)
        rounded = Signal(kind.width - 1)
        kept = normal[-kind.precision - 1 :]
        m.d.comb += rounded.eq(kept[1:] + kept[0] + (start << kind.mantissa))
        sign, is_nan, is_zero, is_infinite = signs
        o = Signal(kind.width)
        with m.If(is_nan):
            m.d.comb += o.eq(kind.quiet_nan)
        with m.Elif(is_zero | is_infinite):
            overflow = Const(kind.overflow, kind.width - 1)
            m.d.comb += o.eq(Cat(overflow, is_zero & kind.infinities))
        with m.Elif(normal[-1]):
            m.d.comb += o.eq(Cat(rounded, sign))
        m.d.comb += self.o.eq(cut("result", o=o))
        return m
