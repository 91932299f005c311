"""From an element and its vector's reduction to a result: softmax or layer norm (VEDA, IV-B)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed

from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.arith.wide_exponent import EXPONENT, INVERSE_WIDTH, SIGNIFICAND, round_fp16
from hw.attention.binary_exponent import OCTAVES, BinaryExponent, Term
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out

DIFFERENCE_CYCLES, RESULT_CYCLES = 5, 7
"""Cycles from an element to its difference from the mean, and to the result."""

FIELD_LIMIT = 64
"""Exponent fields saturate at -64 and 63, far outside of FP16's range on both sides."""

OF_NORMS = {"x_fp32", "difference", "inverse_std", "std_exponent", "is_softmax"}
"""Ports that only norms use."""


class Normalisation(Component[None]):
    """y = 2^(origin - exponent(x)) × inverse_sum, or (x - mean) × inverse_std.

    ::

        x ─┬→ BinaryExponent ─→ Term ────────────┐ digits, × inverse_sum
           │     2 cycles     2 cycles           ├→ mux ─→ × ─→ round ─→ y
           └→ FP32 ─→ adder outside, - mean ─────┘ digits, × inverse_std
               1         4 cycles                   1      1

    Without `norms` there is the first result alone, and none of the ports of the second.

    Both results are the product of two significands of 15 bits, with an exponent, rounded once: to
    nearest, a tie up in magnitude. The difference x - mean is cut off to 15 bits.

    Latency: 7 cycles, one element a cycle, without handshake.
    """

    def __init__(self, norms: bool = True):
        self._norms = norms
        super().__init__()

    def ports(self) -> Ports:
        ports = {
            "x": wire_in(FP16.width, "FP16."),
            "origin": wire_in(
                OCTAVES,
                "Result of :class:`hw.attention.softmax_reduction.SoftmaxReduction`. The first is "
                "read 3 cycles after `x`, the others 5.",
            ),
            "inverse_sum": wire_in(
                INVERSE_WIDTH, "Significand of the sum's reciprocal, in units of 2^-14."
            ),
            "sum_exponent": wire_in(EXPONENT, "Exponent of the sum, a power of two."),
            "x_fp32": wire_out(
                FP32.width, "`x` in FP32, a cycle later, for an FP32 adder of 4 stages outside."
            ),
            "difference": wire_in(FP32.width, "x - mean, 5 cycles after `x`."),
            "inverse_std": wire_in(
                INVERSE_WIDTH, "See :class:`hw.attention.moment_reduction.MomentReduction`."
            ),
            "std_exponent": wire_in(EXPONENT, "Read with `difference`."),
            "is_softmax": wire_in(1, "Read with `difference`."),
            "undefined": wire_in(
                1, "Read 7 cycles after `x`, with the result: it is then NaN, or 0."
            ),
            "empty": wire_in(1, "All scores are minus infinity: the result is 0."),
            "y": wire_out(FP16.width, "FP16, 7 cycles after `x`, combinational."),
        }
        return ports if self._norms else {n: p for n, p in ports.items() if n not in OF_NORMS}

    def elaborate(self, platform):
        m = Module()
        # Cycles 0 to 5: the exponential of a score here, x - mean in the adder outside.
        m.submodules.exponent = exponent = BinaryExponent()
        m.submodules.term = term = Term()
        score = Signal(FP16.width, reset_less=True)
        m.d.sync += score.eq(self.x)
        m.d.comb += [
            exponent.x.eq(score),
            term.octaves.eq(exponent.octaves),
            term.fraction.eq(exponent.fraction),
            term.origin.eq(self.origin),
        ]

        # Cycle 5: two significands and the exponent field of their product, in units of 2^-28.
        #   softmax     digits = 1.xxx…1 (15)            field = 14 - sum_exponent - shift
        #   layer norm  digits = 1.| difference[22:9] |  field = power - 111 + std_exponent
        field = Signal(EXPONENT, reset_less=True)
        digits = Signal(SIGNIFICAND, reset_less=True)
        factor = Signal(INVERSE_WIDTH, reset_less=True)
        sign = Signal(reset_less=True)
        # First, so that a softmax's assignments, which follow, win in their cycle.
        if self._norms:
            self._norm(m, field, digits, factor, sign)
        with m.If(self.is_softmax if self._norms else Const(1)):
            m.d.sync += [
                digits.eq(term.digits),
                factor.eq(self.inverse_sum),
                field.eq(14 - self.sum_exponent - term.shift),
                sign.eq(0),
            ]

        # Cycle 6: the product. Cycle 7: rounded to FP16.
        product = Signal(SIGNIFICAND + INVERSE_WIDTH, reset_less=True)
        product_field = Signal(EXPONENT, reset_less=True)
        product_sign = Signal(reset_less=True)
        m.d.sync += [
            product.eq(digits * factor),
            product_field.eq(field),
            product_sign.eq(sign),
        ]
        magnitude, overflow = round_fp16(m, product, product_field)
        with m.If(self.undefined):
            m.d.comb += self.y.eq(FP16.quiet_nan)
        with m.Elif(~self.empty):
            number = Mux(overflow, FP16.infinity, magnitude)
            m.d.comb += self.y.eq(Cat(number, product_sign))
        return m

    def _norm(self, m: Module, field, digits, factor, sign) -> None:
        """What a norm has in cycle 5; a softmax replaces it."""
        m.submodules.widen = widen = FloatConvert(
            FloatConvertParameters(source="fp16", format="fp32")
        )
        m.d.comb += widen.a.eq(self.x)
        m.d.sync += self.x_fp32.eq(widen.o)
        fraction, power = self.difference[: FP32.mantissa], self.difference[FP32.mantissa : -1]
        norm_field = Signal(signed(10))
        m.d.comb += norm_field.eq(power - (FP32.bias - 16) + self.std_exponent)
        m.d.sync += [
            digits.eq(Cat(fraction[1 - SIGNIFICAND :], 1)),
            factor.eq(self.inverse_std),
            field.eq(norm_field),
            sign.eq(self.difference[-1]),
        ]
        # Beyond the limits the result is zero or infinite whatever the exponent.
        with m.If(norm_field < -FIELD_LIMIT):
            m.d.sync += field.eq(-FIELD_LIMIT)
        with m.Elif(norm_field >= FIELD_LIMIT):
            m.d.sync += field.eq(FIELD_LIMIT - 1)
