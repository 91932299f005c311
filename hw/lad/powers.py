"""Powers of two between FP32 sums over positions and their FP16 operands and products."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed

from hw.arith.float_format import FP32

POWER_BITS = 5
"""Bits of a power by which products are multiplied."""

SHIFT = signed(FP32.exponent + 1)
"""Shape of a power by which operands are divided: any difference of two exponents."""

HALF = FP32.bias - 1
"""The exponent field of numbers from 0.5 to 1."""


def exponent_of(x: Value) -> Value:
    """The exponent field of an FP32 number."""
    return x[FP32.mantissa : FP32.width - 1]


def power_of(x: Value) -> Value:
    """The power of two at or below the magnitude of an FP32 number: 0 to 31, the nearest one."""
    above = exponent_of(x) - FP32.bias
    most = (1 << POWER_BITS) - 1
    return Mux(above < 0, 0, Mux(above > most, most, above))[:POWER_BITS]


def times_power(m: Module, name: str, x: Value, power: Value) -> Signal:
    """An FP32 number times 2^power, of either sign.

    What is below the normal numbers becomes a subnormal one, at most 2^-126, whose value is wrong
    but which FP16 rounds to zero; what is too large becomes 2^127 or more, infinity in FP16.
    Zeros, infinities and NaN stay.
    """
    field = exponent_of(x)
    highest = (1 << FP32.exponent) - 1
    moved = Signal(signed(FP32.exponent + 2), name=f"{name}_moved")
    o = Signal(FP32.width, name=f"{name}_scaled")
    m.d.comb += [moved.eq(field + power), o.eq(x)]
    with m.If((field != 0) & (field != highest)):
        m.d.comb += exponent_of(o).eq(Mux(moved < 0, 0, Mux(moved >= highest, highest - 1, moved)))
    return o


def significand_of(x: Value) -> Value:
    """An FP32 number divided by the power of two that brings it to 0.5 to 1.

    Zeros, infinities and NaN stay.
    """
    field = exponent_of(x)
    kept = Mux(field.any() & ~field.all(), HALF, field)[: FP32.exponent]
    return Cat(x[: FP32.mantissa], kept, x[FP32.width - 1])
