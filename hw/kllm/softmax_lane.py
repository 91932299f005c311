"""What each score of a softmax goes through: the exponential, and at last the product."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP16
from hw.arith.float_to_fixed import FloatToFixed, FloatToFixedParameters
from hw.arith.wide_exponent import (
    EXPONENT,
    FRACTION,
    INVERSE_WIDTH,
    LIMIT,
    POWER,
    power,
    round_fp16,
    significand,
)
from hw.component import Component

FIXED = FloatToFixedParameters(width=17 + FRACTION, fraction=FRACTION)
"""Every FP16 number in fixed point."""

SHIFT = 5

TERM = data.StructLayout({"digits": POWER + 1, "shift": SHIFT})
"""e^-d = 1.digits1 2^-(shift + 1), the `digits` between two ones; 0 where shift is all ones."""


class ExponentialLane(Component):
    """The term e^(score - highest), three cycles later; nothing stalls.

    Differences of 32 and more count as just below 32, whose term is 0.

    Members
    -------
    score : :py:`In(16)`
        FP16, minus infinity for what does not count.
    highest : :py:`In(signed(31))`
        The row's highest score in fixed point.
    term : :py:`Out(TERM)`
    """

    def __init__(self):
        super().__init__({"score": In(16), "highest": In(FIXED.shape), "term": Out(TERM)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.to_fixed = to_fixed = FloatToFixed(FIXED)
        difference = Signal(signed(FIXED.width + 1))
        far, near = Signal(), Signal(LIMIT + FRACTION)
        exponent = Signal(LIMIT + 1 + POWER)
        m.d.comb += [
            to_fixed.a.eq(self.score),
            difference.eq(self.highest - to_fixed.o),
            far.eq(difference[len(near) :].any()),
        ]
        m.d.sync += near.eq(difference[: len(near)] | far.replicate(len(near)))
        m.d.sync += exponent.eq(power(m, near))
        whole = exponent[POWER:]
        below = significand(m, exponent[:POWER])
        m.d.sync += [
            self.term.digits.eq(below[:-1]),  # the highest bit is always one
            self.term.shift.eq(Mux(whole[SHIFT:].any(), (1 << SHIFT) - 1, whole)),
        ]
        return m


class ProductLane(Component):
    """The probability term / sum, two cycles later that `enable` counts.

    Members
    -------
    enable : :py:`In(1)`
    term : :py:`In(TERM)`
    inverse : :py:`In(15)`
        2 / s, in units of 2^-14, where the sum is s 2^order and 1 <= s < 2.
    order : :py:`In(signed)`
    empty, undefined : :py:`In(1)`
        With the second cycle: the result is 0, or NaN.
    o : :py:`Out(16)`
        FP16.
    """

    def __init__(self):
        super().__init__(
            {
                "enable": In(1),
                "term": In(TERM),
                "inverse": In(INVERSE_WIDTH),
                "order": In(EXPONENT),
                "empty": In(1),
                "undefined": In(1),
                "o": Out(FP16.width),
            }
        )

    def elaborate(self, platform):
        m = Module()
        digits = Cat(1, self.term.digits, 1)
        product = Signal(len(digits) + INVERSE_WIDTH, reset_less=True)
        field = Signal(EXPONENT, reset_less=True)
        magnitude, _ = round_fp16(m, product, field)
        with m.If(self.enable):
            m.d.sync += [
                product.eq(digits * self.inverse),
                field.eq(14 - self.order - self.term.shift),
            ]
            with m.If(self.undefined):
                m.d.sync += self.o.eq(FP16.quiet_nan)
            with m.Elif(self.empty):
                m.d.sync += self.o.eq(0)
            with m.Else():
                m.d.sync += self.o.eq(Cat(magnitude, Const(0, 1)))
        return m
