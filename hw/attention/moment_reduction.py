"""Mean and inverse standard deviation of a vector, for its layer normalisation (VEDA, IV-B)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from hw.arith.bits.leading_zeros import leading_one, shift_to_top
from hw.arith.fixed_sum import significand
from hw.arith.float_format import FP16, FP32
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.arith.inverse_square_root import double_root
from hw.arith.wide_exponent import EXPONENT, INVERSE_ROOT, INVERSE_WIDTH
from hw.attention.delay import delay
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out

MULTIPLY_STAGES, ADD_STAGES = 3, 4
"""Pipeline stages of the FP32 multiplier here, and of the parent's FP32 adder."""

FP16_FRACTION = 24
"""Fraction bits of FP16's smallest number, 2^-24: the unit of the sum of elements."""

FIXED_BITS = 40
"""Bits of FP16's largest number in that unit."""

LEAD = 7
"""Cycles from `ended` to the results."""

# Steps of the computation, in cycles after the vector's last element.
SUMS_STEP = 3  # both sums are complete
NORMAL_STEP = SUMS_STEP + 4  # the sum of elements is in FP32; the sum of squares a cycle later
SQUARE_STEP = NORMAL_STEP + MULTIPLY_STAGES  # the mean leaves the multiplier and is squared
VARIANCE_STEP = SQUARE_STEP + MULTIPLY_STAGES  # mean² leaves it: mean of squares - mean²
EPSILON_STEP = VARIANCE_STEP + ADD_STAGES  # the variance leaves the adder: + eps
RESULT_STEP = EPSILON_STEP + ADD_STAGES + 1
"""Cycles from a vector's last element to 1 / std."""


class MomentReduction(Component[None]):
    """mean = S / n, 1 / std = 1 / sqrt(Q / n - mean² + eps) of S = sum of x, Q = sum of x².

    Both sums are exact integers, so their order does not matter. The rest is FP32 with subnormals
    flushed to zero, each step rounded to nearest even:

        mean = S inverse,  variance = max(Q inverse - mean², 0),  m = variance + eps

    With `rms` the mean is 0. 1 / sqrt(m) is read from a table with 12 bits of m's fraction: a
    significand and an exponent.

    ::

        x ─→ fixed point ─┬─→ S ─┐
                          └ ² ─→ Q ┴─→ FP32 ─→ × inverse ─┬→ mean ─→ × mean ─┐
                                                          └→ Q / n ──────────┴→ - ─→ + eps ─→ root

    Latency: RESULT_STEP = 22 cycles from the last element; `ended` announces it 7 cycles ahead. The
    next vector must not begin before `ended`. Results are held until the next vector's.
    """

    def __init__(self, length: int):
        self._length_bits = length.bit_length()
        super().__init__()

    def ports(self) -> Ports:
        return {
            "valid": wire_in(1, "`x` is an element."),
            "last": wire_in(1, "It is the vector's last."),
            "x": wire_in(FP16.width, "FP16."),
            "rms": wire_in(1, "RMS norm. The parent holds it and the next two."),
            "inverse": wire_in(FP32.width, "FP32, 1 / n."),
            "eps": wire_in(FP32.width, "FP32, what is added to the variance before the root."),
            "add_a": wire_out(
                FP32.width,
                "Operands of the parent's FP32 adder of ADD_STAGES stages, while `add_valid`.",
            ),
            "add_b": wire_out(FP32.width, "Second operand, FP32, while `add_valid`."),
            "add_subtract": wire_out(1),
            "add_valid": wire_out(1),
            "add_o": wire_in(FP32.width, "Sum or difference from the adder."),
            "ended": wire_out(1, "7 cycles before the results."),
            "mean": wire_out(FP32.width, "FP32."),
            "inverse_std": wire_out(INVERSE_WIDTH, "2^k / std in units of 2^-14."),
            "exponent": wire_out(EXPONENT, "k."),
            "undefined": wire_out(1, "An element is not finite, or m is not positive and finite."),
        }

    def elaborate(self, platform):
        m = Module()
        # One counter sequences the computation: cycles since the last element, 0 when idle.
        step = Signal(range(RESULT_STEP + 1))
        done, element_sum, square_sum, not_finite = self._sums(m)
        number = self._to_fp32(m, done, element_sum, square_sum)
        with m.If(done):
            m.d.sync += step.eq(SUMS_STEP + 1)
        with m.Elif(step.any()):
            m.d.sync += step.eq(Mux(step == RESULT_STEP, 0, step + 1))
        m.d.comb += self.ended.eq(step == RESULT_STEP - LEAD)

        # The multiplier makes S / n, then Q / n one cycle later, then mean².
        m.submodules.multiply = multiply = FloatMultiply(
            FloatMultiplyParameters(format="fp32", flush_subnormals=True, stages=MULTIPLY_STAGES)
        )
        mean = Signal(FP32.width)
        mean_square = Signal(FP32.width, reset_less=True)
        squaring = Signal()
        m.d.comb += [
            squaring.eq(step == SQUARE_STEP),
            mean.eq(Mux(self.rms, 0, multiply.o)),
            multiply.a.eq(Mux(squaring, mean, number)),
            multiply.b.eq(Mux(squaring, mean, self.inverse)),
        ]
        with m.If(squaring):
            m.d.sync += self.mean.eq(mean)
        with m.If(step == SQUARE_STEP + 1):
            m.d.sync += mean_square.eq(multiply.o)

        # The adder makes Q / n - mean², and with rounding below 0 cut to 0, adds eps to it.
        variance = Signal(FP32.width)
        m.d.comb += [
            variance.eq(Mux(self.add_o[-1], 0, self.add_o)),
            self.add_subtract.eq(step == VARIANCE_STEP),
            self.add_valid.eq(self.add_subtract | (step == EPSILON_STEP)),
            self.add_a.eq(Mux(self.add_subtract, mean_square, variance)),
            self.add_b.eq(Mux(self.add_subtract, multiply.o, self.eps)),
        ]
        self._inverse_root(m, not_finite, step == RESULT_STEP - 1)
        return m

    def _sums(self, m: Module) -> tuple[Signal, Signal, Signal, Signal]:
        """Returns (done, sum, sum of squares, NaN or infinity seen).

        `done` is high for one cycle, the first in which both sums are complete.
        """
        # Stage 1: x = ± digits 2^(position - 24), and digits².
        special: Value  # the element is NaN or infinite
        digits, shift, special = significand(m, self.x, "x")
        position = Signal(FP16.exponent)
        m.d.comb += position.eq(shift - 1)
        registers = {"digits": digits, "square": digits * digits, "position": position}
        registers |= {"negative": self.x[-1], "special": special}
        digits, square, position, negative, special = (
            _data(m, name, value) for name, value in registers.items()
        )
        valid, last = delay(m, "product", Cat(self.valid, self.last))

        # Stage 2: to fixed point.
        #   element  | 000…0 | digits | position zeros |      40 bits, unit 2^-24
        #   square   | 000…0 | digits² | 2 position zeros |   80 bits, unit 2^-48
        fixed = Signal(FIXED_BITS)
        fixed_square = Signal(2 * FIXED_BITS)
        m.d.comb += [
            fixed.eq(digits << position),
            fixed_square.eq(square << Cat(Const(0, 1), position)),
        ]
        fixed, fixed_square = _data(m, "fixed", fixed), _data(m, "fixed_square", fixed_square)
        negative = _data(m, "sign", negative)
        valid, last, special = delay(m, "term", Cat(valid, last, special))

        # Stage 3: accumulate; the first term of a vector replaces the sums.
        first = Signal(init=1)
        element_sum = Signal(signed(FIXED_BITS + self._length_bits + 1), reset_less=True)
        square_sum = Signal(2 * FIXED_BITS + self._length_bits, reset_less=True)
        not_finite = Signal()
        done = Signal()
        m.d.sync += done.eq(valid & last)
        # -fixed = ~fixed + 1: the one is the adder's carry in.
        term = Cat(fixed ^ negative.replicate(FIXED_BITS), negative).as_signed()
        with m.If(valid):
            m.d.sync += [
                first.eq(last),
                element_sum.eq(Mux(first, 0, element_sum) + term + negative),
                square_sum.eq(Mux(first, 0, square_sum) + fixed_square),
                not_finite.eq(special | (not_finite & ~first)),
            ]
        return done, element_sum, square_sum, not_finite

    def _to_fp32(self, m: Module, done, element_sum, square_sum) -> Signal:
        """In FP32, 4 cycles later: the sum of elements, if `done`, else the sum of squares."""
        # Stage 1: choose; the sum of elements is moved to the squares' unit, 2^-48.
        width = len(square_sum)
        value = Signal(width, reset_less=True)
        chosen = Signal(width)
        magnitude = Signal(len(element_sum) - 1)
        negative = Signal(reset_less=True)
        m.d.comb += [
            magnitude.eq(Mux(element_sum[-1], -element_sum, element_sum)),
            chosen.eq(Mux(done, magnitude << FP16_FRACTION, square_sum)),
        ]
        m.d.sync += [value.eq(chosen), negative.eq(done & element_sum[-1])]
        # Stage 2: find the leading one.
        position = _data(m, "leading_one", leading_one(m, value))
        value, negative = _data(m, "value", value), _data(m, "value_sign", negative)
        # Stage 3: normalise.
        #   normal | 1 | fraction (23) | guard | sticky … |
        normal = shift_to_top(m, value, position)
        fraction, guard, sticky = normal[-24:-1], normal[-25], normal[:-25]
        zeros = Signal(len(position))
        field = Signal(FP32.exponent)
        # The top bit's weight is 2^(width - 1 - 48).
        top_field = FP32.bias + width - 1 - 2 * FP16_FRACTION
        m.d.comb += [
            zeros.eq(~position),
            field.eq(Mux(normal[-1], top_field - zeros, 0)),
        ]
        up = _data(m, "round_up", guard & (sticky.any() | fraction[0]))
        # Stage 4: round to nearest even. A carry out of the fraction goes into the exponent field.
        rounded = Signal(FP32.width - 1)
        m.d.comb += rounded.eq(_data(m, "normalised", Cat(fraction, field)) + up)
        sign = _data(m, "normalised_sign", negative)
        return _data(m, "number", Cat(rounded, sign))

    def _inverse_root(self, m: Module, not_finite, capture: Value) -> None:
        """1 / sqrt of the adder's result, taken into the outputs in the cycle `capture`."""
        variance_eps = self.add_o
        field = variance_eps[FP32.mantissa : -1]
        # The table's index: 12 bits of the fraction, and the exponent's parity above them. With
        # a bias of 127 the exponent is odd where the field is even.
        index = Cat(variance_eps[FP32.mantissa - 12 : FP32.mantissa], ~field[0])
        root = sum(INVERSE_ROOT.terms(m, double_root, index), 0)  # made in every cycle
        with m.If(capture):
            m.d.sync += [
                self.inverse_std.eq(root),
                # -floor((field - 127) / 2) - 1
                self.exponent.eq(63 - ((field + 1) >> 1)),
                self.undefined.eq(not_finite | variance_eps[-1] | field.all() | ~field.any()),
            ]


def _data(m: Module, name: str, value: Value) -> Signal:
    """A pipeline register of data."""
    return delay(m, name, value, reset=False)
