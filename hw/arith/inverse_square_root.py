"""The reciprocal of the square root of a floating-point number."""

import dataclasses
from math import isqrt
from typing import ClassVar

from amaranth.hdl import Cat, Module, Signal

from hw.arith.datapath import FloatFunction
from hw.arith.special_values import select_result
from hw.arith.square_root import radicand
from hw.arith.tables.multipartite import SCALE, Field, Multipartite, TableParameters

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


class InverseSquareRoot(FloatFunction[InverseSquareRootParameters]):
    """``o`` = 1 / sqrt(``x``).

    The operand is normalised to u 4^e with 1 <= u < 4. The tables, indexed by u, give 2 / sqrt(u),
    the significand; the value 2.0 at u = 1 carries into the exponent, which is -e.

    Accuracy, over all operands: at most 0.874 units in the last place for FP16 and 0.798 for BF16,
    rounded correctly for the 8-bit formats. Even powers of two are exact. A zero gives infinity of
    its sign, or NaN in a format without infinities; infinity gives zero; negative numbers give NaN.
    With `flush_subnormals`, subnormal operands count as zeros; no result is subnormal.

    Latency: `stages`. Throughput: one result per cycle.

    Examples
    --------
    >>> from hw.arith.inverse_square_root import InverseSquareRoot, InverseSquareRootParameters
    >>> unit = InverseSquareRoot(InverseSquareRootParameters(format="fp16", stages=3))
    >>> unit.operands, unit.results, unit.parameters.latency
    (('x',), ('o',), 3)
    """

    summary = "1 / sqrt(x), error below one unit in the last place"
    source = "library"
    result = "1 / sqrt(x)."

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        fmt, table = self.parameters.float_format, TABLES[self.parameters.format]
        fraction, double, flags = radicand(m, self.x, fmt, self.parameters.flush_subnormals)
        fraction, double, flags = cut("radicand", fraction=fraction, double=double, flags=flags)

        # One less than the result's field, for the table adds the significand's leading one.
        # 1 / sqrt(u 4^e) = (1 / sqrt(u)) 2^-e: the exponent only changes its sign.
        field = Signal(fmt.exponent)
        m.d.comb += field.eq(2 * fmt.bias - 2 - double[1:])
        total = table.add_to_field(m, double_root, Cat(fraction, double[0]), field)
        # The index, and so the table's value, has one bit more than a mantissa.
        total, flags = cut("total", total=total[1:], flags=flags)

        sign, nan, zero, infinite = flags
        result = select_result(m, fmt, total, sign=sign, nan=nan, overflow=zero, zero=infinite)
        m.d.comb += self.o.eq(cut("result", o=result))
        return m
