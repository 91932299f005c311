"""Operands and results of the unary functions and division: subnormals, zeros, infinities, NaN."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Shape, Signal, Value, ValueLike

from hw.arith.bits.leading_zeros import leading_one, shift_to_top
from hw.arith.bits.order_key import is_nan
from hw.arith.float_format import FloatFormat


@dataclasses.dataclass(frozen=True)
class Classes:
    """What an operand is, one bit each.

    subnormal
        The exponent field is zero: a subnormal number or a zero.
    zero
        A zero; with flushing every subnormal number too.
    infinite, nan
        Of either sign.
    """

    subnormal: Signal
    zero: Signal
    infinite: Signal
    nan: Signal


def classify(m: Module, x: Value, fmt: FloatFormat, flush: bool, name: str = "x") -> Classes:
    """Classes of the operand `x`."""
    fields = (field.name for field in dataclasses.fields(Classes))
    of = Classes(*(Signal(name=f"{name}_is_{field}") for field in fields))
    m.d.comb += [
        of.subnormal.eq(x[fmt.mantissa : -1] == 0),
        of.zero.eq(of.subnormal & (flush | (x[: fmt.mantissa] == 0))),
        of.infinite.eq(fmt.infinities & (x[:-1] == fmt.overflow)),
        of.nan.eq(is_nan(x, fmt)),
    ]
    return of


def normalised(
    m: Module,
    x: Value,
    fmt: FloatFormat,
    subnormal: Value | None,
    offset: int = 0,
    name: str = "x",
) -> tuple[Signal, Signal]:
    """Fraction and exponent of the operand `x`, which is (1 + fraction) 2^(exponent - bias).

    ::

        normal:     | sign | exponent  | f f f f f f |      exponent,    fraction  f f f f f f
        subnormal:  | sign | 0 … 0 0 0 | 0 0 1 f f f |      exponent -2, fraction  f f f 0 0 0

    subnormal
        Whether the number is subnormal; None if subnormals are flushed, which saves the shifter.
    offset
        Constant to add to the exponent. The result is one bit wider than the exponent field,
        signed, or unsigned with an offset above zero.
    """
    mantissa, field = x[: fmt.mantissa], x[fmt.mantissa : -1]
    fraction = Signal(fmt.mantissa, name=f"{name}_fraction")
    shape = Shape(fmt.exponent + 1, signed=offset <= 0)
    exponent = Signal(shape, name=f"{name}_exponent")
    m.d.comb += [fraction.eq(mantissa), exponent.eq(field + offset)]
    if subnormal is not None:
        # Subnormals are normalised first, so the arithmetic behind sees only numbers with a leading
        # one.
        leading = leading_one(m, mantissa, f"{name}_leading")
        normal = shift_to_top(m, mantissa, leading, f"{name}_normal")
        with m.If(subnormal):
            m.d.comb += fraction.eq(normal << 1)  # the leading one becomes the hidden bit
            # The complement of `leading` is the number of leading zeros.
            m.d.comb += exponent.eq(leading - ((1 << len(leading)) - 1) + offset)
    return fraction, exponent


def select_result(
    m: Module,
    fmt: FloatFormat,
    number: Value,
    *,
    sign: ValueLike,
    nan: Value,
    overflow: Value,
    zero: Value,
) -> Signal:
    """The result's bits: a NaN, else infinity, else zero, else `number`.

    In a format without infinities, overflow is NaN. Overflow and zero have the given sign.
    """
    result = Signal(fmt.width, name="o_result")
    # NaN comes before infinity, as NaN operands may also look infinite; infinity before zero.
    with m.If(nan):
        m.d.comb += result.eq(fmt.quiet_nan)
    with m.Elif(overflow):
        m.d.comb += result.eq(Cat(Const(fmt.overflow, fmt.width - 1), sign & fmt.infinities))
    with m.Elif(zero):
        m.d.comb += result[-1].eq(sign)
    with m.Else():
        m.d.comb += result.eq(number)
    return result
