"""Floating-point numbers to fixed-point numbers."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value, signed, unsigned

from hw.arith.datapath import Datapath, FloatParameters
from hw.arith.float_format import FloatFormat
from hw.arith.order_key import is_nan
from hw.parameters import require

ROUNDINGS = ("nearest_even", "truncate", "floor", "ceiling")

WIDEST = 48
"""Bits of the widest fixed-point number: all of them are exact in the golden twins' float64."""


@dataclasses.dataclass(frozen=True)
class FloatToFixedParameters(FloatParameters):
    """
    format
        ``fp16``, ``bf16``, ``fp32``, ``fp8_e4m3`` or ``fp8_e5m2``.
    flush_subnormals
        Whether subnormal operands count as zeros.
    width, signed
        Of the result: 2 to 48 bits, two's complement if signed.
    fraction
        Bits of the result behind the binary point. It may be negative, or larger than `width`, as
        long as some normal number is above a half and some below the limit.
    rounding
        ``nearest_even``, ``truncate`` (towards zero), ``floor`` or ``ceiling``.
    stages
        0 to 2; the first of two ranks is behind the shifter.
    """

    CUTS = ((), ("result",), ("shifted", "result"))

    width: int = 16
    signed: bool = True
    fraction: int = 0
    rounding: str = "nearest_even"

    def __post_init__(self):
        super().__post_init__()
        require(2 <= self.width <= WIDEST, f"width must be between 2 and {WIDEST}", self.width)
        rule = f"rounding must be one of {', '.join(ROUNDINGS)}"
        require(self.rounding in ROUNDINGS, rule, self.rounding)
        least = self.float_format.bias - 1 - top_exponent(self.float_format)
        most = self.float_format.bias - 2 + self.integers
        rule = f"fraction must be between {least} and {most}"
        require(least <= self.fraction <= most, rule, self.fraction)

    @property
    def shape(self) -> Shape:
        return signed(self.width) if self.signed else unsigned(self.width)

    @property
    def integers(self) -> int:
        """Bits of the result but for its sign."""
        return self.width - self.signed

    @property
    def half(self) -> int:
        """The exponent field of the numbers that are a half to one in units of the result."""
        return self.float_format.bias - 1 - self.fraction

    @classmethod
    def presets(cls) -> dict[str, "FloatToFixedParameters"]:
        return {
            "fp16": cls(),
            "fp16_pipelined": cls(stages=cls.PIPELINED),
            "fp16_floor": cls(fraction=8, rounding="floor"),
            "fp16_unsigned": cls(signed=False, fraction=20, rounding="ceiling"),
            "bf16": cls(format="bf16", rounding="truncate"),
            "fp32": cls(format="fp32", width=32),
            "fp8_e4m3": cls(format="fp8_e4m3", width=8, fraction=3),
        }


class FloatToFixed(Datapath):
    """o = a * 2^fraction, rounded to an integer and saturated to what `width` bits hold.

    What is too large, infinite included, gives the limit of its sign; a NaN gives the upper limit,
    as in RISC-V. Accuracy: correctly rounded.

    Latency: `stages` cycles. Throughput: one result per cycle.

    Structure: the significand is shifted left into a window of integer bits, smallest shift first:
    fewer multiplexers than the other way round, and the low bits of the exponent come first. What
    lies below the window decides the rounding. Negation and rounding share one incrementer,
    -(i + r) = ~i + (1 - r), and saturation is in front of it: all ones, complemented for a
    negative operand, are the limits.

    Members
    -------
    a : :py:`In(width of format)`
        Operand.
    o : :py:`Out(signed(width))` or :py:`Out(unsigned(width))`
        The fixed-point number.
    overflow : :py:`Out(1)`
        The rounded value does not fit, or is NaN; `o` is a limit.
    inexact : :py:`Out(1)`
        No overflow, but `o` is not exactly the operand.
    """

    summary = "Floating to fixed point, four roundings, saturating, with flags"
    source = "library"

    def __init__(self, parameters: FloatToFixedParameters):
        outputs = {"o": parameters.shape, "overflow": 1, "inexact": 1}
        super().__init__(parameters, {"a": parameters.float_format.width}, outputs)

    def elaborate(self, platform):
        m = Module()
        p, float_format = self.parameters, self.parameters.float_format
        mantissa = float_format.mantissa
        exponent = self.a[mantissa:-1]
        hidden, nan, negative = Signal(), Signal(), Signal()
        m.d.comb += hidden.eq(exponent.any())
        m.d.comb += nan.eq(is_nan(self.a, float_format))
        m.d.comb += negative.eq(self.a[-1] & ~nan)
        significand = Signal(mantissa + 1)
        m.d.comb += significand.eq(Cat(self.a[:mantissa], hidden))
        if p.flush_subnormals:
            with m.If(~hidden):
                m.d.comb += significand.eq(0)

        # Numbers of the exponent field `half` stay where they are, larger ones go left.
        field = Signal.like(exponent)
        m.d.comb += field.eq(exponent)
        if p.half <= 1:  # or else subnormals are too small for it to matter
            m.d.comb += field[0].eq(exponent[0] | ~hidden)
        tiny, large = Signal(), Signal()
        if p.half > 0:
            m.d.comb += tiny.eq(field < p.half)
        special = exponent.all() if float_format.infinities else nan
        m.d.comb += large.eq((field > p.half + p.integers) | special)
        most = min(p.integers, top_exponent(float_format) - p.half)
        distance, shift = Signal(range(most + 1)), Signal(range(most + 1))
        m.d.comb += distance.eq(field - p.half)
        m.d.comb += shift.eq(distance & (~tiny).replicate(len(distance)))
        window = significand
        for place in range(len(shift)):
            wider = Signal(min(len(window) + (1 << place), mantissa + 1 + most), name=f"by{place}")
            m.d.comb += wider.eq(Mux(shift[place], window << (1 << place), window))
            window = wider
        integer, guard, sticky = Signal(p.integers), Signal(), Signal()
        m.d.comb += integer.eq(window[mantissa + 1 :])
        m.d.comb += guard.eq(window[mantissa] & ~tiny)
        m.d.comb += sticky.eq(window[:mantissa].any() | window[mantissa] & tiny)
        lowest, lowest_inexact = self._lowest(m, field, significand, negative)

        cut = self.registers(m)
        integer, guard, sticky, negative, large, lowest, lowest_inexact = cut(
            "shifted",
            integer=integer,
            guard=guard,
            sticky=sticky,
            negative=negative,
            large=large,
            lowest=lowest,
            lowest_inexact=lowest_inexact,
        )
        up, too_far, below = Signal(), Signal(), Signal()
        m.d.comb += up.eq(self._round_up(negative, guard, sticky, integer[0]))
        if mantissa >= p.integers:  # an operand can have a fraction and round up to 2^integers
            m.d.comb += too_far.eq(up & integer.all() & ~negative)
        saturated = integer | large.replicate(p.integers)
        number, increment, total = Signal(p.width), Signal(), Signal(p.width)
        if p.signed:
            m.d.comb += number.eq(Cat(saturated, Const(0, 1)) ^ negative.replicate(p.width))
            m.d.comb += increment.eq((up & ~too_far ^ negative) & ~large)
        else:
            m.d.comb += below.eq(negative & (up | integer.any()))
            m.d.comb += number.eq(saturated & (~negative).replicate(p.width))
            m.d.comb += increment.eq(up & ~(too_far | negative | large))
        m.d.comb += total.eq(number + increment)

        overflow, inexact = Signal(), Signal()
        m.d.comb += overflow.eq(large & ~lowest | too_far | below)
        lost = (guard | sticky) & ~large | lowest_inexact
        m.d.comb += inexact.eq(lost & ~(too_far | below))
        o, overflow, inexact = cut("result", o=total, overflow=overflow, inexact=inexact)
        m.d.comb += [self.o.eq(o), self.overflow.eq(overflow), self.inexact.eq(inexact)]
        return m

    def _lowest(self, m: Module, field: Value, significand: Value, negative: Value):
        """Whether the operand rounds to the lower limit, whose magnitude is one above the window,
        and whether it is not exactly that."""
        p = self.parameters
        lowest, inexact = Signal(name="lowest"), Signal(name="lowest_inexact")
        place = p.half + p.integers + 1
        if p.signed and place <= top_exponent(p.float_format):
            fraction = significand[:-1]
            below = max(len(fraction) - p.integers, 0)
            guard = fraction[below - 1] if below else Const(0)
            sticky = fraction[: below - 1].any() if below > 1 else Const(0)
            up = self._round_up(negative, guard, sticky, Const(0))
            in_place = Signal()
            m.d.comb += in_place.eq(negative & (field == place) & ~fraction[below:].any() & ~up)
            m.d.comb += lowest.eq(in_place)
            m.d.comb += inexact.eq(in_place & (guard | sticky))
        return lowest, inexact

    def _round_up(self, negative: Value, guard: Value, sticky: Value, odd: Value) -> Value:
        """Whether the magnitude becomes one more than what is left of the guard bit."""
        return {
            "nearest_even": guard & (sticky | odd),
            "truncate": Const(0),
            "floor": negative & (guard | sticky),
            "ceiling": ~negative & (guard | sticky),
        }[self.parameters.rounding]


def top_exponent(float_format: FloatFormat) -> int:
    """The exponent field of the largest number."""
    return float_format.largest >> float_format.mantissa
