"""Floating-point numbers to fixed-point numbers."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value, signed, unsigned

from hw.arith.bits.order_key import is_nan
from hw.arith.datapath import Datapath, FloatParameters
from hw.arith.float_format import FloatFormat
from hw.layout import FLAG, FixedPoint
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out

ROUNDINGS = ("nearest_even", "truncate", "floor", "ceiling")

WIDEST = 48
"""Bits of the widest fixed-point number; the bit-exact models compute in float64, which is exact
up to there."""


@dataclasses.dataclass(frozen=True)
class FloatToFixedParameters(FloatParameters):
    """
    format
        ``fp16``, ``bf16``, ``fp32``, ``fp8_e4m3`` or ``fp8_e5m2``.
    flush_subnormals
        Whether subnormal operands count as zeros.
    width, signed
        Width of the result, 2 to 48 bits, and whether it is in two's complement.
    fraction
        Fraction bits of the result. It may be negative, or larger than `width`, as long as some
        normal number is above a half and some below the limit.
    rounding
        ``nearest_even``, ``truncate`` (towards zero), ``floor`` or ``ceiling``.
    stages
        0 to 2; the first of two is after the shifter.
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
        """Bits of the result without its sign."""
        return self.width - self.signed

    @property
    def half(self) -> int:
        """The exponent field of numbers from 1/2 up to 1, in units of the result."""
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


class FloatToFixed(Datapath[FloatToFixedParameters]):
    """o = a * 2^fraction, rounded to an integer and saturated to the range of `width` bits.

    A number that is too large, or infinite, gives the limit of its sign; a NaN gives the upper
    limit, as in RISC-V. Accuracy: correctly rounded.

    Latency: `stages` cycles. Throughput: one result per cycle.

    Structure: the significand is shifted left into a window of integer bits::

        exponent = half       |                 | 1 m m m m |      0.1mmmm
        exponent = half + 3   |           1 m m | m m . . . |      1mm.mm
                              | integer         | G | sticky |

    The smallest shift comes first, which needs fewer multiplexers than the other order, and uses
    the low bits of the exponent first. Guard and sticky bit decide the rounding. Negation and
    rounding share one incrementer, -(i + r) = ~i + (1 - r). Saturation precedes it: the limits are
    all ones, and their complement for a negative operand.

    Examples
    --------
    >>> from hw.arith.float_to_fixed import FloatToFixed, FloatToFixedParameters
    >>> parameters = FloatToFixedParameters(width=20, fraction=12, rounding="floor")
    >>> FloatToFixed(parameters).o.shape()
    signed(20)
    >>> FloatToFixedParameters(rounding="up")
    Traceback (most recent call last):
    ...
    hw.parameters.ParameterError: rounding must be one of nearest_even, truncate, floor, ceiling, \
not 'up'
    """

    summary = "Floating to fixed point, four roundings, saturating, with flags"
    source = "library"

    def operation(self) -> Ports:
        p = self.parameters
        return {
            "a": wire_in(p.float_format, "Operand."),
            "o": wire_out(FixedPoint(p.shape, p.fraction), "The fixed-point number."),
            "overflow": wire_out(
                FLAG, "The rounded value is out of range, or NaN; `o` is a limit."
            ),
            "inexact": wire_out(FLAG, "No overflow, but `o` is not exactly the operand."),
        }

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        self._round(m, cut, *cut("shifted", **self._shift(m)))
        return m

    def _shift(self, m: Module) -> dict[str, Value]:
        """The magnitude, and flags that decide about its rounding and its range."""
        p, float_format = self.parameters, self.parameters.float_format
        mantissa = float_format.mantissa
        exponent = self.a[mantissa:-1]
        # Fields of the operand.
        hidden = Signal()
        nan = Signal()
        negative = Signal()
        m.d.comb += hidden.eq(exponent.any())
        m.d.comb += nan.eq(is_nan(self.a, float_format))
        m.d.comb += negative.eq(self.a[-1] & ~nan)
        significand = Signal(mantissa + 1)
        m.d.comb += significand.eq(Cat(self.a[:mantissa], hidden))
        if p.flush_subnormals:
            with m.If(~hidden):
                m.d.comb += significand.eq(0)

        # Left shift: exponent field minus `half`. Numbers below only decide the rounding (`tiny`),
        # numbers above the window's range saturate (`large`).
        field = Signal.like(exponent)
        m.d.comb += field.eq(exponent)
        if p.half <= 1:  # subnormals have the exponent 1; with a larger `half` they are tiny
            m.d.comb += field[0].eq(exponent[0] | ~hidden)
        tiny = Signal()
        large = Signal()
        if p.half > 0:
            m.d.comb += tiny.eq(field < p.half)
        special = exponent.all() if float_format.infinities else nan
        m.d.comb += large.eq((field > p.half + p.integers) | special)
        most = min(p.integers, top_exponent(float_format) - p.half)
        distance = Signal(range(most + 1))
        shift = Signal(range(most + 1))
        m.d.comb += distance.eq(field - p.half)
        m.d.comb += shift.eq(distance & (~tiny).replicate(len(distance)))
        window = significand
        # The shorter shifts come first: the word grows with each level, so the early ones are
        # narrow.
        for level in range(len(shift)):
            wider = Signal(min(len(window) + (1 << level), mantissa + 1 + most), name=f"by{level}")
            m.d.comb += wider.eq(Mux(shift[level], window << (1 << level), window))
            window = wider
        integer = Signal(p.integers)
        guard = Signal()
        sticky = Signal()
        m.d.comb += integer.eq(window[mantissa + 1 :])
        m.d.comb += guard.eq(window[mantissa] & ~tiny)
        m.d.comb += sticky.eq(window[:mantissa].any() | window[mantissa] & tiny)
        lowest, lowest_inexact = self._lowest(m, field, significand, negative)
        return {
            "integer": integer,
            "guard": guard,
            "sticky": sticky,
            "negative": negative,
            "large": large,
            "lowest": lowest,
            "lowest_inexact": lowest_inexact,
        }

    def _round(
        self, m: Module, cut, integer, guard, sticky, negative, large, lowest, lowest_inexact
    ) -> None:
        """Outputs; `too_far` is beyond the upper limit, `below` the lower one if unsigned."""
        p = self.parameters
        up = Signal()
        too_far = Signal()
        below = Signal()
        m.d.comb += up.eq(self._round_up(negative, guard, sticky, integer[0]))
        # An operand can have a fraction and round up to 2^integers.
        if p.float_format.mantissa >= p.integers:
            m.d.comb += too_far.eq(up & integer.all() & ~negative)
        # Negation, rounding and saturation.
        saturated = integer | large.replicate(p.integers)
        number = Signal(p.width)
        increment = Signal()
        total = Signal(p.width)
        if p.signed:
            m.d.comb += number.eq(Cat(saturated, Const(0, 1)) ^ negative.replicate(p.width))
            m.d.comb += increment.eq((up & ~too_far ^ negative) & ~large)
        else:
            m.d.comb += below.eq(negative & (up | integer.any()))
            m.d.comb += number.eq(saturated & (~negative).replicate(p.width))
            m.d.comb += increment.eq(up & ~(too_far | negative | large))
        m.d.comb += total.eq(number + increment)

        overflow = Signal()
        inexact = Signal()
        m.d.comb += overflow.eq(large & ~lowest | too_far | below)
        lost = (guard | sticky) & ~large | lowest_inexact
        m.d.comb += inexact.eq(lost & ~(too_far | below))
        o, overflow, inexact = cut("result", o=total, overflow=overflow, inexact=inexact)
        m.d.comb += [self.o.eq(o), self.overflow.eq(overflow), self.inexact.eq(inexact)]

    def _lowest(self, m: Module, field: Value, significand: Value, negative: Value):
        """Returns (the operand rounds to the lower limit -2^integers, but is not exactly that).

        The limit's magnitude does not fit the window: so it looks like an overflow.
        """
        p = self.parameters
        lowest, inexact = Signal(name="lowest"), Signal(name="lowest_inexact")
        limit = p.half + p.integers + 1  # exponent field of the limit
        if p.signed and limit <= top_exponent(p.float_format):
            fraction = significand[:-1]
            below = max(len(fraction) - p.integers, 0)
            guard = fraction[below - 1] if below else Const(0)
            sticky = fraction[: below - 1].any() if below > 1 else Const(0)
            up = self._round_up(negative, guard, sticky, Const(0))
            at_limit = Signal()
            m.d.comb += at_limit.eq(negative & (field == limit) & ~fraction[below:].any() & ~up)
            m.d.comb += lowest.eq(at_limit)
            m.d.comb += inexact.eq(at_limit & (guard | sticky))
        return lowest, inexact

    def _round_up(self, negative: Value, guard: Value, sticky: Value, odd: Value) -> Value:
        """Whether the magnitude above the guard bit is incremented."""
        return {
            "nearest_even": guard & (sticky | odd),
            "truncate": Const(0),
            "floor": negative & (guard | sticky),
            "ceiling": ~negative & (guard | sticky),
        }[self.parameters.rounding]


def top_exponent(float_format: FloatFormat) -> int:
    """The exponent field of the largest number."""
    return float_format.largest >> float_format.mantissa
