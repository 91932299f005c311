"""Powers of two between FP32 sums over positions and their FP16 operands and products."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32, FloatFormat

POWER_BITS = 5
"""Bits of a power by which products are multiplied."""

SHIFT = signed(FP32.exponent + 1)
"""Shape of a power by which operands are divided: any difference of two exponents."""

HALF = FP32.bias - 1
"""The exponent field of numbers from 0.5 to 1."""


def exponent_of(x: Value, kind: FloatFormat = FP32) -> Value:
    """The exponent field of a number."""
    return x[kind.mantissa : kind.width - 1]


def power_of(x: Value, kind: FloatFormat = FP32) -> Value:
    """The power of two at or below the magnitude of a number: 0 to 31, the nearest one."""
    return least(Mux(exponent_of(x, kind) > kind.bias, exponent_of(x, kind) - kind.bias, 0))


def least(power: Value) -> Value:
    """The power, or 31 if it is above."""
    most = (1 << POWER_BITS) - 1
    return Mux(power > most, most, power)[:POWER_BITS]


def times_power(m: Module, name: str, x: Value, power: Value) -> Signal:
    """An FP32 number times 2^power, of either sign.

    What is below the normal numbers becomes a subnormal one, at most 2^-126, whose value is wrong
    but which FP16 rounds to zero; what is too large becomes 2^127 or more, infinity in FP16.
    Zeros, infinities and NaN are unchanged.
    """
    field = exponent_of(x)
    highest = (1 << FP32.exponent) - 1
    # Only the exponent field changes, an adder of 10 bits in place of a multiplier: powers of two
    # are exact. Two more bits hold underflow and overflow of the sum.
    moved = Signal(signed(FP32.exponent + 2), name=f"{name}_moved")
    o = Signal(FP32.width, name=f"{name}_scaled")
    m.d.comb += [moved.eq(field + power), o.eq(x)]
    with m.If((field != 0) & (field != highest)):
        m.d.comb += exponent_of(o).eq(Mux(moved < 0, 0, Mux(moved >= highest, highest - 1, moved)))
    return o


def significand_of(x: Value) -> Value:
    """An FP32 number divided by the power of two that brings it to 0.5 to 1.

    Zeros, infinities and NaN are unchanged.
    """
    field = exponent_of(x)
    # Fields of all zeros and all ones are kept, so zero, infinity and NaN reach the reciprocal.
    kept = Mux(field.any() & ~field.all(), HALF, field)[: FP32.exponent]
    return Cat(x[: FP32.mantissa], kept, x[FP32.width - 1])


def narrow_numbers(m: Module, name: str, wide: Value | data.View, power: Value) -> Any:
    """Numbers of FP32 divided by 2^power, in FP16."""
    numbers = Value.cast(wide)
    width = FP32.width
    elements = len(numbers) // width
    o = Signal(data.ArrayLayout(FP16, elements), name=f"narrow_{name}")
    for k in range(elements):
        m.submodules[f"narrow_{name}_{k}"] = convert = FloatConvert(FloatConvertParameters())
        number = numbers[k * width : (k + 1) * width]
        m.d.comb += [
            convert.a.eq(times_power(m, f"{name}_{k}", number, -power)),
            o[k].eq(convert.o),
        ]
    return o
