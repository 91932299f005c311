"""Balanced trees of two-operand units: sums and maxima of many numbers."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Shape, Signal, Value
from amaranth.lib import data

from hw.arith.bits import carry_save
from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_format import find_format
from hw.arith.float_max import FloatMax, FloatMaxParameters
from hw.layout import NumberFormat, integer
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out

UNITS = {"add": (FloatAdd, FloatAddParameters), "max": (FloatMax, FloatMaxParameters)}


def spread(stages: int, units: int) -> list[int]:
    """Pipeline stages of each of `units` in a row, spread evenly, the last stage at the end."""
    ends = [stages * number // units for number in range(units + 1)]
    return [end - start for start, end in zip(ends[:-1], ends[1:], strict=True)]


@dataclasses.dataclass(frozen=True)
class AdderTreeParameters(DatapathParameters):
    """
    n
        Number of elements.
    format
        Number format: ``fixed``, or the name of a floating-point format.
    operation
        ``add``, or for floating-point numbers ``max``.
    width, signed
        Width of a fixed-point element, and whether it is signed.
    flush_subnormals
        As in the floating-point units.
    """

    n: int = 16
    format: str = "fp16"
    operation: str = "add"
    width: int = 16
    signed: bool = True
    flush_subnormals: bool = False

    CUTS: ClassVar = carry_save.CUTS  # of fixed-point trees

    def __post_init__(self):
        require(self.n >= 2, "n must be at least 2", self.n)
        known = ", ".join(UNITS)
        require(self.operation in UNITS, f"operation must be one of {known}", self.operation)
        if self.format == "fixed":
            super().__post_init__()
            require(1 <= self.width <= 64, "width must be between 1 and 64", self.width)
            require(self.operation == "add", "operation must be add for fixed", self.operation)
            return
        find_format(self.format)
        most = self.levels * (len(UNITS[self.operation][1].CUTS) - 1)
        require(0 <= self.stages <= most, f"stages must be between 0 and {most}", self.stages)

    @property
    def levels(self) -> int:
        return (self.n - 1).bit_length()

    @property
    def element(self) -> NumberFormat:
        if self.format == "fixed":
            return integer(Shape(self.width, self.signed))
        return find_format(self.format)

    @property
    def result(self) -> NumberFormat:
        """A fixed-point sum is wide enough for all operands."""
        if self.format != "fixed":
            return self.element
        return integer(Shape(self.width + self.levels, self.signed))

    @classmethod
    def presets(cls) -> dict[str, "AdderTreeParameters"]:
        return {
            "small": cls(n=5, format="fp8_e5m2"),
            "fp16": cls(),
            "fp16_pipelined": cls(stages=4),
            "fp16_max": cls(operation="max"),
            "fixed": cls(format="fixed"),
            "fixed_pipelined": cls(n=64, format="fixed", stages=2),
        }


class AdderTree(Datapath[AdderTreeParameters]):
    """The sum, or the maximum, of n numbers in ceil(log2 n) levels.

    Floating-point: each level takes its inputs in pairs, first and second, third and fourth and so
    on; an odd last one goes to the next level as it is. So with n = 5, ((0 + 1) + (2 + 3)) + 4,
    each result rounded. The units are :class:`FloatAdd` or :class:`FloatMax`; the pipeline `stages`
    are spread evenly over the levels, at most as many for each level as its units have.

    Fixed-point sums are exact, and grow by one bit per level. They use carry-save adders and one
    final addition (:mod:`hw.arith.bits.carry_save`), which is as small as a tree of adders and has
    a single carry propagation. The sign of an element is inverted, and a constant corrects that for
    all elements at once: -2^(w-1) s + r = 2^(w-1) (1 - s) + r - 2^(w-1).

    Latency: `stages`. Throughput: one result per cycle.

    Examples
    --------
    Sixteen 8-bit integers need 12 bits:

    >>> from hw.arith.adder_tree import AdderTree, AdderTreeParameters
    >>> parameters = AdderTreeParameters(n=16, format="fixed", width=8, stages=1)
    >>> parameters.levels, AdderTree(parameters).o.shape()
    (4, signed(12))
    """

    summary = "Sum or maximum of n numbers, floating-point or exact"
    source = "library"

    def operation(self) -> Ports:
        p = self.parameters
        return {
            "i": wire_in(data.ArrayLayout(p.element, p.n), "Terms."),
            "o": wire_out(p.result, "Their sum."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        # Floating-point sums depend on their order; the model adds in the same pairs.
        elements = [Value.cast(self.i[number]) for number in range(p.n)]
        # Exact sums are independent of the order, so they need no tree of units.
        if p.format == "fixed":
            m.d.comb += self.o.eq(self._add(m, elements))
            return m
        # Each level halves the number of elements.
        for level, stages in enumerate(spread(p.stages, p.levels)):
            pairs = zip(elements[::2], elements[1::2], strict=False)
            results = [
                self._unit(m, f"unit_{level}_{number}", stages, *pair)
                for number, pair in enumerate(pairs)
            ]
            # Without a partner, the last element passes to the next level.
            if len(elements) % 2:
                results.append(self._delay(m, f"last_{level}", stages, elements[-1]))
            elements = results
        m.d.comb += self.o.eq(elements[0])
        return m

    def _unit(self, m: Module, name: str, stages: int, a: Value, b: Value) -> Value:
        p = self.parameters
        kind, parameters = UNITS[p.operation]
        unit = kind(parameters(format=p.format, flush_subnormals=p.flush_subnormals, stages=stages))
        m.submodules[name] = unit
        m.d.comb += [unit.a.eq(a), unit.b.eq(b)]
        if stages:
            m.d.comb += unit.enable.eq(self.enable)
        return unit.o

    def _delay(self, m: Module, name: str, stages: int, value: Value) -> Value:
        """An odd last element waits for the results of its level."""
        for stage in range(stages):
            register = Signal(len(value), name=f"{name}_{stage}", reset_less=True)
            with m.If(self.enable):
                m.d.sync += register.eq(value)
            value = register
        return value

    def _add(self, m: Module, elements: list[Value]) -> Signal:
        """The exact sum of fixed-point elements."""
        p = self.parameters
        width = p.width + p.levels
        rows = elements
        if p.signed:
            # Inverted signs, and one constant row that corrects all of them.
            rows = [Cat(element[:-1], ~element[-1]) for element in elements]
            excess = p.n << (p.width - 1)
            rows.append(Const(-excess % (1 << width), width))
        return carry_save.add_rows(m, rows, width, self.registers(m))
