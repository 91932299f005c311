"""From an element and its vector's reduction to a result: softmax or layer norm (VEDA, IV-B)."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib.wiring import In, Out

from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.arith.wide_exponent import EXPONENT, INVERSE_WIDTH, SIGNIFICAND, round_fp16
from hw.component import Component
from hw.veda.binary_exponent import WHOLE, BinaryExponent, Term

SUBTRACTED, MULTIPLIED = 5, 7
"""Cycles from an element to its difference from the mean, and to the result."""

FARTHEST_FIELD = 64
"""Exponent fields are cut to this distance: far beyond FP16's on both sides."""


class Normalisation(Component):
    """y = 2^(origin - exponent(x)) × inverse, or (x - mean) × root.

    Both are a product of two significands of 15 bits with exponents beside them, rounded once: to
    nearest, a tie up in magnitude. Of the difference, those bits are cut off.

    Latency: 7 cycles, one element a cycle, without handshake.

    Members
    -------
    x : :py:`In(16)`
        FP16.
    origin, inverse, order : :py:`In`
        Of a softmax: see :class:`hw.veda.softmax_reduction.SoftmaxReduction`. The first is read 3
        cycles after `x`, the others 5.
    wide : :py:`Out(32)`
        `x` in FP32, a cycle later, for an FP32 adder outside, of 4 stages.
    difference : :py:`In(32)`
        x - mean, 5 cycles after `x`.
    root, root_order : :py:`In`
        See :class:`hw.veda.moment_reduction.MomentReduction`; read with `difference`.
    is_softmax : :py:`In(1)`
        Read with `difference`.
    undefined, empty : :py:`In(1)`
        Read 7 cycles after `x`, with the result, which is NaN, or 0.
    y : :py:`Out(16)`
        FP16, 7 cycles after `x`, combinational.
    """

    def __init__(self):
        super().__init__(
            {
                "x": In(FP16.width),
                "origin": In(WHOLE),
                "inverse": In(INVERSE_WIDTH),
                "order": In(EXPONENT),
                "wide": Out(FP32.width),
                "difference": In(FP32.width),
                "root": In(INVERSE_WIDTH),
                "root_order": In(EXPONENT),
                "is_softmax": In(1),
                "undefined": In(1),
                "empty": In(1),
                "y": Out(FP16.width),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.widen = widen = FloatConvert(
            FloatConvertParameters(source="fp16", format="fp32")
        )
        m.submodules.exponent = exponent = BinaryExponent()
        m.submodules.term = term = Term()
        score = Signal(FP16.width, reset_less=True)
        m.d.comb += widen.a.eq(self.x)
        m.d.sync += [self.wide.eq(widen.o), score.eq(self.x)]
        m.d.comb += [
            exponent.x.eq(score),
            term.whole.eq(exponent.whole),
            term.fraction.eq(exponent.fraction),
            term.origin.eq(self.origin),
        ]

        fraction, power = self.difference[: FP32.mantissa], self.difference[FP32.mantissa : -1]
        own, field = Signal(signed(10)), Signal(EXPONENT, reset_less=True)
        digits = Signal(SIGNIFICAND, reset_less=True)
        factor = Signal(INVERSE_WIDTH, reset_less=True)
        sign = Signal(reset_less=True)
        # The difference is 1.fraction 2^(power - 127), the product in units of 2^-28.
        m.d.comb += own.eq(power - (FP32.bias - 16) + self.root_order)
        with m.If(self.is_softmax):
            m.d.sync += [
                digits.eq(term.digits),
                factor.eq(self.inverse),
                field.eq(14 - self.order - term.shift),
                sign.eq(0),
            ]
        with m.Else():
            m.d.sync += [
                digits.eq(Cat(fraction[1 - SIGNIFICAND :], 1)),
                factor.eq(self.root),
                field.eq(own),
                sign.eq(self.difference[-1]),
            ]
            with m.If(own < -FARTHEST_FIELD):
                m.d.sync += field.eq(-FARTHEST_FIELD)
            with m.Elif(own >= FARTHEST_FIELD):
                m.d.sync += field.eq(FARTHEST_FIELD - 1)

        product = Signal(SIGNIFICAND + INVERSE_WIDTH, reset_less=True)
        product_field, product_sign = Signal(EXPONENT, reset_less=True), Signal(reset_less=True)
        m.d.sync += [
            product.eq(digits * factor),
            product_field.eq(field),
            product_sign.eq(sign),
        ]
        magnitude, beyond = round_fp16(m, product, product_field)
        with m.If(self.undefined):
            m.d.comb += self.y.eq(FP16.quiet_nan)
        with m.Elif(~self.empty):
            number = Mux(beyond, FP16.infinity, magnitude)
            m.d.comb += self.y.eq(Cat(number, product_sign))
        return m
