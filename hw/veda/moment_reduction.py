"""Mean and inverse standard deviation of a vector, for its layer normalisation (VEDA, IV-B)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib.wiring import In, Out

from hw.arith.fixed_sum import significand
from hw.arith.float_format import FP16, FP32
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.arith.inverse_square_root import double_root
from hw.arith.leading_zeros import leading_one, shift_to_top
from hw.arith.wide_exponent import EXPONENT, INVERSE_ROOT, INVERSE_WIDTH
from hw.component import Component

MULTIPLY, ADD = 3, 4
"""Stages of the FP32 multiplier here, and of the adder that is borrowed."""

UNIT = 24
"""Bits behind the point of FP16's smallest number."""

ELEMENT = 40
"""Bits of FP16's largest number in units of the smallest."""

AHEAD = 7
"""Cycles from `ended` to what is given out being there."""

TOTALS = 3  # cycles from the last element to both sums being there
NORMAL = TOTALS + 4  # to the sum of elements in FP32, a cycle before that of squares
SQUARE = NORMAL + MULTIPLY  # to the mean, which then is squared
VARIANCE = SQUARE + MULTIPLY
EPSILON = VARIANCE + ADD
ROOT = EPSILON + ADD + 1
"""Cycles from a vector's last element to 1 / std."""


class MomentReduction(Component):
    """mean = S / n, 1 / std = 1 / sqrt(Q / n - mean² + eps) of S = sum of x, Q = sum of x².

    Both sums are exact integers, so no order matters. Then in FP32, subnormals being zeros, each
    step rounded to nearest even:

        mean = S inverse,  variance = max(Q inverse - mean², 0),  m = variance + eps

    With `rms` the mean is 0. The root's reciprocal is a table's, of 12 bits of m's fraction: a
    significand and an exponent beside it.

    Latency: ROOT = 22 cycles from the last element; `ended` announces it 7 cycles ahead. A vector
    must not begin before the last one `ended`. What is given out stays for longer than that.

    Members
    -------
    valid, last : :py:`In(1)`
        An element is there, the vector's last.
    x : :py:`In(16)`
        FP16.
    rms : :py:`In(1)`
    inverse, eps : :py:`In(32)`
        FP32, 1 / n and what is added to the variance. Like `rms`, they are held by the parent.
    left, right : :py:`Out(32)`
        Operands of an FP32 adder of ADD stages which the parent lends while `adding`.
    subtract, adding : :py:`Out(1)`
    total : :py:`In(32)`
        What comes out of the adder.
    ended : :py:`Out(1)`
    mean : :py:`Out(32)`
        FP32.
    root : :py:`Out(15)`
        2^k / std in units of 2^-14.
    order : :py:`Out(signed)`
        k.
    undefined : :py:`Out(1)`
        An element is not finite, or m is not positive and finite.
    """

    def __init__(self, length: int):
        self._log = length.bit_length()
        super().__init__(
            {
                "valid": In(1),
                "last": In(1),
                "x": In(FP16.width),
                "rms": In(1),
                "inverse": In(FP32.width),
                "eps": In(FP32.width),
                "left": Out(FP32.width),
                "right": Out(FP32.width),
                "subtract": Out(1),
                "adding": Out(1),
                "total": In(FP32.width),
                "ended": Out(1),
                "mean": Out(FP32.width),
                "root": Out(INVERSE_WIDTH),
                "order": Out(EXPONENT),
                "undefined": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        step = Signal(range(ROOT + 1))  # cycles since the last element, 0 where it is not there
        done, element, square, special = self._totals(m)
        number = self._normalised(m, done, element, square)
        with m.If(done):
            m.d.sync += step.eq(TOTALS + 1)
        with m.Elif(step.any()):
            m.d.sync += step.eq(Mux(step == ROOT, 0, step + 1))
        m.d.comb += self.ended.eq(step == ROOT - AHEAD)

        m.submodules.multiply = multiply = FloatMultiply(
            FloatMultiplyParameters(format="fp32", flush_subnormals=True, stages=MULTIPLY)
        )
        mean, squares = Signal(FP32.width), Signal(FP32.width, reset_less=True)
        squaring = Signal()
        m.d.comb += [
            squaring.eq(step == SQUARE),
            mean.eq(Mux(self.rms, 0, multiply.o)),
            multiply.a.eq(Mux(squaring, mean, number)),
            multiply.b.eq(Mux(squaring, mean, self.inverse)),
        ]
        with m.If(squaring):
            m.d.sync += self.mean.eq(mean)
        with m.If(step == SQUARE + 1):
            m.d.sync += squares.eq(multiply.o)
        variance = Signal(FP32.width)
        m.d.comb += [
            variance.eq(Mux(self.total[-1], 0, self.total)),
            self.subtract.eq(step == VARIANCE),
            self.adding.eq(self.subtract | (step == EPSILON)),
            self.left.eq(Mux(self.subtract, squares, variance)),
            self.right.eq(Mux(self.subtract, multiply.o, self.eps)),
        ]
        self._root(m, special, step == ROOT - 1)
        return m

    def _totals(self, m: Module) -> tuple[Signal, Signal, Signal, Signal]:
        """Whether both sums are there for the first time, they themselves, and if one is none."""
        digits, shift, special = significand(m, self.x, "x")
        place = Signal(FP16.exponent)
        m.d.comb += place.eq(shift - 1)
        registers = {"digits": digits, "square": digits * digits, "place": place}
        registers |= {"negative": self.x[-1], "special": special}
        digits, square, place, negative, special = (
            _register(m, name, value) for name, value in registers.items()
        )
        valid, last = _register(m, "product", Cat(self.valid, self.last), reset=True)
        low, high = Signal(ELEMENT), Signal(2 * ELEMENT)
        m.d.comb += [low.eq(digits << place), high.eq(square << Cat(Const(0, 1), place))]
        low, high = _register(m, "low", low), _register(m, "high", high)
        negative = _register(m, "sign", negative)
        valid, last, special = _register(m, "term", Cat(valid, last, special), reset=True)

        opening = Signal(init=1)
        element = Signal(signed(ELEMENT + self._log + 1), reset_less=True)
        square = Signal(2 * ELEMENT + self._log, reset_less=True)
        spoilt, done = Signal(), Signal()
        m.d.sync += done.eq(valid & last)
        term = Cat(low ^ negative.replicate(ELEMENT), negative).as_signed()
        with m.If(valid):
            m.d.sync += [
                opening.eq(last),
                element.eq(Mux(opening, 0, element) + term + negative),
                square.eq(Mux(opening, 0, square) + high),
                spoilt.eq(special | (spoilt & ~opening)),
            ]
        return done, element, square, spoilt

    def _normalised(self, m: Module, done, element, square) -> Signal:
        """In FP32 the sum of elements, if it is `done`, and the sum of squares otherwise."""
        width = len(square)
        value, chosen = Signal(width, reset_less=True), Signal(width)
        magnitude = Signal(len(element) - 1)
        negative = Signal(reset_less=True)
        m.d.comb += [
            magnitude.eq(Mux(element[-1], -element, element)),
            chosen.eq(Mux(done, magnitude << UNIT, square)),
        ]
        m.d.sync += [value.eq(chosen), negative.eq(done & element[-1])]
        position = _register(m, "position", leading_one(m, value))
        value, negative = _register(m, "found", value), _register(m, "sign_found", negative)
        normal = shift_to_top(m, value, position)
        fraction, guard, below = normal[-24:-1], normal[-25], normal[:-25]
        zeros, field = Signal(len(position)), Signal(FP32.exponent)
        # The highest bit's weight is 2^(width - 1 - 2 UNIT).
        highest = FP32.bias + width - 1 - 2 * UNIT
        m.d.comb += [
            zeros.eq(~position),
            field.eq(Mux(normal[-1], highest - zeros, 0)),
        ]
        up = _register(m, "up", guard & (below.any() | fraction[0]))
        rounded = Signal(FP32.width - 1)
        m.d.comb += rounded.eq(_register(m, "normalised", Cat(fraction, field)) + up)
        sign = _register(m, "sign_normalised", negative)
        return _register(m, "number", Cat(rounded, sign))

    def _root(self, m: Module, special, now: Value) -> None:
        """1 / sqrt of the adder's result."""
        total = self.total
        exponent = total[FP32.mantissa : -1]
        # Bias and parity: the field less 127 is odd where the field is even.
        index = Cat(total[FP32.mantissa - 12 : FP32.mantissa], ~exponent[0])
        root = sum(INVERSE_ROOT.terms(m, double_root, index), 0)  # whether it is wanted or not
        with m.If(now):
            m.d.sync += [
                self.root.eq(root),
                # -floor((exponent - 127) / 2) - 1
                self.order.eq(63 - ((exponent + 1) >> 1)),
                self.undefined.eq(special | total[-1] | exponent.all() | ~exponent.any()),
            ]


def _register(m: Module, name: str, value: Value, reset: bool = False) -> Signal:
    register = Signal(len(value), name=f"{name}_register", reset_less=not reset)
    m.d.sync += register.eq(value)
    return register
