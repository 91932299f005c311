"""The exponential function of a floating-point number."""

import dataclasses
from math import isqrt
from typing import Any, ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from hw.arith.bits.order_key import is_nan
from hw.arith.datapath import FloatFunction
from hw.arith.special_values import select_result
from hw.arith.tables.multipartite import SCALE, Field, Multipartite, TableParameters


@dataclasses.dataclass(frozen=True)
class Widths:
    """Widths of the datapath for a format.

    exponent
        Highest exponent of an operand whose result may be neither zero nor too large.
    product
        Fraction bits of the operand's significand times log2(e).
    table
        Table of 2^f - f for a fraction f of ``table.width`` bits.
    """

    exponent: int
    product: int
    table: Multipartite


WIDTHS = {
    "fp16": Widths(4, 16, Multipartite(12, 6, (Field(5, 4, 6), Field(3, 0, 4)), 14)),
    "bf16": Widths(6, 15, Multipartite(9, 5, (Field(3, 0, 4),), 12)),
    "fp8_e4m3": Widths(2, 8, Multipartite(5, 2, (Field(2, 0, 3),), 11)),
    "fp8_e5m2": Widths(3, 8, Multipartite(6, 2, (Field(2, 0, 4),), 35)),
}

LOG2_E = ((1, 1), (6, -1), (8, -1), (11, 1), (14, -1))
"""log2(e) / 3 as (shift, sign) of powers of two: 2^-1 - 2^-6 - 2^-8 + 2^-11 - 2^-14."""


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


class Exp(FloatFunction[ExpParameters]):
    """``o`` = e^``x``.

    x log2(e) is computed in fixed point and split into an integer k and a fraction f, which
    together are a first approximation: exponent k, mantissa f (Schraudolph, "A fast, compact
    approximation of the exponential function", 1999). Tables add 2^f - f - 1 and half a unit for
    rounding; a carry out of the mantissa increments the exponent, as it must. A result below the
    normal numbers is shifted right and truncated.

    ::

        x log2(e)       | integer k             | fraction f       |
        first result    | field k + bias - 1    | f                |
        2^f - f       +                     | 1 | small            |
        result          | exponent field        | mantissa | r     |

    Accuracy, over all operands: at most 0.876 units in the last place for FP16, 0.795 for BF16,
    0.680 for FP8 E4M3, rounded correctly for FP8 E5M2; in subnormal results, which are truncated,
    at most 0.997, 0.991 and 0.770 units. Results never decrease with ``x``. e^0 = 1, e^inf = inf,
    e^-inf = 0. Below the smallest subnormal number the result is zero, above the largest number it
    is infinity, or NaN in a format without infinities. With `flush_subnormals`, a result that would
    be subnormal is zero.

    Latency: `stages`. Throughput: one result per cycle.

    Examples
    --------
    >>> from hw.arith.exp import Exp, ExpParameters
    >>> sorted(ExpParameters.presets())
    ['bf16', 'fp16', 'fp16_pipelined', 'fp8_e4m3']
    >>> Exp(ExpParameters(stages=4)).parameters.cycles(operations=16)
    20
    """

    summary = "e to the power of a floating-point number"
    source = "library"
    result = "e to the power of x."

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        fmt, widths = self.parameters.float_format, WIDTHS[self.parameters.format]
        table = widths.table
        mantissa, exponent, sign = self.x[: fmt.mantissa], self.x[fmt.mantissa : -1], self.x[-1]
        # An operand with `too_far` an exponent overflows or underflows, depending on its sign.
        nan = Signal()
        too_far = Signal()
        m.d.comb += nan.eq(is_nan(self.x, fmt))
        m.d.comb += too_far.eq(exponent > fmt.bias + widths.exponent)
        product = self._product(m, Cat(mantissa, 1))
        product, exponent, sign, nan, too_far = cut(
            "product", product=product, exponent=exponent, sign=sign, nan=nan, too_far=too_far
        )
        scaled = self._scaled(m, product, exponent)
        scaled, sign, nan, too_far = cut(
            "scaled", scaled=scaled, sign=sign, nan=nan, too_far=too_far
        )

        # x log2(e) in two's complement, but for the last unit: a negative one is only inverted.
        signs = Signal(len(scaled))
        power = Signal(signed(len(scaled) + 1))
        m.d.comb += [signs.eq(Mux(sign, -1, 0)), power.eq(Cat(scaled ^ signs, sign))]
        fraction, whole = power[: table.width], power[table.width :].as_signed()
        # One less than the result's field, for the table adds the significand's leading one; and
        # the distance of a subnormal result's exponent from the smallest normal one.
        field = Signal(signed(len(whole) + 1))
        distance = Signal(len(whole))
        m.d.comb += field.eq(whole + (fmt.bias - 1))
        m.d.comb += distance.eq(scaled[table.width :] - (fmt.bias - 2))
        subnormal = Signal()
        overflow = Signal()
        underflow = Signal()
        m.d.comb += subnormal.eq(field[-1])
        m.d.comb += overflow.eq(~sign & (too_far | (field >= fmt.largest >> fmt.mantissa)))
        levels = (fmt.mantissa + 1).bit_length()
        lost = subnormal if self.parameters.flush_subnormals else distance[levels:].any()
        m.d.comb += underflow.eq(sign & (too_far | subnormal & lost))
        shift = Signal(levels)
        m.d.comb += shift.eq(Mux(subnormal, distance[:levels], 0))
        total = Signal(fmt.exponent + table.width)
        start = Cat(fraction, Mux(subnormal, 0, field[: fmt.exponent]))
        m.d.comb += total.eq(sum(table.terms(m, excess, fraction), start))
        total, shift, overflow, underflow, nan = cut(
            "sum", total=total, shift=shift, overflow=overflow, underflow=underflow, nan=nan
        )

        # Only the mantissa and the two lowest bits of the exponent can move.
        rounded = total[table.width - fmt.mantissa :]
        near, far = rounded[: fmt.mantissa + 2], rounded[fmt.mantissa + 2 :]
        if not self.parameters.flush_subnormals:
            shifted = Signal(len(near))
            m.d.comb += shifted.eq(near >> shift)
            near = shifted
        result = select_result(
            m, fmt, Cat(near, far), sign=Const(0), nan=nan, overflow=overflow, zero=underflow
        )
        m.d.comb += self.o.eq(cut("result", o=result))
        return m

    def _product(self, m: Module, significand) -> Signal:
        """The significand times log2(e), with ``WIDTHS[format].product`` fraction bits."""
        fmt, widths = self.parameters.float_format, WIDTHS[self.parameters.format]
        triple = Signal(len(significand) + 2)
        m.d.comb += triple.eq(significand + (significand << 1))
        # Two unsigned sums: Verilator 5.48 extends unsigned terms of a signed sum wrongly.
        sums: dict[int, Any] = {1: 0, -1: 0}
        for right, sign in LOG2_E:
            left = widths.product - fmt.mantissa - right
            if len(triple) + left > 0:
                sums[sign] += triple << left if left >= 0 else triple >> -left
        product = Signal(widths.product + 2)
        m.d.comb += product.eq(sums[1] - sums[-1])
        return product

    def _scaled(self, m: Module, product, exponent) -> Signal:
        """The product times the power of two, rounded down.

        The two lowest bits of the exponent shift by 0 to 3 bits, the others select a multiple of 4.
        """
        fmt, widths = self.parameters.float_format, WIDTHS[self.parameters.format]
        scaled = Signal(widths.exponent + 2 + widths.table.width)
        near = Signal(len(product) + 3)
        m.d.comb += near.eq(Cat(Const(0, 3), product) >> ~exponent[:2])
        total: int | Value = 0
        for upper in range(widths.exponent + fmt.bias + 4 >> 2):
            right = widths.product + 3 - widths.table.width - (4 * upper - fmt.bias + 3)
            if right < len(near):
                chosen = Signal(len(scaled), name=f"scaled_{upper}")
                value = near >> right if right >= 0 else near << -right
                m.d.comb += chosen.eq(Mux(exponent[2:] == upper, value, 0))
                total |= chosen
        m.d.comb += scaled.eq(total)
        return scaled
