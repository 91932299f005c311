"""Rows of mode counters: one at a time is worked on and written back (LAD, IV-B, part 4)."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data

from hw.component import Component
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import index
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out


class CounterRows(Component[LadTileParameters]):
    """The row that has the counters of the present position.

    ::

        counters ─→ ┐
                    ├─→ row ─→ (counting) ─→ new_row ─→ register ─→ written
        register ─→ ┘

    Entries come in ascending order, so a row is accepted with its first entry, and written back
    when an entry is in another row or after the last entry of the head.

    Handshake: ``stall`` while an entry waits for its row, or for a place to write the row before.
    ``new_row`` is stored in a cycle of `valid` and `advance`. ``written`` is a register.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "counters": stream_in(p.row_layout, "Rows from the memory, in order."),
            "written": stream_out(counter_row_layout(p), "Rows to write back."),
            "valid": wire_in(1, "A position is there."),
            "position": wire_in(
                p.position, "Position whose counters are needed, in ascending order within a head."
            ),
            "last": wire_in(1, "It is the last one of its head."),
            "advance": wire_in(1, "The position's counters are updated; only without `stall`."),
            "row": wire_out(p.row_bits, "Row with the position's counters."),
            "new_row": wire_in(p.row_bits, "Row after the update."),
            "stall": wire_out(1, "The position has to wait."),
            "flush": wire_out(1, "A head's last row is not yet written."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        in_row = (p.counter_words - 1).bit_length()
        current = Signal(p.row_bits)
        number = Signal.like(self.written.payload.row)  # of the current row
        stored = Signal()  # there is a current row
        here = Signal.like(number)  # number of the position's row
        needs = Signal()  # another row
        free = Signal()  # a row can be written back
        m.d.comb += [
            # A new row needs two things in the same cycle: it has arrived, and the row before it
            # can leave. Neither waits for the other one, so both come about.
            here.eq(self.position >> in_row),
            needs.eq(self.valid & (~stored | (here != number))),
            free.eq(~self.written.valid | self.written.ready),
            self.stall.eq((needs & ~(self.counters.valid & free)) | (self.valid & self.flush)),
            self.counters.ready.eq(needs & self.advance),
            self.row.eq(Mux(needs, Value.cast(self.counters.payload), current)),
        ]
        with m.If(self.written.ready):
            m.d.sync += self.written.valid.eq(0)
        # A position in another row writes back the current one; its own row takes the place.
        with m.If(self.valid & self.advance):
            m.d.sync += [
                current.eq(self.new_row),
                number.eq(here),
                stored.eq(1),
                self.flush.eq(self.last),
            ]
            with m.If(needs & stored):
                m.d.sync += self.written.valid.eq(1)
        # Behind the last position of a head nothing else has the row written.
        with m.Elif(self.flush & free):
            m.d.sync += [self.written.valid.eq(1), self.flush.eq(0), stored.eq(0)]
        # The output register follows the current row whenever it is empty, so a row that is to be
        # written needs no cycle of its transfer.
        with m.If(free):
            m.d.sync += [self.written.payload.data.eq(current), self.written.payload.row.eq(number)]
        return m


def counter_row_layout(p: LadTileParameters) -> data.StructLayout:
    """A row of counters, with its number in the head's table."""
    row = index(range(max(2, p.regions["counter"].rows)))
    return data.StructLayout({"row": row, "data": p.row_layout})
