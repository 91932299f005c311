"""Intermediate results as a significand and an exponent of a wider range than FP16's.

e^-x can be far below the range of FP16 while x e^x or e^x / sum is within it. So powers,
reciprocals and products have a significand and a wide exponent, and only the result is rounded to
FP16.
"""

from amaranth.hdl import Module, Mux, Signal, Value, signed

from hw.arith.exp2_fixed import significands
from hw.arith.float_format import FP16
from hw.arith.reciprocal import double_reciprocal
from hw.arith.tables.multipartite import Field, Multipartite
from hw.arith.tables.split_table import fit

FRACTION = 14
"""Fraction bits of an exponential's argument."""

LIMIT = 5
"""Integer bits of it: e^32 and e^-32 are out of every range."""

LOG2_E = 3 * ((1 << 18) - (1 << 13) - (1 << 11) + (1 << 8) - (1 << 5) + 1)
"""log2(e) in units of 2^-19, from few powers of two; 1.2e-6 too small."""

POWER = 12
"""Fraction bits of the power of two; the significand has two more."""

SIGNIFICAND = POWER + 3
"""Bits of a power's significand; the highest and the lowest bit are one."""

INVERSE = Multipartite(12, 7, (Field(6, 3, 5), Field(5, 0, 3)), 6, 2)
"""2 / (1 + f) of a fraction that was truncated to 12 bits; relative error below 2^-12.3."""

INVERSE_WIDTH = 15

INVERSE_ROOT = Multipartite(13, 7, (Field(6, 3, 6), Field(4, 0, 3)), 8, 1)
"""2 / sqrt(u) for 1 <= u < 4; the index is the parity of the exponent and 12 truncated bits."""

EXPONENT = signed(8)
"""Shape of an exponent field that may be out of FP16's range."""


def power(m: Module, argument: Value, name: str = "power") -> Signal:
    """log2(e) times a fixed-point number, rounded to POWER fraction bits."""
    # e^x = 2^(x log2 e): a product with a constant and a table of one octave, for any range of x.
    dropped = 19 + FRACTION - POWER  # fraction bits of the product below the result's
    product = argument * LOG2_E + (1 << dropped - 1)
    result = Signal.like(product[dropped:], name=name)
    if argument.shape().signed:
        result = Signal(signed(len(product) - dropped), name=name)
    m.d.comb += result.eq(product >> dropped)
    return result


def significand(m: Module, fraction: Value) -> Signal:
    """2^-f of a fraction of POWER bits, in units of 2^-(POWER + 2), rounded down.

    The error is 0 to 1 unit, so users append a one as half a unit more.
    """
    table = fit(significands(POWER, POWER + 2))
    below = Signal(POWER + 2, name="below")
    m.d.comb += below.eq(table.read(m, fraction, lambda **outputs: list(outputs.values())))
    return below


def one_plus(m: Module, digits: Value, whole: Value) -> tuple[Signal, Signal]:
    """1 + p of a power p = digits 2^-whole; returns (fraction, scale).

    1 + p = (1 + fraction 2^-12) 2^scale. The larger of 1 and p keeps its place, the smaller is
    shifted right by their distance::

        p < 1:   1 000…000        p >= 1:  d ddd…ddd
               + 0 0ddd…dd              + 0 0100…00
    """
    small = Signal()
    below_one = Signal()
    distance = Signal(range(1 << 6))
    shifted = Signal(SIGNIFICAND)
    total = Signal(SIGNIFICAND + 1)
    fraction = Signal(12)
    scale = Signal(range(1 << 6))
    one = 1 << SIGNIFICAND
    shift_in = Signal(SIGNIFICAND + 1)
    m.d.comb += [
        small.eq(~whole[-1]),
        distance.eq(Mux(small, whole, -whole)),
        shift_in.eq(Mux(small, digits, one)),
        shifted.eq(shift_in >> distance),
        total.eq(Mux(small, one, digits) + shifted),
        below_one.eq(~total[-1]),
        fraction.eq(Mux(below_one, total[2 : SIGNIFICAND - 1], total[3:SIGNIFICAND])),
        scale.eq(Mux(small, 0, distance - below_one)),
    ]
    return fraction, scale


def inverse(m: Module, fraction: Value) -> Signal:
    """2 / (1 + f) of a fraction of 12 bits, in units of 2^-14: from 1 to below 2."""
    result = Signal(INVERSE_WIDTH, name="inverse")
    m.d.comb += result.eq(sum(INVERSE.terms(m, double_reciprocal, fraction), 0))
    return result


def round_fp16(m: Module, digits: Value, field: Value, name: str = "result"):
    """A positive number as FP16; returns (bits without sign, too large).

    digits
        w bits, of which the highest or the next one is set, unless the result is subnormal.
    field
        Biased exponent: the number is digits 2^(field - 15 - (w - 1)).

    ::

        digits      | 1 x x … x x x | …      window from the top, or, with `left`,
                    | 0 1 x … x x x | …      one bit further down
        window      | 1 | mantissa | r |     shifted right if the result is subnormal

    Rounds to nearest, ties up: the digits are not exact, so ties do not matter. If the number is
    too large, the bits are arbitrary.
    """
    kept = FP16.mantissa + 2
    left, below = Signal(name=f"{name}_left"), Signal(name=f"{name}_below")
    base = Signal(EXPONENT, name=f"{name}_base")
    shift = Signal(EXPONENT, name=f"{name}_shift")
    window = Signal(kept, name=f"{name}_window")
    shifted = Signal(kept, name=f"{name}_shifted")
    total = Signal(FP16.width, name=f"{name}_total")
    beyond = Signal(name=f"{name}_beyond")
    m.d.comb += [
        # `left`: the leading one is the second digit, and the exponent can be one lower.
        left.eq(~digits[-1] & (field > 1)),
        below.eq(field < 1),  # below the normal numbers: shift right
        base.eq(field - 1 - left),  # the leading one, when added, makes it the exponent
        shift.eq(1 - field),
        window.eq(Mux(left, digits[-kept - 1 : -1], digits[-kept:])),
    ]
    # A right shift by 16 or more leaves zero.
    # Only a subnormal result is shifted, so the shifter is beside the normal numbers' path.
    with m.If(~below):
        m.d.comb += shifted.eq(window)
    with m.Elif(~shift[4:-1].any()):
        m.d.comb += shifted.eq(window >> shift[:4])
    exponent = Mux(below, 0, base[: FP16.exponent])
    m.d.comb += [
        # Exponent and mantissa are added as one integer: a carry of the rounding enters the
        # exponent.
        total.eq((exponent << FP16.mantissa) + ((shifted + 1)[1:])),
        beyond.eq((base > 29) | total[FP16.mantissa : -1].all() & ~below),
    ]
    return total[:-1], beyond
