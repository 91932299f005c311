"""Dot products: multipliers and a tree of adders."""

import dataclasses
from typing import Any, ClassVar

from amaranth.hdl import Cat, Const, Module, Shape, Signal, Value
from amaranth.lib import data

from hw.arith.adder_tree import AdderTree, AdderTreeParameters, spread
from hw.arith.bits import carry_save
from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.float_format import find_format
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.layout import NumberFormat, integer
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class DotProductParameters(DatapathParameters):
    """
    n
        Number of products.
    format
        Format of operands and result: ``fixed``, or the name of a floating-point format.
    a_width, a_signed, b_width, b_signed
        Shapes of fixed-point operands.
    flush_subnormals
        As in the floating-point units.
    """

    n: int = 16
    format: str = "fp16"
    a_width: int = 8
    a_signed: bool = True
    b_width: int = 8
    b_signed: bool = True
    flush_subnormals: bool = False

    CUTS: ClassVar = carry_save.CUTS  # of fixed-point products

    def __post_init__(self):
        require(self.n >= 2, "n must be at least 2", self.n)
        require(self.n <= 4096, "n must be at most 4096", self.n)
        if self.format == "fixed":
            super().__post_init__()
            for name in ("a_width", "b_width"):
                width = getattr(self, name)
                require(1 <= width <= 32, f"{name} must be between 1 and 32", width)
            return
        find_format(self.format)
        most = (self.levels + 1) * (len(FloatMultiplyParameters.CUTS) - 1)
        require(0 <= self.stages <= most, f"stages must be between 0 and {most}", self.stages)

    @property
    def levels(self) -> int:
        """Levels of the adder tree."""
        return (self.n - 1).bit_length()

    @property
    def operands(self) -> dict[str, NumberFormat]:
        """Formats of an element of a and of b."""
        if self.format == "fixed":
            a, b = Shape(self.a_width, self.a_signed), Shape(self.b_width, self.b_signed)
            return {"a": integer(a), "b": integer(b)}
        return dict.fromkeys("ab", find_format(self.format))

    @property
    def result(self) -> NumberFormat:
        """A fixed-point sum is wide enough for all operands."""
        if self.format != "fixed":
            return self.operands["a"]
        width = self.a_width + self.b_width + self.levels
        return integer(Shape(width, self.a_signed or self.b_signed))

    @property
    def multiplier_stages(self) -> int:
        """Pipeline stages of the floating-point multipliers; the others are in the tree."""
        return spread(self.stages, self.levels + 1)[0]

    @classmethod
    def presets(cls) -> dict[str, "DotProductParameters"]:
        return {
            "small": cls(n=4, format="fp8_e5m2"),
            "fp16_16": cls(),
            "fp16_16_pipelined": cls(stages=10),
            "fixed": cls(format="fixed"),
            "fixed_pipelined": cls(format="fixed", stages=2),
            "topick": cls(n=64, format="fixed", a_width=12, b_width=4, stages=2),
            "fp16_64": cls(n=64, stages=14),
            "fp16_128": cls(n=128, stages=16),
        }


class DotProduct(Datapath[DotProductParameters]):
    """a[0] b[0] + a[1] b[1] + ... + a[n-1] b[n-1].

    Floating-point: every product and every sum is rounded; :class:`AdderTree` adds them, neighbours
    first. The pipeline `stages` are spread evenly over the multipliers and the tree's levels.

    Fixed-point: exact. All rows of partial products go into one carry-save reduction
    (:mod:`hw.arith.bits.carry_save`), so there is one carry propagation in all. A partial product
    of one operand's sign bit and another bit has a negative weight: it is inverted, and one
    constant corrects all of them (C. Baugh and B. Wooley, 1973). With 4-bit operands a and b::

        row b0      |       ~a3b0  a2b0  a1b0  a0b0 |
        row b1      |  ~a3b1  a2b1  a1b1  a0b1     |
        …
        row b3      | a3b3 ~a2b3 ~a1b3 ~a0b3       |      both signed: b3 has the negative weight

    Latency: `stages`. Throughput: one dot product per cycle.

    Examples
    --------
    12-bit by 4-bit products, 64 of them, need 22 bits:

    >>> from hw.arith.dot_product import DotProduct, DotProductParameters
    >>> parameters = DotProductParameters(n=64, format="fixed", a_width=12, b_width=4)
    >>> DotProduct(parameters).o.shape()
    signed(22)
    """

    summary = "Dot product of n pairs, floating-point or exact"
    source = "library"

    def operation(self) -> Ports:
        p = self.parameters
        operands = p.operands.items()
        return {
            **{
                name: wire_in(data.ArrayLayout(shape, p.n), "A vector.") for name, shape in operands
            },
            "o": wire_out(p.result, "Their dot product."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        pairs = [(Value.cast(self.a[k]), Value.cast(self.b[k])) for k in range(p.n)]
        m.d.comb += self.o.eq(
            self._fixed(m, pairs) if p.format == "fixed" else self._float(m, pairs)
        )
        return m

    def _float(self, m: Module, pairs: list[tuple[Value, Value]]) -> Value:
        p = self.parameters
        options: dict[str, Any] = {"format": p.format, "flush_subnormals": p.flush_subnormals}
        # Products are rounded, then each sum of the tree is.
        tree_stages = p.stages - p.multiplier_stages
        m.submodules.tree = tree = AdderTree(
            AdderTreeParameters(n=p.n, **options, stages=tree_stages)
        )
        if tree_stages:
            m.d.comb += tree.enable.eq(self.enable)
        for number, (a, b) in enumerate(pairs):
            unit = FloatMultiply(FloatMultiplyParameters(**options, stages=p.multiplier_stages))
            m.submodules[f"multiply_{number}"] = unit
            m.d.comb += [unit.a.eq(a), unit.b.eq(b), tree.i[number].eq(unit.o)]
            if p.multiplier_stages:
                m.d.comb += unit.enable.eq(self.enable)
        return tree.o

    def _fixed(self, m: Module, pairs: list[tuple[Value, Value]]) -> Value:
        p = self.parameters
        width = len(self.o)
        # Every bit of b times a is a row; bits with a negative weight are inverted.
        # Products are never summed one by one: the partial products of all pairs go into one
        # carry-save tree with a single carry propagation at its end.
        rows: list[Value] = []
        excess = 0  # sum of the weights of all inverted bits
        for number, (a, b) in enumerate(pairs):
            for j in range(p.b_width):
                # Bits of the row with a negative weight: of exactly one sign bit.
                negative = 0
                for i in range(p.a_width):
                    of_a = p.a_signed and i == p.a_width - 1
                    of_b = p.b_signed and j == p.b_width - 1
                    negative |= (of_a != of_b) << i
                excess += negative << j
                row = Signal(j + p.a_width, name=f"row_{number}_{j}")
                bits = (a & b[j].replicate(p.a_width)) ^ negative
                m.d.comb += row.eq(Cat(Const(0, j), bits[: p.a_width]))
                rows.append(row)
        # An inverted bit of weight w adds w too much, which one constant takes off for all.
        rows.append(Const(-excess % (1 << width), width))
        return carry_save.add_rows(m, rows, width, self.registers(m))
