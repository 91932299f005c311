"""Rows of a head's caches from memory, each when there is a place for it."""

from amaranth.hdl import Cat, Module, Mux, Signal

from hw.component import Component
from hw.lad.caches.cache_store import cache_row_layout, column_after
from hw.lad.tile_parameters import LadTileParameters
from hw.lad.tile_sizes import LANES
from hw.layout import count
from hw.ports import Ports, stream_in, stream_out, wire_in


class CacheFetch(Component[LadTileParameters]):
    """Requests all rows of A to F in the order in which :class:`CacheStore` writes them.

    A row is requested when its place is free. So an answer never waits for the rows of the head
    before to be written, and these writes never for an answer.

    Throughput: a request per cycle. Answers are passed on as they arrive.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.head_index, "A head with caches."),
            "free": wire_in(
                count(range(p.cache_rows + 1)), "Rows whose place is free, as the store's."
            ),
            "request": stream_out(p.block_memory.read_layout),
            "response": stream_in(p.block_memory.response_layout),
            "cache": stream_out(cache_row_layout(p)),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        # An answer is never refused for lack of space: its row was free before it was requested. So
        # answers of the shared memory port cannot be blocked by this reader.
        request, response, cache = self.request, self.response, self.cache
        m.d.comb += [
            cache.valid.eq(response.valid),
            cache.payload.row.eq(response.payload.tag),
            cache.payload.data.eq(response.payload.data),
            response.ready.eq(cache.ready),
        ]
        head = Signal(p.head_index, reset_less=True)
        # E and F come first, then B to D, then the two halves of one column after the other.
        index = Signal(range(p.cache_rows))
        lane = Signal(range(LANES))
        number = Signal(range(p.columns + 1))
        half = Signal()
        column = Signal(range(p.d))
        row = Signal(range(p.cache_rows))
        in_columns = index >= p.cache_rows - 2 * p.d
        with m.Switch(lane):
            for n in range(LANES):
                with m.Case(n) if n < LANES - 1 else m.Default():
                    m.d.comb += column.eq(n * p.columns + number)
        m.d.comb += [
            row.eq(
                Mux(
                    in_columns,
                    Cat(half, column),
                    2 * p.d + Mux(index == 0, p.cache_rows - 2 * p.d - 1, index - 1),
                )
            ),
            request.payload.tag.eq(row),
            request.payload.address.eq(p.regions["cache"].address_of(head, row)),
        ]
        with m.FSM():
            # The order must begin anew with each head, as the store writes each head from E and F
            # on.
            with m.State("IDLE"):
                m.d.comb += self.command.ready.eq(1)
                m.d.sync += [x.eq(0) for x in (index, lane, number)]
                with m.If(self.command.valid):
                    m.d.sync += head.eq(self.command.payload)
                    m.next = "ROWS"
            with m.State("ROWS"):
                # `free` only rises during a head, so a request once offered remains.
                m.d.comb += request.valid.eq(index < self.free)
                with m.If(request.valid & request.ready):
                    m.d.sync += index.eq(index + 1)
                    # Both halves of a column, then the same column of the next lane: the store
                    # frees the three banks by turns, so this order finds a free row soonest.
                    with m.If(in_columns):
                        m.d.sync += half.eq(~half)
                        with m.If(half):
                            after = column_after(p, lane, number)
                            m.d.sync += [lane.eq(after[0]), number.eq(after[1])]
                    with m.If(index == p.cache_rows - 1):
                        m.next = "IDLE"
        return m
