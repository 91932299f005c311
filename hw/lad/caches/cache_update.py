"""AC's update of the caches: terms of positions that changed their mode (LAD, Algorithm 2)."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.component import Component
from hw.lad.apid_parameters import MODE_BITS
from hw.lad.caches.term_walk import TermWalk
from hw.lad.tile_parameters import LadTileParameters
from hw.lad.tile_sizes import LANES
from hw.layout import FLAG, index
from hw.ports import Ports, wire_in, wire_out

OPERATION = "x", "y", "vec", "f_product", "subtract", "first", "last"
"""An operation's members, as the ports of :class:`hw.lad.caches.ac_lane.AcLane`."""


class CacheUpdate(Component[LadTileParameters]):
    """Operations of the three lanes, for the vectors B to D and then for the columns of A.

    ::

        changes ─→ TermWalk ─→ VECTORS: lane 0: b V, b; lane 1: a V, a; lane 2: a K
                             └→ COLUMNS: a V[r] K for column r, of each lane, one after another

    The lanes begin VECTORS with their sums B to F, and read each column as they begin it.

    Cycles: a term per cycle in each lane; one more than ceil(d / 3) columns take.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "restart": wire_in(1, "A new head: forget all changes."),
            "change": wire_in(1, "Record a position's change, with its rows."),
            "minus": wire_in(index(MODE_BITS), "Mode that the position leaves, 0 for none."),
            "plus": wire_in(index(MODE_BITS), "Mode that the position gets, 0 for none."),
            "k": wire_in(p.row_layout, "Row of K of the position that changes."),
            "v": wire_in(p.row_layout, "Row of V of the position that changes."),
            "terms": wire_out(range(2 * p.updates + 1), "Number of terms of all changes."),
            "begin": wire_in(1, "There are terms: begin with the vectors in the next cycle."),
            "go": wire_out(1, "The lanes begin `operations`."),
            "operations": wire_out(data.ArrayLayout(operation_layout(p), LANES)),
            "base_wanted": wire_in(1, "A lane's next column is to be read."),
            "summed": wire_in(1, "The lanes have the sums of an operation with ``last``."),
            "set_vectors": wire_out(1, "The store takes B to F, and begins to write."),
            "read": wire_out(1, "The store reads `column`."),
            "column": wire_out(range(p.columns + 1), "Number of the column to read in each lane."),
            "set_column": wire_out(1, "The store takes a column of each lane."),
            "done": wire_out(1, "All columns of all lanes have been set."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.walk = walk = TermWalk(p)
        m.d.comb += [
            *(
                getattr(walk, name).eq(getattr(self, name))
                for name in ("restart", "change", "minus", "plus", "k", "v")
            ),
            self.terms.eq(walk.terms),
        ]
        # `column` counts what is read, `updated` what is complete; they differ by the pipeline
        # between.
        updated = Signal(range(p.columns + 1))  # columns of each lane
        with m.FSM():
            # The parent begins only if there are terms, so a walk is never empty.
            with m.State("IDLE"):
                m.d.sync += [self.column.eq(0), updated.eq(0)]
                m.d.comb += walk.begin.eq(self.begin)
                with m.If(self.begin):
                    m.next = "VECTORS"
            with m.State("VECTORS"):
                # Terms of C and F, of B and E, of D: b V, b; a V, a; a K.
                self._operate(m, walk, (walk.intercept, walk.slope, walk.slope))
                for number, operation in enumerate(self.operations):
                    vector = walk.k_out if number == 2 else walk.v_out
                    m.d.comb += operation.vec.eq(vector)
                # The columns begin when the vectors are complete, since the lanes' accumulators
                # then are free.
                with m.If(self.summed):
                    m.d.comb += [self.set_vectors.eq(1), walk.begin.eq(1)]
                    m.next = "COLUMNS"
            with m.State("COLUMNS"):
                # Terms of A, a V[r] K for column r. Columns begin one after another.
                m.d.comb += walk.repeats.eq(1)
                self._operate(m, walk, [walk.slope] * LANES)
                for operation, element in zip(self.operations, walk.elements, strict=True):
                    m.d.comb += [
                        operation.y.eq(element),
                        operation.f_product.eq(1),
                        operation.vec.eq(walk.k_out),
                        operation.first.eq(walk.first),
                    ]
                # A column's old sum is wanted a few cycles before its first term leaves the
                # multiplier.
                with m.If(self.base_wanted):
                    m.d.comb += self.read.eq(1)
                    m.d.sync += self.column.eq(self.column + 1)
                with m.If(self.summed):
                    m.d.comb += self.set_column.eq(1)
                    m.d.sync += updated.eq(updated + 1)
                with m.If(updated == p.columns):
                    m.d.comb += self.done.eq(1)
                    m.next = "IDLE"
        return m

    def _operate(self, m: Module, walk: TermWalk, factors) -> None:
        """A term in each lane, times the lane's factor."""
        m.d.comb += self.go.eq(walk.valid)
        for operation, factor in zip(self.operations, factors, strict=True):
            m.d.comb += [
                operation.x.eq(factor),
                operation.subtract.eq(walk.subtract),
                operation.last.eq(walk.last),
            ]


def operation_layout(p: LadTileParameters) -> data.StructLayout:
    """A lane's operation: factors ``x`` and ``y``, a vector, and what to do with their product."""
    shapes = {"x": FP16, "y": FP16, "vec": p.row_layout}
    return data.StructLayout({name: shapes.get(name, FLAG) for name in OPERATION})
