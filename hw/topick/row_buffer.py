"""A lane's keys and values on chip, for blocks of a prompt (Token-Picker, section 4, Fig. 6)."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory

from hw.component import Component
from hw.layout import count
from hw.ports import Ports, stream_in, stream_out, wire_in
from hw.topick.core_parameters import TopickCoreParameters


class RowBuffer(Component[TopickCoreParameters]):
    """Loads a kv head's rows from the lane's memory once, and answers requests with whole rows.

    ::

        load ─→ planes × rows ─→ memory_request ┄┄ memory ┄┄→ memory_response
                                                                    │
                                      ┌─ write, chunk by chunk ─────┤
                                      ↓                             │ unless `whole`
        request ─ read, `whole` ─→ banks: chunk 0 | 1 | ... ─→ response
               └─────────────── unless `whole` ─→ memory_request

    A `load` reads chunks 0, 1, ... of K of all its rows, then those of V, each once: 2 chunks rows
    requests, in the order of their addresses. Their responses may come in any order: the tag says
    where each belongs. While `whole` is high, a request of any row of K or V is answered by all of
    its chunks. Otherwise the buffer is a wire between the lane and its memory.

    A `load` must begin when no request is without response, and `whole` must not change while
    there is one. With `whole`, a request is answered at once, during a load as well, with what its
    row has by then: who asks waits for ``load.ready``. Rows that no load has read are undefined.

    Latency: 1 cycle from a request to the whole row; 2 chunks rows and the memory's latency from a
    load to the next one's ``ready``. Throughput: a row a cycle, of K or V.

    Handshake: ``load.ready`` is a register's, high when all has been loaded; a load of 0 rows is
    done at once. A response that was not requested waits. ``request.ready`` depends on
    ``response.ready`` if `whole`, otherwise the ready ports on each other's.

    The banks are memories of 2 `rows` words of d chunks, with a synchronous read port and a write
    port, fit for SRAM.
    """

    def ports(self) -> Ports:
        p = self.parameters
        load = {"kv_head": p.kv_head_index, "rows": count(range(p.rows + 1))}
        return {
            "whole": wire_in(1, "Requests are answered by the buffer."),
            "load": stream_in(data.StructLayout(load)),
            "request": stream_in(p.memory.read_layout),
            "response": stream_out(p.row_response_layout),
            "memory_request": stream_out(p.memory.read_layout),
            "memory_response": stream_in(p.memory.response_layout),
        }

    def elaborate(self, platform):
        m = Module()
        p, response, arrived = self.parameters, self.response, self.memory_response
        asking = Signal()  # chunks are to be requested
        pending = Signal(range(2 * p.lane.chunks * p.rows + 1))  # requests without response
        loading = Signal()
        m.d.comb += [
            loading.eq(asking | (pending != 0)),
            self.load.ready.eq(~loading),
        ]
        requested = self._load(m, asking)
        stored = Signal()
        m.d.comb += stored.eq(arrived.valid & arrived.ready & loading)
        m.d.sync += pending.eq(pending + requested - stored)

        # A row is in the banks' read registers, its tag beside them.
        held = Signal()
        tag = Signal(p.memory.tag, reset_less=True)
        free = Signal()
        reading = Signal()
        m.d.comb += [
            free.eq(~held | response.ready),
            reading.eq(self.request.valid & self.whole & free),
        ]
        with m.If(free):
            m.d.sync += held.eq(reading)
        with m.If(reading):
            m.d.sync += tag.eq(self.request.payload.tag)
        row = self._banks(m, reading, stored)

        # In a load all responses are the buffer's; a lane's own requests pass when none is loaded.
        passing = Signal()
        m.d.comb += [
            passing.eq(~self.whole & ~loading),
            self.request.ready.eq(Mux(self.whole, free, self.memory_request.ready & passing)),
            arrived.ready.eq(Mux(loading, pending != 0, response.ready & passing)),
            response.valid.eq(held | (arrived.valid & passing)),
            response.payload.tag.eq(Mux(held, tag, arrived.payload.tag)),
            response.payload.data.eq(Mux(held, row[0], arrived.payload.data)),
            # Beside a chunk alone there are no others.
            *(
                rest.eq(bank & held.replicate(len(bank)))
                for rest, bank in zip(response.payload.rest, row[1:], strict=True)
            ),
        ]
        return m

    def _load(self, m: Module, asking: Signal) -> Signal:
        """Requests of a load; returns whether one is taken. Lane's requests pass beside them."""
        p, memory_request = self.parameters, self.memory_request
        chunks = p.lane.chunks
        row = Signal(p.row_bits)
        last_row = Signal(p.row_bits)
        chunk = Signal(range(chunks))
        is_value = Signal()
        plane = Signal(range(p.planes))
        requested = Signal()
        m.d.comb += [
            requested.eq(asking & memory_request.ready),
            memory_request.valid.eq(asking | (self.request.valid & ~self.whole & self.load.ready)),
            memory_request.payload.eq(self.request.payload),
        ]
        with m.If(asking):
            # Planes are in the memory as they are read, and in a plane the rows.
            m.d.comb += [
                memory_request.payload.address.eq(Cat(row, plane)),
                memory_request.payload.tag.value.eq(is_value),
                memory_request.payload.tag.chunk.eq(chunk),
                memory_request.payload.tag.row.eq(row),
                memory_request.payload.tag.label.eq(0),
            ]
        with m.If(self.load.valid & self.load.ready):
            m.d.sync += [
                asking.eq(self.load.payload.rows != 0),
                last_row.eq(self.load.payload.rows - 1),
                plane.eq(self.load.payload.kv_head * (2 * chunks)),
                Cat(row, chunk, is_value).eq(0),
            ]
        with m.Elif(requested):
            m.d.sync += row.eq(row + 1)
            with m.If(row == last_row):
                m.d.sync += [row.eq(0), plane.eq(plane + 1), chunk.eq(chunk + 1)]
                with m.If(chunk == chunks - 1):
                    m.d.sync += [chunk.eq(0), is_value.eq(1), asking.eq(~is_value)]
        return requested

    def _banks(self, m: Module, reading: Signal, stored: Signal) -> list:
        """A memory for each chunk of a row; returns their read registers."""
        p = self.parameters
        arrived, tag = self.memory_response.payload, self.request.payload.tag
        found = []
        for chunk in range(p.lane.chunks):
            # Flat words, because a memory's rows of arrays are the same bits.
            bank = memory.Memory(shape=p.d * p.chunk_bits, depth=2 * p.rows, init=[])
            m.submodules[f"bank_{chunk}"] = bank
            read, write = bank.read_port(), bank.write_port()
            m.d.comb += [
                read.en.eq(reading),
                read.addr.eq(Cat(tag.row, tag.value)),
                write.en.eq(stored & (arrived.tag.chunk == chunk)),
                write.addr.eq(Cat(arrived.tag.row, arrived.tag.value)),
                write.data.eq(arrived.data.as_value()),
            ]
            found.append(read.data)
        return found
