"""The datapath of one softmax lane: exponential of a score, and product with 1 / sum."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data

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
from hw.layout import integer
from hw.ports import Ports, wire_in, wire_out

FIXED = FloatToFixedParameters(width=17 + FRACTION, fraction=FRACTION)
"""Fixed point that holds every FP16 number."""

SHIFT = 5


class Term(data.Struct):
    """e^-d = 1.digits1 2^-(shift + 1), or 0 if `shift` is all ones.

    ::

        significand  | 1 | digits | 1 |
    """

    digits: integer(POWER + 1)  # type: ignore[valid-type]  # a shape
    shift: integer(SHIFT)  # type: ignore[valid-type]  # a shape


TERM_WIDTH = Term.as_shape().size


class ExponentialLane(Component[None]):
    """The term e^(score - highest). Latency: 3 cycles, without stalls.

    Differences of 32 and more saturate just below 32, whose term is 0.
    """

    def ports(self) -> Ports:
        return {
            "score": wire_in(FP16, "FP16, minus infinity for scores that are not kept."),
            "highest": wire_in(FIXED.shape, "The row's highest score in fixed point."),
            "term": wire_out(Term),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.to_fixed = to_fixed = FloatToFixed(FIXED)
        difference = Signal(signed(FIXED.width + 1))
        far = Signal()
        near = Signal(LIMIT + FRACTION)
        exponent = Signal(LIMIT + 1 + POWER)
        m.d.comb += [
            to_fixed.a.eq(self.score),
            # x_max - x is 0 or more, so e^(x - x_max) is at most 1: no overflow, whatever the
            # scores.
            difference.eq(self.highest - to_fixed.o),
            far.eq(difference[len(near) :].any()),
        ]
        # Cycle 1: the difference, saturated; cycle 2: times log2(e); cycle 3: table of 2^-f.
        m.d.sync += near.eq(difference[: len(near)] | far.replicate(len(near)))
        m.d.sync += exponent.eq(power(m, near))
        whole = exponent[POWER:]
        below = significand(m, exponent[:POWER])
        m.d.sync += [
            self.term.digits.eq(below[:-1]),  # the highest bit is always one
            self.term.shift.eq(Mux(whole[SHIFT:].any(), (1 << SHIFT) - 1, whole)),
        ]
        return m


class ProductLane(Component[None]):
    """The probability term / sum. Latency: 2 cycles with `enable` high."""

    def ports(self) -> Ports:
        return {
            "enable": wire_in(1),
            "term": wire_in(Term),
            "inverse": wire_in(
                INVERSE_WIDTH,
                "2 / s, in units of 2^-14, where the sum is s 2^exponent and 1 <= s < 2.",
            ),
            "exponent": wire_in(EXPONENT),
            "empty": wire_in(1, "One cycle later than the others: the result is 0, or NaN."),
            "undefined": wire_in(
                1, "The result is NaN, for a vector that holds one; valid with `empty`."
            ),
            "o": wire_out(FP16, "FP16."),
        }

    def elaborate(self, platform):
        m = Module()
        # The term's hidden leading one, and half a unit below its last digit, which centres the
        # cut-off digits' error.
        digits = Cat(1, self.term.digits, 1)
        product = Signal(len(digits) + INVERSE_WIDTH, reset_less=True)
        field = Signal(EXPONENT, reset_less=True)
        magnitude, _ = round_fp16(m, product, field)
        # Cycle 1: the product; cycle 2: normalised and rounded.
        with m.If(self.enable):
            m.d.sync += [
                product.eq(digits * self.inverse),
                field.eq(14 - self.exponent - self.term.shift),
            ]
            with m.If(self.undefined):
                m.d.sync += self.o.eq(FP16.quiet_nan)
            with m.Elif(self.empty):
                m.d.sync += self.o.eq(0)
            with m.Else():
                m.d.sync += self.o.eq(Cat(magnitude, Const(0, 1)))
        return m
