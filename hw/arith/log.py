"""The natural logarithm of a floating-point number."""

import dataclasses
from decimal import Context, Decimal
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed

from hw.arith.bits.leading_zeros import leading_one, shift_to_top
from hw.arith.datapath import FloatFunction
from hw.arith.special_values import classify, normalised, select_result
from hw.arith.tables.multipartite import SCALE, Field, Multipartite, TableParameters

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
    t is the complement of the highest bit of the operand's fraction, and the others are the same.
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


class Log(FloatFunction[LogParameters]):
    """``o`` = ln(``x``).

    With x = 2^E m and 3/4 <= m < 3/2, ln(x) = E ln(2) + (m - 1) g where tables give g = ln(m) / (m
    - 1). Close to x = 1, E is zero and nothing cancels: m - 1 is exact and the product has the
    relative precision of g. The sum is computed as a magnitude, because E and m tell its sign, then
    normalised and rounded.

    ::

        E ln(2)         | integer (exponent bits) | coarse fraction |
        (m - 1) g     ±                           | distance × steepness         |
        total           | integer                 | fine fraction                |

    Accuracy, over all operands: at most 0.831 units in the last place for FP16, 0.682 for BF16 and
    0.521 for FP8 E5M2, rounded correctly for FP8 E4M3. FP16 results never decrease with ``x``.
    ln(1) = +0, ln(inf) = inf, a zero of either sign gives minus infinity, or NaN in a format
    without infinities, and negative numbers give NaN. With `flush_subnormals`, subnormal operands
    count as zeros of their sign; no result is subnormal.

    Latency: `stages`. Throughput: one result per cycle.

    Examples
    --------
    >>> from hw.arith.log import Log, LogParameters
    >>> LogParameters.presets()["fp16_pipelined"].latency
    3
    >>> Log(LogParameters(format="fp8_e5m2")).o.shape()
    unsigned(8)
    """

    summary = "Natural logarithm"
    source = "library"
    result = "Natural logarithm of x."

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        fmt, table = self.parameters.float_format, TABLES[self.parameters.format]
        flush = self.parameters.flush_subnormals
        of = classify(m, self.x, fmt, flush)
        fraction, exponent = normalised(
            m, self.x, fmt, None if flush else of.subnormal, offset=-fmt.bias
        )
        flags = Cat(of.nan | self.x[-1] & ~of.zero, of.zero, of.infinite)

        # A significand from 3/2 on is halved, to 3/4 <= m < 1. `distance` is |m - 1|.
        upper = fraction[-1]
        distance = Signal(fmt.mantissa)
        m.d.comb += distance.eq(Mux(upper, -fraction, fraction << 1))
        # The table's value g, between 0.8 and 1.2.
        steepness = Signal(table.width + table.guard + 1)
        index = Cat(fraction[:-1], ~upper)
        m.d.comb += steepness.eq(sum(table.terms(m, slope, index), 0))
        # E and its magnitude; the result is negative if E is, or if E = 0 and m < 1.
        whole = Signal(signed(len(exponent)))
        size = Signal(len(exponent))
        m.d.comb += [whole.eq(exponent + upper), size.eq(Mux(whole[-1], -whole, whole))]
        sign = Signal()
        subtract = Signal()
        m.d.comb += sign.eq(whole[-1] | (whole == 0) & upper)
        # (m - 1) g is subtracted from |E| ln(2) where its sign differs from the result's.
        m.d.comb += subtract.eq(sign ^ upper)
        factors = {"distance": distance, "steepness": steepness, "size": size}
        signs = Cat(subtract, sign, flags)
        distance, steepness, size, signs = cut("factors", **factors, signs=signs)

        # Fraction bits of |E| ln(2), and of the product.
        coarse, fine = fmt.mantissa + 6, fmt.mantissa + 1 + table.width + table.guard
        product = Signal(len(distance) + len(steepness))
        multiple = Signal(coarse + fmt.exponent)
        m.d.comb += product.eq(distance * steepness)
        m.d.comb += multiple.eq(size * (LN_2 + (1 << SCALE - coarse - 1) >> SCALE - coarse))
        product, multiple, signs = cut("product", product=product, multiple=multiple, signs=signs)

        total = Signal(fine + fmt.exponent)
        shifted = Cat(Const(0, fine - coarse), multiple)
        # To subtract is to invert and add one.
        m.d.comb += total.eq(shifted + (product ^ signs[0].replicate(len(total))) + signs[0])
        total, signs = cut("sum", total=total, signs=signs[1:])

        leading = leading_one(m, total, "total")
        normal = shift_to_top(m, total, leading, "total")
        # Exponent field of a number with its leading one in the highest bit, minus one for the
        # leading one that the rounded significand adds.
        top = fmt.exponent - 1 + fmt.bias - 1 - ((1 << len(leading)) - 1)
        start = Signal(fmt.exponent)
        m.d.comb += start.eq(leading + top)
        rounded = Signal(fmt.width - 1)
        kept = normal[-fmt.precision - 1 :]  # with one bit for rounding
        m.d.comb += rounded.eq(kept[1:] + kept[0] + (start << fmt.mantissa))
        # The exponent of a zero or an infinity also gives the sign of its logarithm.
        sign, nan, zero, infinite = signs
        number = Cat(rounded, sign)
        result = select_result(
            m, fmt, number, sign=sign, nan=nan, overflow=zero | infinite, zero=~normal[-1]
        )
        m.d.comb += self.o.eq(cut("result", o=result))
        return m
