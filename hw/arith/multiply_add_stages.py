"""Values between the stages of :class:`hw.arith.float_multiply_add.FloatMultiplyAdd`."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Value

from hw.arith.datapath import namer
from hw.arith.float_format import FloatFormat


@dataclasses.dataclass(frozen=True)
class Operand:
    """Fields of an operand; `exponent` is the exponent field, 1 for subnormal numbers."""

    sign: Value
    normal: Value
    exponent: Value
    significand: Value
    zero: Value
    nan: Value
    infinite: Value


def unpacked(m: Module, name: str, bits: Value, fmt: FloatFormat, flush: bool) -> Operand:
    """Fields of an operand; a subnormal number has the exponent of the smallest normal one."""
    named = namer(m, f"{name}_")
    field, fraction = bits[fmt.mantissa : -1], bits[: fmt.mantissa]
    normal = named("normal", field.any())
    nonzero = normal if flush else normal | fraction.any()
    highest = named("highest", field.all())
    # Without infinities, the one NaN has all ones.
    nan = bits[:-1].all()
    if fmt.infinities:
        nan = highest & fraction.any()
    # The leading bit of a significand is the exponent's OR, so subnormals need no other path.
    # A subnormal number that is flushed has a significand of zeros.
    kept = fraction & normal.replicate(fmt.mantissa) if flush else fraction
    return Operand(
        sign=bits[-1],
        normal=normal,
        exponent=named("exponent", Cat(field[0] | ~normal, field[1:])),
        significand=named("significand", Cat(kept, normal)),
        zero=named("zero", ~nonzero),
        nan=named("nan", nan),
        infinite=named("infinite", highest & ~nan if fmt.infinities else Const(0, 1)),
    )


@dataclasses.dataclass(frozen=True)
class Signs:
    """Signs and special results, which pass all pipeline stages.

    subtract
        The product and c have opposite signs.
    sign, sign_negative
        Sign of the result if the product minus c is not negative, and if it is.
    """

    subtract: Value
    nan: Value
    infinite: Value
    sign: Value
    sign_negative: Value


@dataclasses.dataclass(frozen=True)
class Addends:
    """Product and addend before they are added.

    row_0, row_1
        Product and the addend's bits of the same weights, in carry-save form.
    lower, upper, lost
        The addend below and above the product; whether bits below `lower` were lost.
    high
        Whether the sum is taken from the high window.
    budget, budget_low
        Largest left shift that keeps the exponent in range; the same for the low window.
    count_high
        The left shift, if the high window is selected.
    """

    row_0: Value
    row_1: Value
    lost: Value
    lower: Value
    upper: Value
    high: Value
    budget_low: Value
    budget: Value
    count_high: Value


@dataclasses.dataclass(frozen=True)
class Sum:
    """The sum in its window, not normalised; `count` is the left shift, perhaps one too few."""

    window: Value
    sticky: Value
    negative: Value
    count: Value
    budget: Value


@dataclasses.dataclass(frozen=True)
class Normal:
    """The normalised sum: the bits of the significand and one for rounding, exponent `field`."""

    kept: Value
    sticky: Value
    field: Value
    negative: Value
