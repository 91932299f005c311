"""Significands beside exponents of any size: what lies between two FP16 numbers in a function.

e^-x is far below the numbers of FP16 where x e^x or e^x / sum is still among them. So powers,
reciprocals and products are kept as a significand and an exponent of its own, and only the result
is rounded to FP16.
"""

from amaranth.hdl import Module, Mux, Signal, Value, signed

from hw.arith.exp2_fixed import significands
from hw.arith.float_format import FP16
from hw.arith.multipartite import Field, Multipartite
from hw.arith.reciprocal import double_reciprocal
from hw.arith.split_table import fit

FRACTION = 14
"""Bits behind the point of an exponential's argument."""

LIMIT = 5
"""Bits in front of it: e^32 and e^-32 are out of every range."""

LOG2_E = 3 * ((1 << 18) - (1 << 13) - (1 << 11) + (1 << 8) - (1 << 5) + 1)
"""log2(e) in units of 2^-19, from few powers of two; 1.2e-6 too small."""

POWER = 12
"""Bits behind the point of the power of two; of the significand, two more."""

SIGNIFICAND = POWER + 3
"""Bits of a power's significand, of which the highest and the lowest are one."""

INVERSE = Multipartite(12, 7, (Field(6, 3, 5), Field(5, 0, 3)), 6, 2)
"""2 / (1 + f) of a fraction that was cut off to 12 bits, off by less than 2^-12.3 of itself."""

INVERSE_WIDTH = 15

INVERSE_ROOT = Multipartite(13, 7, (Field(6, 3, 6), Field(4, 0, 3)), 8, 1)
"""2 / sqrt of a number from one to four that was cut off to 12 bits behind the parity."""

EXPONENT = signed(8)
"""Holds an exponent field, however far it is out of range."""


def power(m: Module, argument: Value, name: str = "power") -> Signal:
    """log2(e) times a fixed-point number, rounded to POWER bits behind the point."""
    places = 19 + FRACTION - POWER
    product = argument * LOG2_E + (1 << places - 1)
    result = Signal.like(product[places:], name=name)
    if argument.shape().signed:
        result = Signal(signed(len(product) - places), name=name)
    m.d.comb += result.eq(product >> places)
    return result


def significand(m: Module, fraction: Value) -> Signal:
    """2^-f of a fraction of POWER bits, in units of 2^-(POWER + 2), one unit too small on average.

    Half a unit more is the middle of where the power can be: :func:`middle`.
    """
    table = fit(significands(POWER, POWER + 2))
    below = Signal(POWER + 2, name="below")
    m.d.comb += below.eq(table.read(m, fraction, lambda **cut: tuple(cut.values())))
    return below


def inverse(m: Module, fraction: Value) -> Signal:
    """2 / (1 + f) of a fraction of 12 bits, in units of 2^-14: always 1.something."""
    result = Signal(INVERSE_WIDTH, name="inverse")
    m.d.comb += result.eq(sum(INVERSE.terms(m, double_reciprocal, fraction), 0))
    return result


def round_fp16(m: Module, digits: Value, field: Value, name: str = "result"):
    """A number as FP16 without sign: magnitude, and whether it is beyond the largest.

    digits
        w bits, of which the highest or the next one is set, unless the result is subnormal.
    field
        Biased exponent: the number is digits 2^(field - 15 - (w - 1)).

    Rounds to nearest, a tie up: digits are not exact, so that ties mean nothing. A magnitude
    that is beyond is arbitrary.
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
        left.eq(~digits[-1] & (field > 1)),
        below.eq(field < 1),
        base.eq(field - 1 - left),
        shift.eq(1 - field),
        window.eq(Mux(left, digits[-kept - 1 : -1], digits[-kept:])),
    ]
    with m.If(~below):
        m.d.comb += shifted.eq(window)
    with m.Elif(~shift[4:-1].any()):
        m.d.comb += shifted.eq(window >> shift[:4])
    exponent = Mux(below, 0, base[: FP16.exponent])
    m.d.comb += [
        total.eq((exponent << FP16.mantissa) + ((shifted + 1)[1:])),
        beyond.eq((base > 29) | total[FP16.mantissa : -1].all() & ~below),
    ]
    return total[:-1], beyond
