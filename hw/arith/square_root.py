"""The square root of a floating-point number."""

import dataclasses
from math import isqrt
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hw.arith.datapath import Datapath, FloatParameters, Registers
from hw.arith.float_format import FloatFormat
from hw.arith.leading_zeros import leading_one, shift_to_top
from hw.arith.split_table import fit

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


def classify(m: Module, x: Value, kind: FloatFormat, flush: bool) -> tuple[Signal, ...]:
    """Whether an operand is subnormal or zero, zero, plus infinity, and without a square root."""
    names = ("is_subnormal", "is_zero", "is_infinite", "is_nan")
    is_subnormal, is_zero, is_infinite, is_nan = (Signal(name=name) for name in names)
    m.d.comb += is_subnormal.eq(x[kind.mantissa : -1] == 0)
    m.d.comb += is_zero.eq(is_subnormal & (flush | (x[: kind.mantissa] == 0)))
    m.d.comb += is_infinite.eq(kind.infinities & (x[:-1] == kind.overflow))
    above = x[:-1] > kind.overflow - (not kind.infinities)
    m.d.comb += is_nan.eq(above | x[-1] & ~is_zero)
    return is_subnormal, is_zero, is_infinite, is_nan


def radicand(m: Module, x: Value, kind: FloatFormat, is_subnormal: Value | None):
    """An operand as (1 + fraction) 2^(double - 2 bias), for a `double` below the format's 4 bias.

    is_subnormal
        Selects normalising; None where no operand is subnormal.
    """
    mantissa, exponent = x[: kind.mantissa], x[kind.mantissa : -1]
    double, fraction = Signal(kind.exponent + 1), Signal(kind.mantissa)
    m.d.comb += [double.eq(exponent + kind.bias), fraction.eq(mantissa)]
    if is_subnormal is not None:
        place = leading_one(m, mantissa)
        normal = shift_to_top(m, mantissa, place)
        with m.If(is_subnormal):
            m.d.comb += double.eq(place + (kind.bias + 1 - (1 << len(place))))
            m.d.comb += fraction.eq(normal << 1)
    return fraction, double


class SquareRoot(Datapath):
    """``o`` = the square root of ``x``, rounded correctly.

    Normalised to 1 <= u < 4 with an even exponent, u has a root whose significand needs no
    exponent of its own. In formats of at most 16 bits, two tables with solved entries
    (:mod:`hw.arith.split_table`) give the rounded root. In longer ones a restoring array finds it
    digit by digit, one row of subtractors for each: the remainder less (2 root + 1/2) is taken if
    it is not negative. One digit more than there is room for decides the rounding, since no root
    lies in the middle between two numbers.

    The root of -0 is -0, of other negative numbers NaN. With `flush_subnormals`, subnormal operands
    count as zeros of their sign; no result is subnormal.

    Members
    -------
    x : :py:`In(width)`
    o : :py:`Out(width)`
    """

    summary = "Square root, correctly rounded"
    source = "library"

    def __init__(self, parameters: SquareRootParameters):
        kind = parameters.float_format.width
        super().__init__(parameters, {"x": kind}, {"o": kind})

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        kind, flush = self.parameters.float_format, self.parameters.flush_subnormals
        is_subnormal, is_zero, is_infinite, is_nan = classify(m, self.x, kind, flush)
        fraction, double = radicand(m, self.x, kind, None if flush else is_subnormal)
        flags = Cat(self.x[-1], is_nan, is_zero, is_infinite)
        fraction, double, flags = cut("radicand", fraction=fraction, double=double, flags=flags)

        find = self._look_up if kind.precision <= TABLES_UP_TO else self._digits
        others = Cat(double[1:], flags)
        root, others = find(m, cut, Cat(fraction, double[0]), others)
        # The bias is odd, so half of `double` is the field of the root.
        field, (sign, is_nan, is_zero, is_infinite) = others[:-4], others[-4:]
        o = Signal(kind.width)
        with m.If(is_nan):
            m.d.comb += o.eq(kind.quiet_nan)
        with m.Elif(is_infinite):
            m.d.comb += o.eq(kind.overflow)
        with m.Elif(is_zero):
            m.d.comb += o[-1].eq(sign)
        with m.Else():
            m.d.comb += o.eq(Cat(root, field))
        m.d.comb += self.o.eq(cut("result", o=o))
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
        """The root's mantissa by a restoring array, rounded."""
        fraction, odd = index[:-1], index[-1]
        digits = self.parameters.float_format.precision + 1
        rests = Signal(2 * digits)
        start = Mux(odd, Cat(Const(0, 1), fraction, Const(1, 1)), Cat(fraction, Const(1, 1)))
        m.d.comb += rests[-len(fraction) - 2 :].eq(start)
        cuts = {-(-digits * eighth // 8): f"digits_{eighth}" for eighth in range(2, 8)}
        remainder, root = Const(0, 1), Const(0, 0)
        for row in range(digits):
            if row in cuts:
                rests, remainder, root, others = cut(
                    cuts[row], rests=rests, remainder=remainder, root=root, others=others
                )
            rest, rests = Cat(rests[-2:], remainder), rests[:-2]
            difference = Signal(len(rest) + 1, name=f"difference_{row}")
            m.d.comb += difference.eq(rest - Cat(Const(1, 2), root))
            digit = Signal(name=f"digit_{row}")
            m.d.comb += digit.eq(~difference[-1])
            root = Cat(digit, root)
            remainder = Signal(row + 2, name=f"remainder_{row}")
            m.d.comb += remainder.eq(Mux(digit, difference, rest))
        rounded = Signal(len(fraction))
        m.d.comb += rounded.eq(root[1:] + root[0])
        return rounded, others
