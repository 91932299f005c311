"""How rows of K and V are stored: scales, fine codes, search codes, and the words they fill.

All rows are rotated (:mod:`hw.tsuru.rotation`), so that their elements are nearly normal. A row has
a scale s, its root mean square, and a code for each element::

    scale        | E E E E E | f f f |        s = (1 + f / 8) 2^(E - 15), 0 if E = 0
    fine code    | sign | e e | fraction |    s (1 + fraction / 2^m) 2^(e - 2)
                                              s (fraction / 2^m) / 2 if e = 0
    search code  | sign | large |             s / 2, or 3 s / 2 if large

So a scale is the upper half of a positive FP16 number, and a fine code a float of two exponent bits
with subnormals, from 0 to 3.875 s if m = 4: both are within 1 dB of the best levels for a normal
distribution, and are decoded by a product of m + 1 by 4 bits and a shift. Decoded numbers are FP16
numbers, exactly. E is at most 28; the scale 255 says that an element of the row was not finite.

The levels are this project's own; docs/tsuru.md has what they lose.
"""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from hw.arith.bits.leading_zeros import leading_one
from hw.arith.float_format import FP16
from hw.layout import index
from hw.parameters import Parameters, require

SCALE_BITS = 8
SCALE_FRACTION = 3
LARGEST_SCALE = 28 << SCALE_FRACTION | 7
"""The largest, in a row that is finite."""
NOT_FINITE = (1 << SCALE_BITS) - 1
"""The scale of a row that had an infinity or a NaN; its elements are decoded as NaN."""
SEARCH_BITS = 2
SEARCH_ROWS = 8
"""Rows whose search codes fill a word of memory."""


@dataclasses.dataclass(frozen=True)
class RowFormat(Parameters):
    """
    d
        Elements of a row; a power of two.
    key_fraction, value_fraction
        Fraction bits m of the fine codes of K and V, which have m + 3 bits an element.
    """

    d: int = 64
    key_fraction: int = 4
    value_fraction: int = 4

    def __post_init__(self):
        require(self.d >= 4 and not self.d & self.d - 1, "d must be a power of two from 4", self.d)
        for name in ("key_fraction", "value_fraction"):
            fraction = getattr(self, name)
            # With more, a decoded number could have more bits than FP16's significand.
            require(1 <= fraction <= 6, f"{name} must be between 1 and 6", fraction)
        used = self.key_layout.size + self.value_layout.size
        require(used <= self.word_bits, f"K and V must fit {self.word_bits} bits", used)

    @property
    def word_bits(self) -> int:
        """A word of memory: as wide as a row of FP16 numbers."""
        return FP16.width * self.d

    @property
    def search_rows(self) -> int:
        """Rows of a search block: as many as a word has scales."""
        return self.word_bits // SCALE_BITS

    @property
    def search_words(self) -> int:
        """Words of a search block: its scales, then its codes."""
        return 1 + self.search_rows // SEARCH_ROWS

    @property
    def key_layout(self) -> data.StructLayout:
        """A row of K, fine."""
        return fine_layout(self.d, self.key_fraction)

    @property
    def value_layout(self) -> data.StructLayout:
        """A row of V, fine."""
        return fine_layout(self.d, self.value_fraction)

    @property
    def row_layout(self) -> data.StructLayout:
        """A row word: both of a row, the rest of the word unused above them."""
        return data.StructLayout({"key": self.key_layout, "value": self.value_layout})

    @property
    def scales_layout(self) -> data.ArrayLayout:
        """The first word of a search block: the scales of K of its rows."""
        return data.ArrayLayout(index(SCALE_BITS), self.search_rows)

    @property
    def search_layout(self) -> data.ArrayLayout:
        """Any other word of a search block: the search codes of some rows."""
        return data.ArrayLayout(search_layout(self.d), SEARCH_ROWS)


def fine_layout(d: int, fraction: int) -> data.StructLayout:
    """A row of d elements: its scale and fine codes."""
    codes = data.ArrayLayout(index(fraction + 3), d)
    return data.StructLayout({"codes": codes, "scale": index(SCALE_BITS)})


def search_layout(d: int) -> data.ArrayLayout:
    """Search codes of a row of d elements."""
    return data.ArrayLayout(index(SEARCH_BITS), d)


def scale_to_float(scale: Value) -> Value:
    """The scale of a finite row as FP16; combinational."""
    zero = scale[SCALE_FRACTION:].any()
    fraction = scale[:SCALE_FRACTION] & zero.replicate(SCALE_FRACTION)
    return Cat(Const(0, FP16.mantissa - SCALE_FRACTION), fraction, scale[SCALE_FRACTION:], 0)


def search_to_integer(code: Value) -> Value:
    """-3, -1, 1 or 3: the element in halves of its row's scale; combinational."""
    # | sign | large ^ ~sign | 1 |: 3 = 011, 1 = 001, -1 = 111, -3 = 101.
    large, negative = code[0], code[1]
    result = Cat(Const(1, 1), large ^ negative, negative).as_signed()
    assert result.shape() == signed(3)
    return result


def fine_to_float(m: Module, code: Value, scale: Value, name: str = "fine") -> Signal:
    """The element of that fine code in a row of that scale, as FP16, exactly; combinational.

    Magnitudes of rows whose scale says 0 are 0; elements of rows that were not finite are NaN.
    """
    fraction = len(code) - 3
    steps = Cat(code[:fraction], code[fraction:-1].any())  # fraction and hidden bit
    power = Cat(code[fraction] | ~code[fraction + 1], code[fraction + 1])  # e, at least 1
    factor = Cat(scale[:SCALE_FRACTION], scale[SCALE_FRACTION:].any())
    significand = Signal(fraction + 5, name=f"{name}_significand")
    top = Signal(range(32), name=f"{name}_top")  # FP16's field if the highest bit is one
    m.d.comb += [
        significand.eq(Mux(factor[-1], steps * factor, 0)),
        top.eq(scale[SCALE_FRACTION:] + power - 1),
    ]
    # Shifted until the highest bit is one, but not below FP16's smallest exponent.
    zeros = Signal(4, name=f"{name}_zeros")
    shift = Signal(4, name=f"{name}_shift")
    shifted = Signal(FP16.precision, name=f"{name}_shifted")
    room = top - 1
    m.d.comb += [
        zeros.eq(~leading_one(m, significand, name)),
        shift.eq(Mux(zeros > room, room, zeros)),
        shifted.eq(Cat(Const(0, FP16.precision - len(significand)), significand) << shift),
    ]
    hidden = shifted[-1]
    magnitude = Cat(shifted[:-1], (top - shift)[: FP16.exponent] & hidden.replicate(FP16.exponent))
    result = Signal(FP16.width, name=f"{name}_float")
    m.d.comb += result.eq(Mux(scale.all(), FP16.quiet_nan, Cat(magnitude, code[-1])))
    return result
