"""The reciprocal of a floating-point number."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal

from hw.arith.bits.order_key import is_nan
from hw.arith.datapath import FloatFunction
from hw.arith.special_values import select_result
from hw.arith.tables.multipartite import SCALE, Field, Multipartite, TableParameters

TABLES = {
    "fp16": Multipartite(10, 7, (Field(4, 0, 3),), 6, 1, True),
    "bf16": Multipartite(7, 5, (Field(3, 0, 2),), 6, 1, True),
    "fp8_e4m3": Multipartite(3, 3, (), 2, 0, True),
    "fp8_e5m2": Multipartite(2, 2, (), 2, 0, True),
}


def double_reciprocal(n: int, k: int) -> int:
    """2 / (1 + n / 2^k), times 2^SCALE, rounded down."""
    return (2 << SCALE + k) // ((1 << k) + n)


@dataclasses.dataclass(frozen=True)
class ReciprocalParameters(TableParameters):
    CUTS: ClassVar = ((), ("result",), ("fraction", "result"), ("fraction", "total", "result"))
    PIPELINED: ClassVar = 1


class Reciprocal(FloatFunction[ReciprocalParameters]):
    """``o`` = 1 / ``x``.

    For a significand 1 + f, tables give 2 / (1 + f), which is added to an exponent of twice the
    bias less the operand's; the value 2.0 at f = 0 carries into the exponent. Only subnormal
    operands with one of the two highest mantissa bits set have a finite reciprocal, so two cases
    normalise them. Results below the normal numbers are shifted right and truncated.

    Accuracy, over all operands: at most 0.793 units in the last place for FP16 and 0.648 for BF16,
    rounded correctly for the 8-bit formats; in subnormal results, which are truncated, less than
    one unit. Powers of two are exact. 1 / 0 is infinity, or NaN in a format without infinities;
    1 / inf = 0; both keep the sign. With `flush_subnormals`, subnormal operands count as zeros, and
    a result whose rounded value is subnormal becomes zero.

    Latency: `stages`. Throughput: one result per cycle.

    Examples
    --------
    >>> from hw.arith.reciprocal import Reciprocal, ReciprocalParameters
    >>> parameters = ReciprocalParameters(format="bf16", stages=2)
    >>> parameters.cycles(operations=100)
    102
    >>> Reciprocal(parameters).o.shape()
    unsigned(16)
    """

    summary = "1 / x, error below one unit in the last place"
    source = "library"
    result = "1 / x."

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        fmt, table = self.parameters.float_format, TABLES[self.parameters.format]
        flush = self.parameters.flush_subnormals
        mantissa, exponent, sign = self.x[: fmt.mantissa], self.x[fmt.mantissa : -1], self.x[-1]
        # The smallest exponent field whose numbers have a subnormal reciprocal.
        last = 2 * fmt.bias - 1

        # Special operands. A subnormal below 2^-2 of the smallest normal number overflows.
        is_subnormal = Signal()
        overflows = Signal()
        infinite_or_nan = Signal()
        nan = Signal()
        m.d.comb += is_subnormal.eq(exponent == 0)
        m.d.comb += overflows.eq(is_subnormal & (flush | ~mantissa[-2:].any()))
        m.d.comb += infinite_or_nan.eq(self.x[:-1] >= fmt.overflow)
        m.d.comb += nan.eq(is_nan(self.x, fmt))
        # Right shift of a subnormal result: exponent - last + 1, which is 1 or 2.
        is_small = Signal()
        shift = Signal(2)
        m.d.comb += is_small.eq(exponent >= last)
        m.d.comb += shift.eq(Mux(is_small, exponent[:2] - (last - 1) % 4, 0))
        # One less than the result's field, for the table adds the significand's leading one.
        field = Signal(fmt.exponent)
        fraction = Signal(fmt.mantissa)
        m.d.comb += field.eq(Mux(is_small, 0, last - 1 - exponent))
        m.d.comb += fraction.eq(mantissa)
        if not flush:
            with m.If(is_subnormal):
                m.d.comb += fraction.eq(Mux(mantissa[-1], mantissa << 1, mantissa << 2))
                m.d.comb += field.eq(Mux(mantissa[-1], last - 1, last))
        flags = Cat(sign, nan, infinite_or_nan, overflows)
        fraction, field, shift, flags = cut(
            "fraction", fraction=fraction, field=field, shift=shift, flags=flags
        )

        total = table.add_to_field(m, double_reciprocal, fraction, field)
        total, shift, flags = cut("total", total=total, shift=shift, flags=flags)

        # Only the mantissa and the two lowest bits of the exponent can move.
        near, far = total[: fmt.mantissa + 2], total[fmt.mantissa + 2 :]
        shifted = Signal(len(near))
        m.d.comb += shifted.eq(near >> shift)
        is_normal = (shift == 0) | shifted[fmt.mantissa]
        mantissa = Mux(is_normal, shifted, 0) if flush else shifted
        sign, nan, infinite_or_nan, overflows = flags
        number = Cat(mantissa, far, sign)
        result = select_result(
            m, fmt, number, sign=sign, nan=nan, overflow=overflows, zero=infinite_or_nan
        )
        m.d.comb += self.o.eq(cut("result", o=result))
        return m
