"""Order keys: floating-point values as unsigned integers that compare the same way.

A key makes a comparison of two floating-point numbers an unsigned integer comparison. For a format
of w bits with sign s and magnitude bits m:

    s = 0, or m = 0 (both zeros):   key = 2^(w-1) + m
    s = 1:                          key = 2^(w-1) - 1 - m
    NaN:                            key = 1

Magnitudes above infinity are NaNs, so the keys below minus infinity's are unused: NaN is 1,
below every number, and 0 means an empty entry.
"""

from amaranth.hdl import Cat, Const, Mux, ValueLike

from hw.arith.float_format import FP16, FloatFormat
from hw.parameters import require

EMPTY_KEY = 0
NAN_KEY = 1


def is_nan(bits: ValueLike, float_format: FloatFormat = FP16):
    magnitude = bits[: float_format.width - 1]
    return magnitude > float_format.overflow - (not float_format.infinities)


def to_key(bits: ValueLike, float_format: FloatFormat = FP16):
    """The order key of a float, combinational: one level of XOR after a zero and a NaN test.

    :raises ParameterError: for a format without infinities, which has no key to spare for NaN.
    """
    require(float_format.infinities, "format of an order key must have infinities", float_format)
    magnitude, sign = bits[:-1], bits[-1]
    # Magnitudes of floats order as integers. Negative ones are complemented, and the sign inverted,
    # so that keys compare unsigned; both zeros get one key.
    negative = sign & magnitude.any()
    number = Cat(Mux(negative, ~magnitude, magnitude), ~negative)
    return Mux(is_nan(bits, float_format), NAN_KEY, number)


def is_nan_key(key: ValueLike, float_format: FloatFormat = FP16):
    """Whether `key`, any but :data:`EMPTY_KEY`, is :data:`NAN_KEY`.

    A key whose exponent bits are zero is minus infinity's, with ones in all lower bits, or NaN's.
    So bit 1 tells them apart.
    """
    return ~(key[float_format.mantissa :].any() | key[1])


def from_key(key: ValueLike, float_format: FloatFormat = FP16, *, inverted: bool = False):
    """The float of an order key: zeros become plus zero, NaNs the format's quiet NaN.

    :data:`EMPTY_KEY` becomes plus zero. With `inverted`, keys of numbers are complemented (NaN's
    and an empty entry's are not), as in a search for the minimum.
    """
    top = key[-1]
    number = Cat(Mux(top, key[:-1], ~key[:-1]), top if inverted else ~top)
    # Complementing maps the range of number keys onto itself, so one test serves both.
    is_special = ~(key[float_format.mantissa :].any() | key[1])
    special = Mux(key[0], Const(float_format.quiet_nan, float_format.width), 0)
    return Mux(is_special, special, number)
