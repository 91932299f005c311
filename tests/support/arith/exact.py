"""Values of floating-point numbers and rounding to them, in Python's integers, by the definition.

Slow and simple, for few numbers: a reference that shares nothing with NumPy's or ml_dtypes' casts.
A number is m * 2^e with integers m and e.
"""

from fractions import Fraction

from hw.arith.float_format import FloatFormat


def decode(bits: int, float_format: FloatFormat) -> Fraction | str:
    """The value; ``nan``, ``inf`` and ``-inf`` as text. Both zeros are 0."""
    sign = -1 if bits >> float_format.width - 1 else 1
    magnitude = bits & ((1 << float_format.width - 1) - 1)
    exponent, fraction = divmod(magnitude, 1 << float_format.mantissa)
    top = (1 << float_format.exponent) - 1
    if float_format.infinities and exponent == top:
        return "nan" if fraction else "inf" if sign > 0 else "-inf"
    if not float_format.infinities and magnitude == (1 << float_format.width - 1) - 1:
        return "nan"
    if exponent:
        fraction += 1 << float_format.mantissa
    else:
        exponent = 1
    place = exponent - float_format.bias - float_format.mantissa
    return sign * fraction * Fraction(2) ** place


def encode(value: Fraction, negative: bool, float_format: FloatFormat, saturate: bool) -> int:
    """Bits of a value rounded to nearest even; `negative` is the sign of a zero."""
    sign = (value < 0 or value == 0 and negative) << float_format.width - 1
    magnitude = abs(value)
    if magnitude == 0:
        return sign
    power = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** power > magnitude:
        power -= 1
    power = max(power, 1 - float_format.bias)
    digits = round(magnitude / Fraction(2) ** (power - float_format.mantissa))  # to nearest even
    bits = (power + float_format.bias - 1 << float_format.mantissa) + digits
    if bits <= float_format.largest:
        return sign | bits
    if saturate:
        return sign | float_format.largest
    return float_format.overflow | (sign if float_format.infinities else 0)
