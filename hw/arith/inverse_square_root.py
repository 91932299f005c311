"""The reciprocal of the square root of a floating-point number."""

import dataclasses
from math import isqrt
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Signal

from hw.arith.datapath import Datapath
from hw.arith.multipartite import SCALE, Field, Multipartite, TableParameters
from hw.arith.square_root import classify, radicand

TABLES = {
    "fp16": Multipartite(11, 7, (Field(5, 3, 4), Field(4, 0, 3)), 12, 1, True),
    "bf16": Multipartite(8, 5, (Field(3, 0, 3),), 11, 1, True),
    "fp8_e4m3": Multipartite(4, 4, (), 4, 0, True),
    "fp8_e5m2": Multipartite(3, 3, (), 4, 0, True),
}


def double_root(n: int, k: int) -> int:
    """2 / sqrt(u) times 2^SCALE, rounded down, for u = 1 + 2t up to t = 1/2, then 4t; t = n / 2^k.

    The highest bit of t is the parity of the operand's exponent, and the others its fraction.
    """
    u = max((1 << k) + 2 * n, 4 * n)
    return isqrt((4 << 2 * SCALE + k) // u)


@dataclasses.dataclass(frozen=True)
class InverseSquareRootParameters(TableParameters):
    CUTS: ClassVar = ((), ("result",), ("radicand", "result"), ("radicand", "total", "result"))
    PIPELINED: ClassVar = 1


class InverseSquareRoot(Datapath):
    """``o`` = 1 / sqrt(``x``).

    Normalised to 1 <= u < 4 with an even exponent, u indexes tables with 2 / sqrt(u), the
    significand. Their 2.0 for u = 1 carries into the exponent, half the operand's and negated.

    Accuracy, over all operands: at most 0.874 units in the last place for FP16 and 0.798 for BF16,
    rounded correctly for the 8-bit formats. Even powers of two are exact. A zero gives infinity of
    its sign, or NaN in a format without; infinity gives zero; negative numbers give NaN. With
    `flush_subnormals`, subnormal operands count as zeros; no result is subnormal.

    Members
    -------
    x : :py:`In(width)`
    o : :py:`Out(width)`
    """

    summary = "1 / sqrt(x), less than one unit in the last place off"
    source = "library"

    def __init__(self, parameters: InverseSquareRootParameters):
        kind = parameters.float_format.width
        super().__init__(parameters, {"x": kind}, {"o": kind})

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        kind, table = self.parameters.float_format, TABLES[self.parameters.format]
        flush = self.parameters.flush_subnormals
        is_subnormal, is_zero, is_infinite, is_nan = classify(m, self.x, kind, flush)
        fraction, double = radicand(m, self.x, kind, None if flush else is_subnormal)
        flags = Cat(self.x[-1], is_nan, is_zero, is_infinite)
        fraction, double, flags = cut("radicand", fraction=fraction, double=double, flags=flags)

        # One less than the field, for the tables add the significand's highest bit.
        field = Signal(kind.exponent)
        m.d.comb += field.eq(2 * kind.bias - 2 - double[1:])
        # An index has one bit more than a mantissa.
        start = Cat(Const(0, kind.mantissa + 1 + table.guard), field)
        total = Signal(len(start))
        m.d.comb += total.eq(sum(table.terms(m, double_root, Cat(fraction, double[0])), start))
        total, flags = cut("total", total=total[table.guard + 1 :], flags=flags)

        sign, is_nan, is_zero, is_infinite = flags
        o = Signal(kind.width)
        with m.If(is_nan):
            m.d.comb += o.eq(kind.quiet_nan)
        with m.Elif(is_zero):
            m.d.comb += o.eq(Cat(Const(kind.overflow, kind.width - 1), sign & kind.infinities))
        with m.Elif(~is_infinite):
            m.d.comb += o.eq(total)
        m.d.comb += self.o.eq(cut("result", o=o))
        return m
