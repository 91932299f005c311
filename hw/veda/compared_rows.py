"""VEDA's softmax(q K) V, and the dataflows and schedulings that it is compared with (Fig. 8)."""

import dataclasses

from amaranth.hdl import Module
from amaranth.lib import wiring

from hw.attention.pe_array import PeArray
from hw.attention.weighted_rows import WeightedRows, WeightedRowsParameters
from hw.veda.tree_array import TreeArray, TreeArrayParameters
from hw.veda.vector_buffer import VectorBuffer


@dataclasses.dataclass(frozen=True)
class ComparedRowsParameters(WeightedRowsParameters):
    """
    array
        Parameters of the array, which is a tree if they are :class:`TreeArrayParameters`.
    softmax, keys
        See :class:`WeightedRowsParameters`.
    separate
        Whether the softmax begins after the last score, and the product with V after the last
        probability.
    """

    separate: bool = False

    def softmax_cycles(self, rows: int) -> int:
        return 2 * rows * self.separate + super().softmax_cycles(rows)


class ComparedRows(WeightedRows[ComparedRowsParameters]):
    """See :class:`hw.attention.weighted_rows.WeightedRows`."""

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
