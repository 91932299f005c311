"""FP16 probabilities as exact integers."""

from amaranth.hdl import Cat, Value

from hw.arith.float_format import FP16

FRACTION = 24
"""Fraction bits of a probability: every FP16 number up to 1 is a multiple of 2^-24."""

ONE = 0x3C00
"""FP16 bits of 1."""


def is_probability(p) -> Value:
    """Whether the FP16 number `p` is from +0 to 1."""
    return Value.cast(p) <= ONE


def fixed(p) -> Value:
    """The FP16 probability `p` in units of 2^-24, 25 bits.

    | 0…0 | hidden, mantissa (11) | field - 1 zeros |; of a subnormal no zeros. 1 has the field 15.
    """
    # Four bits of the exponent's five are enough: 1 has the field 15, and the fifth bit is 0 up to
    # it.
    field = p[FP16.mantissa : FP16.mantissa + 4]
    hidden = field.any()
    # Subnormals and numbers of field 1 have the same weight, so both shift by 0.
    shift = (field - hidden)[:4]
    return (Cat(p[: FP16.mantissa], hidden) << shift)[: FRACTION + 1]
