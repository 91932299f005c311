"""Positions whose bit is set, from a memory with a bit for each position."""

from amaranth.hdl import Module, Signal

from hw.component import Component
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import index
from hw.ports import Ports, stream_out, wire_in, wire_out


class PositionScan(Component[LadTileParameters]):
    """Reads rows of d bits and outputs the positions of the bits that are set, ascending.

    Cycles: 3 for each row and one for each position, if none waits; 2 from `begin` to the first
    row.

    Handshake: a position is output until it is accepted.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "begin": wire_in(1, "Begin with row 0; no scan may be under way."),
            "rows": wire_in(
                range(p.table_rows + 1), "How many there are; may not change during the scan."
            ),
            "row": wire_out(index(range(p.table_rows + 1)), "The row that is read."),
            "bits": wire_in(p.d, "A row's bits, in the cycle after `row`."),
            "positions": stream_out(p.position),
            "finished": wire_out(1, "There are no more, from then on until the next `begin`."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        row, positions = self.row, self.positions
        left = Signal(p.d)  # bits of the row before `row` that are still to be output
        lowest = Signal(range(p.d))
        # A priority encoder: of assignments in one cycle the last one wins, so lane 0 comes last.
        for lane in reversed(range(p.d)):
            with m.If(left[lane]):
                m.d.comb += lowest.eq(lane)
        m.d.comb += positions.payload.eq(((row - 1) << p.element_bits) + lowest)
        with m.FSM():
            # `finished` remains high here, so the reader need not catch a pulse.
            with m.State("IDLE"):
                with m.If(self.begin):
                    m.d.sync += [row.eq(0), self.finished.eq(0)]
                    m.next = "ROW"
            # The row's bits are on their way from the memory, which has one cycle of latency; after
            # the last row there is nothing to wait for.
            with m.State("ROW"):
                m.next = "TAKE"
                with m.If(row == self.rows):
                    m.d.sync += self.finished.eq(1)
                    m.next = "IDLE"
            # `row` already counts the next row here, whose bits the memory reads meanwhile.
            with m.State("TAKE"):
                m.d.sync += [left.eq(self.bits), row.eq(row + 1)]
                m.next = "OUTPUT"
            # One position a cycle; a row without a set bit costs only this cycle.
            with m.State("OUTPUT"):
                m.d.comb += positions.valid.eq(left.any())
                with m.If(~left.any()):
                    m.next = "ROW"
                with m.Elif(positions.ready):
                    m.d.sync += left.eq(left & (left - 1))  # without the lowest bit
        return m
