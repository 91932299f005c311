"""Fixed-point numbers to floating-point numbers, and the normaliser that it shares."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value, signed, unsigned

from hw.arith.datapath import Datapath, FloatParameters
from hw.arith.float_to_fixed import WIDEST, top_exponent
from hw.layout import FixedPoint
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class FixedToFloatParameters(FloatParameters):
    """
    format
        ``fp16``, ``bf16``, ``fp32``, ``fp8_e4m3`` or ``fp8_e5m2``.
    flush_subnormals
        Whether results that are subnormal once rounded become zeros of their sign.
    width, signed
        Width of the operand, 2 to 48 bits, and whether it is in two's complement.
    fraction
        Fraction bits of the operand. It may be negative, or larger than `width`, as long as the
        smallest operand above zero is finite and the largest is normal.
    stages
        0 to 2; the first of two is after the normaliser.
    """

    CUTS = ((), ("result",), ("normalised", "result"))

    width: int = 16
    signed: bool = True
    fraction: int = 0

    def __post_init__(self):
        super().__post_init__()
        require(2 <= self.width <= WIDEST, f"width must be between 2 and {WIDEST}", self.width)
        least = self.float_format.bias - top_exponent(self.float_format)
        most = self.float_format.bias - 2 + self.width - self.signed
        rule = f"fraction must be between {least} and {most}"
        require(least <= self.fraction <= most, rule, self.fraction)

    @property
    def shape(self) -> Shape:
        return signed(self.width) if self.signed else unsigned(self.width)

    @classmethod
    def presets(cls) -> dict[str, "FixedToFloatParameters"]:
        return {
            "fp16": cls(),
            "fp16_pipelined": cls(stages=cls.PIPELINED),
            "fp16_subnormal": cls(fraction=26),
            "fp16_unsigned": cls(width=24, signed=False, fraction=4),
            "bf16": cls(format="bf16"),
            "fp32": cls(format="fp32", width=32),
            "fp8_e4m3": cls(format="fp8_e4m3", width=12),
        }


class FixedToFloat(Datapath[FixedToFloatParameters]):
    """o = a / 2^fraction, rounded to nearest even.

    A result that is too large is infinity, or NaN in a format without infinities; zero is plus
    zero. Accuracy: correctly rounded.

    Latency: `stages` cycles. Throughput: one result per cycle.

    Structure: a negative operand is inverted, not negated::

        digits          | 0 … 0 | 1 x x … x |           -a = inverted bits + 1
        normalised      | 1 x x … x | 1 … 1 |           ones shifted in if negative, else zeros
                        | 1 | fraction | G | sticky …

    The missing increment is the carry out of an endless row of ones below, so it is decided
    together with the rounding, and there is one incrementer. Exponent and fraction are rounded
    as one integer, so that a carry out of the fraction needs no second normalisation. An extra
    bit in the word of the leading-zero counter ends the shift of subnormal results.

    Examples
    --------
    >>> from hw.arith.fixed_to_float import FixedToFloat, FixedToFloatParameters
    >>> parameters = FixedToFloatParameters(format="fp32", width=48, signed=False, fraction=24)
    >>> unit = FixedToFloat(parameters)
    >>> unit.a.shape(), unit.o.shape()
    (unsigned(48), unsigned(32))
    """

    summary = "Fixed to floating point, correctly rounded"
    source = "library"

    def operation(self) -> Ports:
        p = self.parameters
        a = FixedPoint(p.shape, p.fraction)
        return {
            "a": wire_in(a, "The fixed-point number."),
            "o": wire_out(p.float_format, "The floating-point number."),
        }

    def elaborate(self, platform):
        m = Module()
        p, float_format = self.parameters, self.parameters.float_format
        mantissa, exponent = float_format.mantissa, float_format.exponent
        negative = Signal()
        digits = Signal(p.width)
        if p.signed:
            m.d.comb += negative.eq(self.a[-1])
            # One's complement instead of a negation: the + 1 of two's complement is left to the
            # rounding, so no carry chain is in front of the normalising shifter.
            ones = negative.replicate(p.width - 1)
            m.d.comb += digits.eq(Cat(negative, self.a[:-1] ^ ones))
        else:
            m.d.comb += digits.eq(self.a)

        # `digits` of a signed operand has the sign as its lowest bit, the first one shifted in.
        # The exponent field of a number whose leading one is the lowest digit:
        lowest = float_format.bias - p.fraction - p.signed
        stop = 1 << 1 - lowest if lowest <= 1 else 0
        # `stop` limits the shift, so that a subnormal result remains unshifted by what it lacks.
        normal, zeros = normalise(m, digits, negative, stop)
        highest = lowest + p.width - 1
        field = Signal(range(highest + 1))
        hidden = Signal()
        large = Signal()
        m.d.comb += field.eq(highest - zeros)
        m.d.comb += hidden.eq(normal[-1])
        m.d.comb += large.eq(hidden & (field > top_exponent(float_format)))
        # Fraction and the bits below it, at least two: extend a narrow operand.
        padding = max(mantissa + 3 - p.width, 0)
        exact = Cat(negative.replicate(padding), normal[:-1])
        fraction = Signal(mantissa)
        rest = Signal(len(exact) - mantissa)
        m.d.comb += Cat(rest, fraction).eq(exact)
        power = Signal(exponent)
        m.d.comb += power.eq(field & hidden.replicate(exponent))

        cut = self.registers(m)
        fraction, rest, power, negative, large = cut(
            "normalised",
            fraction=fraction,
            rest=rest,
            power=power,
            negative=negative,
            large=large,
        )
        # A negative operand's magnitude is its digits plus one in an infinitely low place. So its
        # sticky bit is always set, and a guard bit of zero with ones below is a tie.
        up = Signal()
        guard = rest[-1]
        if_positive = guard & (rest[:-1].any() | fraction[0])
        if_negative = guard | rest[:-1].all() & fraction[0]
        m.d.comb += up.eq(Mux(negative, if_negative, if_positive))
        magnitude = Signal(float_format.width - 1)
        at_limit = Signal()
        m.d.comb += magnitude.eq(Cat(fraction, power))
        with m.If(large):
            m.d.comb += magnitude.eq(float_format.overflow)
        m.d.comb += at_limit.eq(large if float_format.infinities else magnitude.all())
        rounded = Signal.like(magnitude)
        result = Signal.like(magnitude)
        sign = Signal()
        m.d.comb += rounded.eq(magnitude + (up & ~at_limit))
        m.d.comb += result.eq(rounded)
        if p.flush_subnormals:
            with m.If(~rounded[mantissa:].any()):
                m.d.comb += result.eq(0)
        m.d.comb += sign.eq(negative)
        if not float_format.infinities:
            m.d.comb += sign.eq(negative & ~result.all())
        m.d.comb += self.o.eq(cut("result", o=Cat(result, sign)))
        return m


def normalise(m: Module, value: Value, fill: Value, stop: int = 0) -> tuple[Value, Signal]:
    """`value` shifted left until its highest bit is one, and the number of bits it was shifted.

    fill
        The bit that is shifted in.
    stop
        Mask of bits that count as ones, to limit the shift.
    """
    counted = Signal.like(value, name="counted")
    m.d.comb += counted.eq(value | stop)
    bits, _ = _leading_zeros(m, counted, "zeros")
    zeros = Signal(len(bits), name="zeros")
    m.d.comb += zeros.eq(Cat(bits))
    for level in reversed(range(len(zeros))):
        distance = 1 << level
        moved = Cat(fill.replicate(distance), value[:-distance])
        # The highest bit of the count, which is known first, controls the first multiplexer.
        shifted = Signal.like(value, name=f"normalised{level}")
        m.d.comb += shifted.eq(Mux(zeros[level], moved, value))
        value = shifted
    return value, zeros


def _leading_zeros(m: Module, value: Value, name: str) -> tuple[list[Value], Value]:
    """Bits of the number of leading zeros, lowest first, and whether the value has a one."""
    if len(value) == 1:
        return [], value[0]
    half = 1 << (len(value) - 1).bit_length() - 1
    upper, upper_any = _leading_zeros(m, value[-half:], f"{name}_upper")
    lower, lower_any = _leading_zeros(m, value[:-half], f"{name}_lower")
    # The half with the leading one counts; the other half's width is a power of two.
    some = Signal(name=f"{name}_any")
    m.d.comb += some.eq(upper_any | lower_any)
    if half == 1:
        return [~upper_any], some
    lower += [Const(0)] * (len(upper) - len(lower))
    low = Signal(len(upper), name=f"{name}_low")
    m.d.comb += low.eq(Mux(upper_any, Cat(upper), Cat(lower)))
    return [*low, ~upper_any], some
