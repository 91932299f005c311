"""The rows that a search has selected, from the memory, in the order of the exact stage."""

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data, fifo

from hw.component import Component
from hw.layout import FLAG, address
from hw.ports import Ports, stream_in, stream_out, wire_in
from hw.unicaim.core_parameters import UnicaimCoreParameters
from hw.unicaim.exact_attention import head_layout


class RowFetch(Component[UnicaimCoreParameters]):
    """Addresses of selected rows to addresses in the memory: all keys of a head, then its values.

    Where the exact stage takes scores from the cells, addresses go to the converters instead of
    keys, and the addresses of the values follow as soon as they can.

    Keys are requested as their addresses arrive. The rows are kept for the values, as many as an
    array has.
    """

    def ports(self) -> Ports:
        p = self.parameters
        row = p.sense.output_layout
        samples = (
            {"samples": stream_out(row, "Rows to convert, where exact is ``cells``.")}
            if p.exact == "cells"
            else {}
        )
        where = data.StructLayout({"address": address(p.address_width), "last": FLAG})
        return {
            "i": stream_in(row, "Rows of one head after the other."),
            "context": wire_in(p.context, "Context of the head."),
            "last": wire_in(1, "It is its step's last."),
            "heads": stream_out(head_layout(p), "With the head's first row."),
            **samples,
            "o": stream_out(where, "To the memory, `last` of a head's keys and of its values."),
        }

    def elaborate(self, platform):
        m = Module()
        p, i, o = self.parameters, self.i, self.o
        row_bits = (p.rows - 1).bit_length()
        context_bits = (p.kv_heads - 1).bit_length()
        context = self.context[:context_bits]
        row = Value.cast(i.payload.row)
        selected = fifo.SyncFIFOBuffered(width=row_bits + context_bits + 1, depth=p.rows)
        m.submodules.selected = selected
        kept_row, kept_context, kept_last = (
            selected.r_data[:row_bits],
            selected.r_data[row_bits:-1],
            selected.r_data[-1],
        )

        begun = Signal()  # the head is announced
        ready = Signal()  # a row of the head may be taken
        fire = Signal()
        present = i.payload.present
        m.d.comb += [
            # A head is announced with its first row, before the last is known: its requests can
            # begin, and a head without rows is announced as well.
            self.heads.valid.eq(i.valid & ~begun),
            self.heads.payload.present.eq(present),
            self.heads.payload.last.eq(self.last),
            self.heads.payload.context.eq(self.context),
            fire.eq(i.valid & i.ready),
            selected.w_data.eq(Cat(row, context, i.payload.last)),
            selected.w_en.eq(fire & present),
        ]
        with m.If(self.heads.valid & self.heads.ready):
            m.d.sync += begun.eq(1)
        with m.If(fire & i.payload.last):
            m.d.sync += begun.eq(0)
        m.d.comb += ready.eq((begun | self.heads.ready) & selected.w_rdy)

        # The same rows again, with the bit of the address that selects V.
        def values():
            m.d.comb += [
                o.valid.eq(selected.r_rdy),
                o.payload.address.eq(Cat(kept_row, 1, kept_context)),
                o.payload.last.eq(kept_last),
                selected.r_en.eq(o.ready),
            ]

        if p.exact == "cells":
            m.d.comb += [
                self.samples.valid.eq(i.valid & ready),
                self.samples.payload.eq(i.payload),
                i.ready.eq(ready & self.samples.ready),
            ]
            values()
            return m

        with m.FSM():
            # Rows are requested as the search outputs them; each is kept for V. The queue has room
            # for a whole array, so it never fills before the head's keys are requested.
            with m.State("KEYS"):
                m.d.comb += [
                    o.valid.eq(i.valid & present & ready),
                    o.payload.address.eq(Cat(row, 0, context)),
                    o.payload.last.eq(i.payload.last),
                    i.ready.eq(ready & (o.ready | ~present)),
                ]
                with m.If(fire & present & i.payload.last):
                    m.next = "VALUES"
            # All keys come before the first value, as the softmax needs all scores of the head.
            with m.State("VALUES"):
                values()
                with m.If(o.valid & o.ready & o.payload.last):
                    m.next = "KEYS"
        return m
