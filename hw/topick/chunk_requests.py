"""The lane's memory requests: next chunks of tokens in flight first, then new tokens."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data

from hw.component import Component
from hw.layout import count, index, position
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.stream.queue import Queue, QueueParameters


def tag_layout(token_bits: int, chunks: int, entries: int) -> data.StructLayout:
    """A request's tag: the ``token``, which ``chunk`` of it, and its ``slot`` of the scoreboard."""
    return data.StructLayout(
        {
            "token": position(token_bits),
            "chunk": index(range(chunks)),
            "slot": index(range(entries)),
        }
    )


class ChunkRequests(Component[None]):
    """Requests of next chunks, and of first chunks in the cycles between them.

    A first chunk needs a token and a free slot. There is room for a next chunk of each slot, so
    ``next`` never waits: each slot has at most one request at a time.

    Latency: 1 cycle for a first chunk, 2 for a next one. Throughput: a request per cycle.
    """

    def __init__(self, token_bits: int, chunks: int, entries: int):
        self._chunks = chunks
        self._token_bits = token_bits
        self._entries = entries
        super().__init__()

    def ports(self) -> Ports:
        tag = tag_layout(self._token_bits, self._chunks, self._entries)
        return {
            "start": wire_in(
                1,
                "A head of ``tokens`` tokens begins. All tokens of the head before have been "
                "requested.",
            ),
            "tokens": wire_in(count(self._token_bits + 1)),
            "token": stream_in(position(self._token_bits), "Tokens in their order."),
            "free": stream_in(index(range(self._entries)), "Free slots."),
            "next": stream_in(tag),
            "o": stream_out(tag),
            "first_arrived": wire_in(1, "A first chunk arrived."),
            "first_pending": wire_out(
                1, "A first chunk has been requested and has not arrived yet."
            ),
        }

    def elaborate(self, platform):
        m = Module()
        shape = self.o.payload.shape()
        m.submodules.later = later = Queue(QueueParameters(depth=self._entries), shape=shape)
        remaining = Signal(len(self.tokens))  # tokens without a request
        pending = Signal(range(self._entries + 1))  # first chunks requested and not arrived
        output_free = Signal()  # the output register is free
        idle = Signal()  # no next chunk waits
        started = Signal()
        m.d.comb += [
            later.i.valid.eq(self.next.valid),
            later.i.payload.eq(self.next.payload),
            self.next.ready.eq(later.i.ready),
            output_free.eq(~self.o.valid | self.o.ready),
            # Next chunks go before first ones: they finish a token and free its slot, while a first
            # chunk takes one. So the slots cannot fill with tokens that wait for their next chunk.
            later.o.ready.eq(output_free),
            # A token and a slot are taken together, in a cycle without a next chunk.
            idle.eq(output_free & ~later.o.valid & (remaining != 0)),
            self.token.ready.eq(idle & self.free.valid),
            self.free.ready.eq(idle & self.token.valid),
            started.eq(self.token.valid & self.token.ready),
            self.first_pending.eq(pending != 0),
        ]
        with m.If(output_free):
            m.d.sync += self.o.valid.eq(later.o.valid | started)
            m.d.sync += self.o.payload.eq(later.o.payload)
            # A first chunk is loaded in any idle cycle; `started` decides whether it is valid.
            with m.If(~later.o.valid):
                m.d.sync += [
                    self.o.payload.token.eq(self.token.payload),
                    self.o.payload.chunk.eq(0),
                    self.o.payload.slot.eq(self.free.payload),
                ]
        with m.If(self.start):
            m.d.sync += remaining.eq(self.tokens)
        with m.Elif(started):
            m.d.sync += remaining.eq(remaining - 1)
        m.d.sync += pending.eq(pending + started - self.first_arrived)
        return m
