"""Conversion from one floating-point format to another."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hw.arith.bits.order_key import is_nan
from hw.arith.datapath import Datapath, FloatParameters
from hw.arith.fixed_to_float import normalise
from hw.arith.float_format import FloatFormat, find_format
from hw.arith.float_to_fixed import top_exponent
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class FloatConvertParameters(FloatParameters):
    """
    source, format
        Formats of operand and result: ``fp16``, ``bf16``, ``fp32``, ``fp8_e4m3``, ``fp8_e5m2``.
    flush_subnormals
        Whether subnormal operands count as zeros of their sign, and results that are subnormal
        once rounded become such zeros.
    saturate
        Whether a number that is too large, infinity included, becomes the largest number of its
        sign instead of infinity (NaN in a format without infinities). NaN stays NaN.
    stages
        0 to 2; the first of two is before the rounding.
    """

    CUTS = ((), ("result",), ("shifted", "result"))

    source: str = "fp32"
    saturate: bool = False

    def __post_init__(self):
        super().__post_init__()
        source, result, rebased = self.source_format, self.float_format, self.rebased
        # Both normalising and denormalising would be needed, which no pair of known formats does.
        if rebased > 0:
            fits = rebased > result.mantissa + 1
        else:
            fits = not rebased or -rebased >= source.mantissa
            fits = fits and top_exponent(source) - rebased <= top_exponent(result)
        require(fits, f"source must be a format that converts to {self.format}", self.source)

    @property
    def source_format(self) -> FloatFormat:
        return find_format(self.source)

    @property
    def rebased(self) -> int:
        """Difference of the biases, which is subtracted from the exponent field."""
        return self.source_format.bias - self.float_format.bias

    @classmethod
    def presets(cls) -> dict[str, "FloatConvertParameters"]:
        return {
            "fp32_to_fp16": cls(),
            "fp32_to_fp16_pipelined": cls(stages=cls.PIPELINED),
            "fp32_to_bf16": cls(format="bf16"),
            "fp16_to_fp32": cls(source="fp16", format="fp32"),
            "fp16_to_bf16": cls(source="fp16", format="bf16"),
            "fp16_to_fp8_e4m3": cls(source="fp16", format="fp8_e4m3", saturate=True),
            "fp8_e4m3_to_fp16": cls(source="fp8_e4m3"),
        }


class FloatConvert(Datapath[FloatConvertParameters]):
    """o = a in another format, rounded to nearest even.

    A number that is too large becomes infinity; in a format without infinities it and infinity
    become NaN; with `saturate` both become the largest number. Accuracy: correctly rounded, and
    exact if the result's format has at least as many bits of mantissa and exponent.

    Latency: `stages` cycles. Throughput: one result per cycle.

    Structure: the difference of the biases is subtracted from the exponent field. Then, depending
    on the formats' smallest exponents: if the result's is lower, subnormal operands are normalised;
    if it is higher, the significand is shifted right where the result is subnormal, and shifted
    out where it underflows or overflows; if both are equal, nothing is shifted. Exponent and
    fraction are then rounded as one integer::

        operand     | sign | exponent | fraction                |
        shifted            | power    | fraction | guard |  lost → sticky
        rounded     | sign | power    | fraction | + up

    Examples
    --------
    >>> from hw.arith.float_convert import FloatConvert, FloatConvertParameters
    >>> unit = FloatConvert(FloatConvertParameters(source="fp32", format="fp8_e4m3", saturate=True))
    >>> unit.a.shape(), unit.o.shape()
    (unsigned(32), unsigned(8))
    """

    summary = "Any floating-point format to any other, correctly rounded"
    source = "library"

    def operation(self) -> Ports:
        p = self.parameters
        return {
            "a": wire_in(p.source_format, "The number in its own format."),
            "o": wire_out(p.float_format, "The number in the other format."),
        }

    def elaborate(self, platform):
        m = Module()
        p, float_format = self.parameters, self.parameters.float_format
        mantissa = float_format.mantissa
        nan = Signal()
        m.d.comb += nan.eq(is_nan(self.a, p.source_format))
        # Which format has the smaller smallest exponent decides the shape: results may become
        # subnormal, or subnormal operands become normal. Never both.
        if p.rebased > 0:
            power, kept, sticky, large = self._to_narrower(m)
        else:
            power, kept, sticky, large = self._to_wider(m, nan)

        cut = self.registers(m)
        power, kept, sticky, large, nan, negative = cut(
            "shifted",
            power=power,
            kept=kept,
            sticky=sticky,
            large=large,
            nan=nan,
            negative=self.a[-1],
        )
        # Rounding: exponent and fraction as one integer.
        # Guard and sticky bit are all that rounding needs of the bits that are dropped.
        fraction, guard = kept[1:], kept[0]
        # For NaN and overflow, the power is all ones, fraction and guard bit are zero.
        special = nan if float_format.infinities else large
        code = float_format.quiet_nan & ((1 << mantissa) - 1)
        magnitude = Signal(float_format.width - 1)
        up = Signal()
        m.d.comb += magnitude.eq(Cat(fraction | code & special.replicate(mantissa), power))
        m.d.comb += up.eq(guard & (sticky | fraction[0]))
        if not float_format.infinities:
            with m.If(magnitude.all()):  # NaN already
                m.d.comb += up.eq(0)
        rounded = Signal.like(magnitude)
        result = Signal.like(magnitude)
        sign = Signal()
        m.d.comb += rounded.eq(magnitude + up)
        m.d.comb += result.eq(rounded)
        m.d.comb += sign.eq(negative & ~nan)
        if p.flush_subnormals and p.rebased > 0:
            with m.If(~rounded[mantissa:].any()):
                m.d.comb += result.eq(0)
        if p.saturate:
            with m.If((rounded == float_format.overflow) & ~nan):
                m.d.comb += result.eq(float_format.largest)
        elif not float_format.infinities:
            m.d.comb += sign.eq(negative & ~rounded.all())
        m.d.comb += self.o.eq(cut("result", o=Cat(result, sign)))
        return m

    def _to_narrower(self, m: Module):
        """For a higher smallest exponent: (exponent, fraction and guard bit, sticky, too large)."""
        source, result = self.parameters.source_format, self.parameters.float_format
        rebased = self.parameters.rebased
        exponent = self.a[source.mantissa : -1]
        # A subnormal result; one below half of the smallest subnormal number; an overflow.
        small = Signal()
        tiny = Signal()
        large = Signal()
        m.d.comb += small.eq(exponent <= rebased)
        m.d.comb += tiny.eq(exponent < rebased - result.mantissa)
        m.d.comb += large.eq(exponent > rebased + top_exponent(result))
        # Right shift of a subnormal result; `all_out` clears the significand.
        all_out = result.mantissa + 2
        distance = Signal(range(all_out + 1))
        shift = Signal(range(all_out + 1))
        m.d.comb += distance.eq(rebased + 1 - exponent)
        shift_out = Mux(tiny | large, Const(all_out, len(shift)), 0)
        m.d.comb += shift.eq(distance & small.replicate(len(shift)) | shift_out)

        # The fraction with at least one bit below the result's, and the hidden bit above.
        digits = Cat(
            Const(0, max(result.mantissa + 1 - source.mantissa, 0)), self.a[: source.mantissa]
        )
        dropped = len(digits) - result.mantissa - 1
        kept: Value = Cat(digits[dropped:], Const(1, 1))
        lost = [digits[:dropped].any()] if dropped else []
        for level in reversed(range(len(shift))):
            by = 1 << level
            shifted = Signal(len(kept), name=f"shifted{level}")
            out = Signal(name=f"lost{level}")
            m.d.comb += out.eq(shift[level] & kept[:by].any())
            m.d.comb += shifted.eq(Mux(shift[level], kept >> by, kept))
            kept, lost = shifted, [*lost, out]
        sticky = Signal()
        power = Signal(result.exponent)
        m.d.comb += sticky.eq(Cat(lost).any())
        m.d.comb += power.eq(exponent - rebased)
        with m.If(small):
            m.d.comb += power.eq(0)
        with m.If(large):
            m.d.comb += power.eq(~0)
        return power, kept[:-1], sticky, large

    def _to_wider(self, m: Module, nan: Signal):
        """For a lower or equal smallest exponent; only infinity and NaN are too large."""
        source, result = self.parameters.source_format, self.parameters.float_format
        rebased = -self.parameters.rebased
        exponent = self.a[source.mantissa : -1]
        hidden = Signal()
        special = Signal()
        m.d.comb += hidden.eq(exponent.any())
        m.d.comb += special.eq(exponent.all() if source.infinities else nan)
        fraction = Signal(source.mantissa)
        power = Signal(result.exponent)
        m.d.comb += fraction.eq(self.a[: source.mantissa])
        m.d.comb += power.eq(exponent + rebased)
        # Subnormal operands: flushed, or normalised if the result's smallest exponent is lower.
        if self.parameters.flush_subnormals:
            with m.If(~hidden):
                m.d.comb += [fraction.eq(0), power.eq(0)]
        elif rebased:
            normal, zeros = normalise(m, self.a[: source.mantissa], Const(0, 1))
            with m.If(~hidden):
                m.d.comb += fraction.eq(normal << 1)
                m.d.comb += power.eq(Mux(normal[-1], rebased - zeros, 0))
        with m.If(special):
            m.d.comb += power.eq(~0)
        if result.infinities or source.infinities:
            with m.If(nan):
                m.d.comb += fraction.eq(0)
        # Cut the fraction to the result's width and a guard bit.
        padding = max(result.mantissa + 1 - source.mantissa, 0)
        digits = Cat(Const(0, padding), fraction)
        dropped = len(digits) - result.mantissa - 1
        kept = Signal(result.mantissa + 1)
        sticky = Signal()
        m.d.comb += kept.eq(digits[dropped:])
        m.d.comb += sticky.eq(digits[:dropped].any())
        return power, kept, sticky, special
