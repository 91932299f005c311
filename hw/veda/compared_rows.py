"""VEDA's softmax(q K) V, and the dataflows and schedulings that it is compared with (Fig. 8)."""

import dataclasses

from amaranth.hdl import Module
from amaranth.lib import wiring

from hw.attention.pe_array import PeArray
from hw.attention.weighted_rows import WeightedRows, WeightedRowsParameters
from hw.ports import Ports, stream_in, stream_out
from hw.veda.shared_function_unit import SharedFunctionUnit, turn_layout
from hw.veda.tree_array import TreeArray, TreeArrayParameters
from hw.veda.vector_buffer import VectorBuffer


@dataclasses.dataclass(frozen=True)
class ComparedRowsParameters(WeightedRowsParameters):
    """
    array
        Parameters of the array, which is a tree if they are :class:`TreeArrayParameters`.
    softmax, keys, products
        See :class:`WeightedRowsParameters`.
    separate
        Whether the softmax begins after the last score, and the product with V after the last
        probability.
    heads
        Number of vectors of a step, at most, one for each head and token; with `products` alone.
    """

    separate: bool = False
    heads: int = 1

    @property
    def turns(self) -> int:
        """Vectors of a turn of the special function unit, at most."""
        return max(self.heads, self.products)

    def softmax_cycles(self, rows: int) -> int:
        return 2 * rows * self.separate + super().softmax_cycles(rows)


class ComparedRows(WeightedRows[ComparedRowsParameters]):
    """See :class:`hw.attention.weighted_rows.WeightedRows`.

    With `products` the special function unit also normalises vectors, in its turns.
    """

    def ports(self) -> Ports:
        p = self.parameters
        if not p.products:
            return super().ports()
        return super().ports() | {
            "turn": stream_in(turn_layout(p.turns), "Whose vectors are next: heads' or others."),
            "x": stream_in(p.softmax.input_layout, "Elements of vectors to be normalised."),
            "y": stream_out(p.softmax.output_layout, "Normalised elements."),
        }

    def make_softmax(self, m: Module):
        p = self.parameters
        if not p.products:
            return super().make_softmax(m)
        m.submodules.special_function_unit = unit = SharedFunctionUnit(p.softmax, p.turns)
        for outer, inner in ((self.turn, unit.turn), (self.x, unit.x)):
            wiring.connect(m, wiring.flipped(outer), inner)
        wiring.connect(m, unit.y, wiring.flipped(self.y))
        return unit

    def make_array(self):
        array = self.parameters.array
        return TreeArray(array) if isinstance(array, TreeArrayParameters) else PeArray(array)

    def collected(self, m: Module, name: str, beats):
        """The same beats; if `separate`, output when all of a head's have arrived."""
        p = self.parameters
        if not p.separate:
            return beats
        m.submodules[name] = buffer = VectorBuffer(p.softmax.length, beats.payload.shape())
        wiring.connect(m, beats, buffer.i)
        return buffer.o
