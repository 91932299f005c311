"""The reciprocal of a floating-point number."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal

from hw.arith.datapath import Datapath
from hw.arith.multipartite import SCALE, Field, Multipartite, TableParameters

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


class Reciprocal(Datapath):
    """``o`` = 1 / ``x``.

    For a significand 1 + f, tables give 2 / (1 + f), which is added to twice the bias less the
    exponent; their 2.0 for f = 0 carries into the exponent. Of the subnormal operands only those
    with one of the two highest bits set have a reciprocal that is not too large, so two cases
    normalise them; results below the normal numbers are shifted down and cut off.

    Accuracy, over all operands: at most 0.793 units in the last place for FP16 and 0.648 for BF16,
    rounded correctly for the 8-bit formats; in subnormal results, which are cut off, less than one
    unit. Powers of two are exact. 1 / 0 is infinity, or NaN in a format without; 1 / inf = 0; both
    keep the sign. With `flush_subnormals`, subnormal operands count as zeros, and a result whose
    rounded value is subnormal becomes zero.

    Members
    -------
    x : :py:`In(width)`
    o : :py:`Out(width)`
    """

    summary = "1 / x, less than one unit in the last place off"
    source = "library"

    def __init__(self, parameters: ReciprocalParameters):
        kind = parameters.float_format.width
        super().__init__(parameters, {"x": kind}, {"o": kind})

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        kind, table = self.parameters.float_format, TABLES[self.parameters.format]
        flush = self.parameters.flush_subnormals
        mantissa, exponent, sign = self.x[: kind.mantissa], self.x[kind.mantissa : -1], self.x[-1]
        # A number whose exponent's field is `last` is the first with a subnormal reciprocal.
        last = 2 * kind.bias - 1

        is_subnormal, is_above, is_special, is_nan = (Signal() for _ in range(4))
        m.d.comb += is_subnormal.eq(exponent == 0)
        m.d.comb += is_above.eq(is_subnormal & (flush | ~mantissa[-2:].any()))
        m.d.comb += is_special.eq(self.x[:-1] >= kind.overflow)
        m.d.comb += is_nan.eq(self.x[:-1] > kind.overflow - (not kind.infinities))
        is_small, depth = Signal(), Signal(2)
        m.d.comb += is_small.eq(exponent >= last)
        m.d.comb += depth.eq(Mux(is_small, exponent[:2] - (last - 1) % 4, 0))
        # One less than the field, for the tables add the significand's highest bit.
        field, fraction = Signal(kind.exponent), Signal(kind.mantissa)
        m.d.comb += field.eq(Mux(is_small, 0, last - 1 - exponent))
        m.d.comb += fraction.eq(mantissa)
        if not flush:
            with m.If(is_subnormal):
                m.d.comb += fraction.eq(Mux(mantissa[-1], mantissa << 1, mantissa << 2))
                m.d.comb += field.eq(Mux(mantissa[-1], last - 1, last))
        flags = Cat(sign, is_nan, is_special, is_above)
        fraction, field, depth, flags = cut(
            "fraction", fraction=fraction, field=field, depth=depth, flags=flags
        )

        start = Cat(Const(0, table.width + table.guard), field)
        total = Signal(len(start))
        m.d.comb += total.eq(sum(table.terms(m, double_reciprocal, fraction), start))
        total, depth, flags = cut("total", total=total[table.guard :], depth=depth, flags=flags)

        near, far = total[: kind.mantissa + 2], total[kind.mantissa + 2 :]
        shifted = Signal(len(near))
        m.d.comb += shifted.eq(near >> depth)
        if flush:
            kept = (depth == 0) | shifted[kind.mantissa]
            shifted = Mux(kept, shifted, 0)
        sign, is_nan, is_special, is_above = flags
        o = Signal(kind.width)
        with m.If(is_nan):
            m.d.comb += o.eq(kind.quiet_nan)
        with m.Elif(is_above):
            m.d.comb += o.eq(Cat(Const(kind.overflow, kind.width - 1), sign & kind.infinities))
        with m.Elif(is_special):
            m.d.comb += o[-1].eq(sign)
        with m.Else():
            m.d.comb += o.eq(Cat(shifted, far, sign))
        m.d.comb += self.o.eq(cut("result", o=o))
        return m
