"""The memory port of a decode core: requests that write new rows, and requests that read rows."""

from amaranth.hdl import Module, Mux, Signal

from hw.component import Component
from hw.layout import address
from hw.ports import Ports, stream_in, stream_out
from hw.stream.combine import copy
from hw.stream.memory_port import MemoryPort


class RowPort(Component[None]):
    """Merge the writes, each with its row of `kv`, and the reads into the requests to one memory.

    A write goes before reads, also while it waits for its row, because reads of the step include
    the new row. A read that has been offered to the memory goes before a later write.

    Handshake: a row of `kv` transfers with the request that writes it. ``request.valid`` depends
    combinationally on ``kv.valid``, and ``kv.ready`` on ``request.ready``.
    """

    def __init__(self, memory: MemoryPort):
        self._memory = memory
        super().__init__()

    def ports(self) -> Ports:
        port = self._memory
        return {
            "write": stream_in(address(port.address_width), "Addresses of new rows."),
            "kv": stream_in(port.row, "New rows."),
            "read": stream_in(port.read_layout, "Rows to read."),
            "request": stream_out(port.request_layout, "To the memory."),
        }

    def elaborate(self, platform):
        m = Module()
        write, kv, read, request = self.write, self.kv, self.read, self.request
        waiting = Signal()  # a read has been offered and not accepted
        writing = Signal()
        # A request that was offered must not change, so a write waits for a read that the memory
        # has not accepted.
        m.d.sync += waiting.eq(read.valid & ~writing & ~request.ready)
        m.d.comb += [
            # Writes go first: a read may be of a row that is still to be written, and a write waits
            # only for its data, which depend on no read.
            writing.eq(write.valid & ~waiting),
            request.valid.eq(Mux(writing, kv.valid, read.valid)),
            # The address and the row of a write leave together.
            write.ready.eq(writing & kv.valid & request.ready),
            kv.ready.eq(writing & request.ready),
            read.ready.eq(~writing & request.ready),
        ]
        with m.If(writing):
            m.d.comb += [
                request.payload.write.eq(1),
                request.payload.address.eq(write.payload),
                request.payload.data.eq(kv.payload),
            ]
        with m.Else():  # without data, as the next row of kv would change a read that waits
            m.d.comb += copy(request.payload, read.payload)
        return m
