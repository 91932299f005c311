"""The square root of a floating-point number."""

import dataclasses
from math import isqrt
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hw.arith.datapath import FloatFunction, FloatParameters, Registers
from hw.arith.float_format import FloatFormat
from hw.arith.special_values import classify, normalised, select_result
from hw.arith.tables.split_table import fit

# Significand bits up to which tables have the smaller product of area and delay.
TABLES_UP_TO = 11


@dataclasses.dataclass(frozen=True)
class SquareRootParameters(FloatParameters):
    CUTS: ClassVar = (
        (),
        ("result",),
        ("radicand", "result"),
        ("radicand", "digits_5", "result"),
        ("radicand", "digits_4", "digits_6", "result"),
        ("radicand", "digits_3", "digits_5", "digits_7", "result"),
        ("radicand", "digits_3", "digits_5", "digits_6", "digits_7", "result"),
        ("radicand", "digits_2", "digits_4", "digits_5", "digits_6", "digits_7", "result"),
        ("radicand", *(f"digits_{eighth}" for eighth in range(2, 8)), "result"),
    )
    PIPELINED: ClassVar = 1


def radicand(m: Module, x: Value, fmt: FloatFormat, flush: bool) -> tuple[Value, Value, Value]:
    """An operand as (1 + fraction) 2^(double - 2 bias), for a `double` below 4 times the bias.

    Returns (fraction, double, flags). The flags are the operand's sign, NaN or negative, zero,
    infinite. The lowest bit of `double` is the parity of the exponent, because the bias is odd.
    """
    of = classify(m, x, fmt, flush)
    subnormal = None if flush else of.subnormal
    fraction, double = normalised(m, x, fmt, subnormal, offset=fmt.bias)
    return fraction, double, Cat(x[-1], of.nan | x[-1] & ~of.zero, of.zero, of.infinite)


class SquareRoot(FloatFunction[SquareRootParameters]):
    """``o`` = the square root of ``x``, rounded correctly.

    The operand is normalised to u 4^e with 1 <= u < 4, so that the root of u is the significand of
    the result. In formats of at most 16 bits, two tables with solved entries
    (:mod:`hw.arith.tables.split_table`) give the rounded root. In longer ones a restoring array
    finds it digit by digit, one row of subtractors for each digit: 2 root + 1/2 is subtracted from
    the remainder if the difference is not negative. One digit more than the mantissa has decides
    the rounding, because no root is exactly between two numbers.

    The root of -0 is -0, of other negative numbers NaN. With `flush_subnormals`, subnormal operands
    count as zeros of their sign; no result is subnormal.

    Latency: `stages`. Throughput: one result per cycle.

    Examples
    --------
    FP32 has a row of subtractors for each digit, which may be cut into up to 8 stages:

    >>> from hw.arith.square_root import SquareRoot, SquareRootParameters
    >>> parameters = SquareRootParameters(format="fp32", stages=8)
    >>> SquareRoot(parameters).x.shape(), parameters.latency
    (unsigned(32), 8)
    """

    summary = "Square root, correctly rounded"
    source = "library"
    result = "Square root of x."

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        fmt = self.parameters.float_format
        # sqrt(m 2^e) = sqrt(m 2^(e mod 2)) 2^floor(e / 2): the parity of the exponent is a bit of
        # the radicand, and the rest is halved by a wire.
        fraction, double, flags = radicand(m, self.x, fmt, self.parameters.flush_subnormals)
        fraction, double, flags = cut("radicand", fraction=fraction, double=double, flags=flags)

        # A table of all radicands is smaller than an array of subtractors only for short mantissas.
        find = self._look_up if fmt.precision <= TABLES_UP_TO else self._digits
        # The exponent and the flags pass the same registers as the root.
        others = Cat(double[1:], flags)
        root, others = find(m, cut, Cat(fraction, double[0]), others)
        # The bias is odd, so half of `double` is the exponent field of the root.
        field, (sign, nan, zero, infinite) = others[:-4], others[-4:]
        number = Cat(root, field)
        result = select_result(m, fmt, number, sign=sign, nan=nan, overflow=infinite, zero=zero)
        m.d.comb += self.o.eq(cut("result", o=result))
        return m

    def _look_up(self, m: Module, cut: Registers, index: Value, others: Value):
        """The root's mantissa from tables, by fraction and parity of the exponent."""
        bits = self.parameters.float_format.mantissa
        radicands = [(1 << bits) + f << bits + 2 + odd for odd in (0, 1) for f in range(1 << bits)]
        table = fit(tuple((isqrt(u) + 1 >> 1) - (1 << bits) for u in radicands))
        root = table.read(m, index, lambda **entries: list(entries.values()))
        for eighth in range(2, 8):
            root, others = cut(f"digits_{eighth}", root=root, others=others)
        return root, others

    def _digits(self, m: Module, cut: Registers, index: Value, others: Value):
        """The root's mantissa by a restoring array, rounded.

        One row, which brings down the next two bits of the operand::

            rest          | remainder      | r r |
            difference  - | root           | 0 1 |      negative: digit 0, keep rest
        """
        fraction, odd = index[:-1], index[-1]
        digits = self.parameters.float_format.precision + 1
        # The operand, two bits for each digit: 01.f f f or, with an odd exponent, 1f.f f f
        rests: Value = Signal(2 * digits)
        start = Mux(odd, Cat(Const(0, 1), fraction, Const(1, 1)), Cat(fraction, Const(1, 1)))
        m.d.comb += rests[-len(fraction) - 2 :].eq(start)
        cuts = {-(-digits * eighth // 8): f"digits_{eighth}" for eighth in range(2, 8)}
        remainder: Value = Const(0, 1)
        root: Value = Const(0, 0)
        for row in range(digits):
            if row in cuts:
                rests, remainder, root, others = cut(
                    cuts[row], rests=rests, remainder=remainder, root=root, others=others
                )
            # Restoring: a negative difference is not taken, so the remainder is never negative and
            # the digit is the complement of its sign.
            rest, rests = Cat(rests[-2:], remainder), rests[:-2]
            difference = Signal(len(rest) + 1, name=f"difference_{row}")
            m.d.comb += difference.eq(rest - Cat(Const(1, 2), root))
            digit = Signal(name=f"digit_{row}")
            m.d.comb += digit.eq(~difference[-1])
            root = Cat(digit, root)
            remainder = Signal(row + 2, name=f"remainder_{row}")
            m.d.comb += remainder.eq(Mux(digit, difference, rest))
        # The first digit is the hidden bit, the last one decides the rounding.
        # A root is never a tie: the square of a number with one more bit has an odd last bit that
        # no operand has. So rounding up at the next digit is rounding to nearest.
        rounded = Signal(len(fraction))
        m.d.comb += rounded.eq(root[1:] + root[0])
        return rounded, others
