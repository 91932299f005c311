"""What a lane asks the memory for: chunks of tokens under way first, then new tokens."""

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.stream.queue import Queue, QueueParameters


def tag_layout(token_bits: int, chunks: int, entries: int) -> data.StructLayout:
    return data.StructLayout({"token": token_bits, "chunk": range(chunks), "slot": range(entries)})


class ChunkRequests(Component):
    """Requests of next chunks as they come, and in between of first chunks.

    A first chunk needs a token and a free slot. There is room for a next chunk of each slot, so
    ``next`` never waits: whoever holds a slot asks for one chunk at a time.

    Latency: 1 cycle for a first chunk, 2 for a next one. Throughput: a request a cycle.

    Members
    -------
    start : :py:`In(1)`
        A head begins, of so many ``tokens``, of which none is left from the last.
    token, free : :py:`In(stream.Signature(...))`
        Tokens in their order; slots.
    next, o : :py:`In(stream.Signature(tag))`, :py:`Out(stream.Signature(tag))`
    came : :py:`In(1)`
        A first chunk arrived.
    awaited : :py:`Out(1)`
        A first chunk was asked for and did not arrive yet.
    """

    def __init__(self, token_bits: int, chunks: int, entries: int):
        self._entries = entries
        tag = tag_layout(token_bits, chunks, entries)
        super().__init__(
            {
                "start": In(1),
                "tokens": In(token_bits + 1),
                "token": In(stream.Signature(unsigned(token_bits))),
                "free": In(stream.Signature(range(entries))),
                "next": In(stream.Signature(tag)),
                "o": Out(stream.Signature(tag)),
                "came": In(1),
                "awaited": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        shape = self.o.payload.shape()
        m.submodules.later = later = Queue(QueueParameters(depth=self._entries), shape=shape)
        left = Signal(len(self.tokens))  # tokens without a request
        coming = Signal(range(self._entries + 1))  # first chunks
        room = Signal()
        idle = Signal()
        started = Signal()
        m.d.comb += [
            later.i.valid.eq(self.next.valid),
            later.i.payload.eq(self.next.payload),
            self.next.ready.eq(later.i.ready),
            room.eq(~self.o.valid | self.o.ready),
            later.o.ready.eq(room),
            idle.eq(room & ~later.o.valid & (left != 0)),
            self.token.ready.eq(idle & self.free.valid),
            self.free.ready.eq(idle & self.token.valid),
            started.eq(self.token.valid & self.token.ready),
            self.awaited.eq(coming != 0),
        ]
        with m.If(room):
            m.d.sync += self.o.valid.eq(later.o.valid | started)
            m.d.sync += self.o.payload.eq(later.o.payload)
            with m.If(~later.o.valid):
                m.d.sync += [
                    self.o.payload.token.eq(self.token.payload),
                    self.o.payload.chunk.eq(0),
                    self.o.payload.slot.eq(self.free.payload),
                ]
        with m.If(self.start):
            m.d.sync += left.eq(self.tokens)
        with m.Elif(started):
            m.d.sync += left.eq(left - 1)
        m.d.sync += coming.eq(coming + started - self.came)
        return m
