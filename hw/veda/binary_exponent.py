"""FP16 scores as powers of two, which a softmax can be made of as well."""

from amaranth.hdl import Cat, Const, Module, Signal, signed
from amaranth.lib.wiring import In, Out

from hw.arith.exp2_fixed import significands
from hw.arith.float_format import FP16
from hw.arith.split_table import fit
from hw.arith.wide_exponent import LOG2_E, POWER, SIGNIFICAND
from hw.component import Component

WHOLE = signed(18)
"""Octaves below 1. The largest score is 94502 of them above."""

FARTHEST = (1 << 17) - 1
"""Octaves below 1 of minus infinity, and of no number."""

SHIFT = 6
"""Bits of a distance in octaves, which saturates: 2^-63 is nothing to any sum."""


class BinaryExponent(Component):
    """whole + fraction 2^-12 = -x log2(e), rounded down, so that e^x = 2^-(whole + fraction).

    log2(e) is 1.2e-6 too small, which scales all differences between scores alike. What is not a
    finite number counts as minus infinity.

    Latency: 2 cycles. Throughput: one number per cycle. There is no handshake.

    Members
    -------
    x : :py:`In(16)`
        FP16.
    whole : :py:`Out(signed(18))`
    fraction : :py:`Out(12)`
    """

    def __init__(self):
        super().__init__({"x": In(FP16.width), "whole": Out(WHOLE), "fraction": Out(POWER)})

    def elaborate(self, platform):
        m = Module()
        mantissa, exponent = self.x[: FP16.mantissa], self.x[FP16.mantissa : -1]
        # Subnormal numbers are too small for their hidden bit to matter.
        significand = Cat(mantissa, 1)
        product = Signal(FP16.precision + 20, reset_less=True)
        distance = Signal(FP16.exponent, reset_less=True)
        negated, far = Signal(reset_less=True), Signal(reset_less=True)
        m.d.sync += [
            product.eq(significand * LOG2_E),
            distance.eq(~exponent),
            negated.eq(~self.x[-1] & self.x[:-1].any()),
            far.eq(exponent.all()),
        ]
        magnitude = Signal(WHOLE.width - 1 + POWER)
        result = Signal(len(magnitude) + 1)
        m.d.comb += magnitude.eq(product[1:] >> distance)
        with m.If(far):
            m.d.comb += result.eq((1 << len(magnitude)) - 1)
        with m.Else():
            m.d.comb += result.eq(Cat(magnitude, Const(0, 1)) ^ negated.replicate(len(result)))
        m.d.sync += Cat(self.fraction, self.whole).eq(result)
        return m


class Term(Component):
    """2^-(whole - origin + fraction 2^-12) = digits 2^-(15 + shift).

    Latency: 2 cycles. Throughput: one term per cycle. There is no handshake.

    Members
    -------
    whole, origin : :py:`In(signed(18))`
        The origin is not above `whole`.
    fraction : :py:`In(12)`
    digits : :py:`Out(15)`
        The highest and the lowest bit are one.
    shift : :py:`Out(6)`
        Of 63 and more: 63.
    """

    def __init__(self):
        super().__init__(
            {
                "whole": In(WHOLE),
                "origin": In(WHOLE),
                "fraction": In(POWER),
                "digits": Out(SIGNIFICAND),
                "shift": Out(SHIFT),
            }
        )

    def elaborate(self, platform):
        m = Module()
        distance = Signal(WHOLE.width, reset_less=True)
        far = Signal()
        m.d.sync += distance.eq(self.whole - self.origin)
        m.d.comb += far.eq(distance[SHIFT:].any())

        def cut(**entries):
            registers = [
                Signal.like(e, name=f"{n}_entry", reset_less=True) for n, e in entries.items()
            ]
            m.d.sync += [r.eq(e) for r, e in zip(registers, entries.values(), strict=True)]
            return registers

        # 2^-f in units of 2^-(POWER + 2), one unit too small on average. The tables take seconds to
        # find, so only a design that reads them finds them.
        below = fit(significands(POWER, POWER + 2)).read(m, self.fraction, cut)
        m.d.sync += [
            self.digits.eq(Cat(1, below)),
            self.shift.eq(distance[:SHIFT] | far.replicate(SHIFT)),
        ]
        return m
