"""Functions of a fraction as a sum of small tables, without a multiplication.

The multipartite method (Schulte and Stine, "Approximating elementary functions with symmetric
bipartite tables", 1999; de Dinechin and Tisserand, "Multipartite table methods", 2005). A fraction
f of w bits is cut into cells by its upper `coarse` bits. One table holds the function in the
middle of each cell. The bits below are cut into fields, and each field has a table of offsets: its
distance from the field's middle times the slope, which depends on the upper `segment` bits of f.
For FP16's reciprocal, Multipartite(10, 7, (Field(4, 0, 3),), ...)::

    fraction    | 9 8 7 6 5 4 3 | 2 1 0 |
    middle      | c c c c c c c         |       128 entries
    offset      | s s s s       | i i i |       64 entries: i and its complement share one

    sum         | middle                |
              + |              | offset |

A field and its complement have opposite offsets, so a table holds the offsets of the field's upper
half only: the field's highest bit inverts the others, and then the offset.
"""

import dataclasses
from collections.abc import Callable

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hw.arith.datapath import FloatParameters
from hw.parameters import require

SCALE = 40
"""Fraction bits of the exact function values that the tables are made from."""

Function = Callable[[int, int], int]
"""``function(n, k)`` is the function's value at n / 2^k times 2^SCALE, rounded down."""

FORMATS = ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2")
"""Formats whose tables are small enough."""


@dataclasses.dataclass(frozen=True)
class TableParameters(FloatParameters):
    """
    format
        ``fp16``, ``bf16``, ``fp8_e4m3`` or ``fp8_e5m2``.
    flush_subnormals
        Whether subnormal operands and results count as zeros of their sign.
    """

    def __post_init__(self):
        super().__post_init__()
        require(self.format in FORMATS, f"format must be one of {', '.join(FORMATS)}", self.format)

    @classmethod
    def presets(cls) -> dict[str, "TableParameters"]:
        return {
            "fp16": cls(),
            "fp16_pipelined": cls(stages=cls.PIPELINED),
            "bf16": cls(format="bf16"),
            "fp8_e4m3": cls(format="fp8_e4m3"),
        }


@dataclasses.dataclass(frozen=True)
class Field:
    """The bits `low` to `high` - 1 of the fraction, with a slope for each upper `segment` bits."""

    segment: int
    low: int
    high: int


@dataclasses.dataclass(frozen=True)
class Multipartite:
    """Tables for a function of a fraction of `width` bits.

    coarse
        Number of upper bits that select a cell.
    fields
        Partition of the bits below, from the highest.
    addend
        Constant added to every result, in quarters of its unit.
    guard
        Results are in units of 2^-(width + guard).
    exact
        Whether the fraction is exact. A truncated fraction is taken as half a unit more.
    """

    width: int
    coarse: int
    fields: tuple[Field, ...]
    addend: int
    guard: int = 0
    exact: bool = False

    def offsets(self, function: Function, field: Field) -> list[int]:
        """Offsets of the upper half of a field, rounded down; the lower half has complements."""
        half = field.high - field.low - 1
        values = []
        for segment in range(1 << field.segment):
            # Slope of the chord over the segment, times (2 i + 1) / 2 units: a distance from the
            # field's middle.
            rise = function(segment + 1, field.segment) - function(segment, field.segment)
            slope = rise << field.segment
            left = field.low + self.guard
            values += [(slope * (2 * i + 1) << left) >> (SCALE + 1) for i in range(1 << half)]
        return values

    def middles(self, function: Function) -> list[int]:
        """The function in the middle of each cell, rounded down after adding `addend`."""
        # Middles are odd multiples of half a cell; of an exact fraction's values, half a unit less.
        shift, cells = SCALE - self.width - self.guard - 2, range(1, 2 << self.coarse, 2)
        if not self.exact:
            values = [function(cell, self.coarse + 1) for cell in cells]
        else:
            wide = self.width - self.coarse
            values = [function((cell << wide) - 1, self.width + 1) for cell in cells]
        return [(value >> shift) + self.addend >> 2 for value in values]

    def terms(self, m: Module, function: Function, fraction: Value) -> list[Value]:
        """Unsigned values whose sum is the function of `fraction`."""
        middles, terms = self.middles(function), []
        for number, field in enumerate(self.fields):
            values = self.offsets(function, field)
            width = max((v if v >= 0 else ~v).bit_length() for v in values) + 1
            # In the lower half of the field: invert the index, and the offset below.
            below = Signal(name=f"below_{number}")
            m.d.comb += below.eq(~fraction[field.high - 1])
            half = field.high - field.low - 1
            index = fraction[self.width - field.segment :]
            if half:  # Verilog has no signals of zero width
                mirrored = Signal(half, name=f"mirrored_{number}")
                m.d.comb += mirrored.eq(fraction[field.low :][:half] ^ below.replicate(half))
                index = Cat(mirrored, index)
            offset = look_up(m, f"offset_{number}", values, width, index)
            # Offset binary: inverting the sign adds 2^(width - 1), which makes the term unsigned.
            # The constant is subtracted from the table of middles.
            terms.append(Signal(width, name=f"term_{number}"))
            m.d.comb += terms[-1].eq(offset ^ Cat(below.replicate(width - 1), ~below))
            middles = [value - (1 << width - 1) for value in middles]
        assert min(middles) >= 0, "the function must be larger than the bias of its offsets"
        width = max(middles).bit_length()
        index = fraction[self.width - self.coarse :]
        return [look_up(m, "middle", middles, width, index), *terms]

    def add_to_field(self, m: Module, function: Function, fraction: Value, field: Value) -> Value:
        """The function, 1 to 2, as mantissa below an exponent; returns the sum without guard bits.

        ::

            | field … f f | 0 …               0 |
          +           | 1 | mantissa  | guard   |

        The function's leading one is added to `field`, which is one less than the exponent for
        that. A function value of 2 carries into the exponent, as it must.
        """
        start = Cat(Const(0, self.width + self.guard), field)
        total = Signal(len(start))
        m.d.comb += total.eq(sum(self.terms(m, function, fraction), start))
        return total[self.guard :]


def look_up(m: Module, name: str, values: list[int], width: int, index: Value) -> Signal:
    """Entry number `index` of a table, as a tree of multiplexers; negative entries as complement.

    Equal constants are merged while the tree is built, which keeps the Verilog short.
    """
    layer: list[Value] = [Const(value & ((1 << width) - 1), width) for value in values]
    for level, bit in enumerate(index):
        halves = zip(layer[::2], layer[1::2], strict=True)
        layer = []
        for number, (low, high) in enumerate(halves):
            if isinstance(low, Const) and isinstance(high, Const) and low.value == high.value:
                layer.append(low)
                continue
            layer.append(Signal(width, name=f"{name}_{level}_{number}"))
            m.d.comb += layer[-1].eq(Mux(bit, high, low))
    entry = Signal(width, name=name)
    m.d.comb += entry.eq(layer[0])
    return entry
