"""Rows of a memory in order of address, asked for ahead of time."""

import dataclasses

from amaranth.hdl import Cat, Module, Signal, Value, unsigned
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.parameters import Parameters, require


@dataclasses.dataclass(frozen=True)
class SequentialReaderParameters(Parameters):
    """
    address_width
        Bits of a word's address; addresses count words.
    data_width
        Bits of a word, where the instantiating block gives no shape.
    depth
        Words asked for and not yet passed on, a power of two from 4. Memories that answer within
        `depth` - 2 cycles are read at full rate.
    longest
        Most words of one command.
    """

    address_width: int = 24
    data_width: int = 128
    depth: int = 16
    longest: int = 4095

    def __post_init__(self):
        require(self.address_width >= 1, "address_width must be at least 1", self.address_width)
        require(self.data_width >= 1, "data_width must be at least 1", self.data_width)
        power = self.depth > 0 and self.depth & (self.depth - 1) == 0
        require(power and self.depth >= 4, "depth must be a power of two from 4", self.depth)
        require(self.longest >= 1, "longest must be at least 1", self.longest)

    @classmethod
    def presets(cls) -> dict[str, "SequentialReaderParameters"]:
        return {
            "small": cls(address_width=8, data_width=8, depth=4, longest=15),
            "default": cls(),
            "large": cls(address_width=32, data_width=256, depth=32, longest=65535),
        }

    @property
    def latency(self) -> int:
        """Cycles from a command to its first word, the memory's latency not counted."""
        return 3

    def cycles(self, words: list[int], memory_latency: int = 1) -> int:
        """Cycles from the first command offered to the last word taken, when nothing stalls.

        For commands of so many `words`, the last of them not 0, and a memory that answers each
        request in the same `memory_latency` of at most `depth` - 2 cycles.
        """
        return sum(max(1, count) for count in words) + self.latency + memory_latency

    @property
    def command_layout(self) -> data.StructLayout:
        """``address`` of the first word and the number of ``words``."""
        return data.StructLayout({"address": self.address_width, "words": range(self.longest + 1)})

    @property
    def request_layout(self) -> data.StructLayout:
        """``tag`` and ``address`` of a word."""
        return data.StructLayout({"tag": range(self.depth), "address": self.address_width})

    def response_layout(self, shape=None) -> data.StructLayout:
        """``tag`` of the request and the word's ``data``."""
        shape = unsigned(self.data_width) if shape is None else shape
        return data.StructLayout({"tag": range(self.depth), "data": shape})

    def output_layout(self, shape=None) -> data.StructLayout:
        """The word's ``data``, and ``last`` on the last word of a command."""
        shape = unsigned(self.data_width) if shape is None else shape
        return data.StructLayout({"data": shape, "last": 1})


class SequentialReader(Component):
    """Read runs of consecutive words from a memory that answers late and in any order.

    ::

        command ─→ address, words left ─→ request ┄┄ memory ┄┄→ response ─→ slots ─→ o
                          ↑                                                   │
                          └──────────────── a slot is free ───────────────────┘

    A request's tag is the slot that its word will be put into, so at most `depth` words are asked
    for or wait in a slot at any time, one more waits at the output, and every response is accepted
    at once. Slots are used and emptied in turn. A command of 0 words gives nothing; the address
    after the highest is 0.

    Latency: with a memory that answers L cycles after a request, L + 3 cycles from a command to its
    first word: one to the request and two from the response. Throughput: one word per cycle while
    L is at most `depth` - 2, else `depth` words in L + 2 cycles; commands follow each other without
    a gap, but one of 0 words takes a cycle.

    Handshake: ``response.ready`` is always high. ``command.ready`` follows ``request.ready``
    combinationally in the cycle of a command's last request; all else depends on registers only.
    Overflow: none. A response with a tag that was not asked for is an error of the memory, and
    what follows is undefined.

    The slots are one memory of `depth` words with a synchronous read port, fit for block RAM or
    SRAM; whether a slot is filled is one register for each.

    Parameters
    ----------
    parameters : :class:`SequentialReaderParameters`
    shape : shape-like
        Shape of a word; by default ``unsigned(data_width)``.

    Members
    -------
    command : :py:`In(stream.Signature(parameters.command_layout))`
        What to read.
    request : :py:`Out(stream.Signature(parameters.request_layout))`
        To the memory.
    response : :py:`In(stream.Signature(parameters.response_layout(shape)))`
        From the memory, in any order.
    o : :py:`Out(stream.Signature(parameters.output_layout(shape)))`
        The words of one command after the other, in order of address.
    """

    summary = "Runs of consecutive words from a memory that answers in any order"
    source = "library"

    def __init__(self, parameters: SequentialReaderParameters, shape=None):
        self._parameters = parameters
        super().__init__(
            {
                "command": In(stream.Signature(parameters.command_layout)),
                "request": Out(stream.Signature(parameters.request_layout)),
                "response": In(stream.Signature(parameters.response_layout(shape))),
                "o": Out(stream.Signature(parameters.output_layout(shape))),
            }
        )

    @property
    def parameters(self) -> SequentialReaderParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        command, request, response, o = self.command, self.request, self.response, self.o

        # Slots asked for and slots emptied, counted round twice: equal is none, opposite is all.
        asked = Signal(range(2 * p.depth))
        emptied = Signal(range(2 * p.depth))
        left = Signal(range(p.longest + 1))
        address = Signal(p.address_width, reset_less=True)
        full = Signal()
        final = Signal()  # the word asked for is its command's last
        ask = Signal()
        m.d.comb += [
            full.eq((asked ^ emptied) == p.depth),
            final.eq(left == 1),
            request.valid.eq(left.any() & ~full),
            request.payload.tag.eq(asked[:-1]),
            request.payload.address.eq(address),
            ask.eq(request.valid & request.ready),
            command.ready.eq(~left.any() | (final & ask)),
        ]
        with m.If(ask):
            m.d.sync += [asked.eq(asked + 1), address.eq(address + 1), left.eq(left - 1)]
        with m.If(command.valid & command.ready):
            m.d.sync += [address.eq(command.payload.address), left.eq(command.payload.words)]

        word = len(Value.cast(response.payload.data))
        m.submodules.slots = slots = memory.Memory(shape=unsigned(word), depth=p.depth, init=[])
        m.submodules.finals = finals = memory.Memory(shape=1, depth=p.depth, init=[])
        put, get = slots.write_port(), slots.read_port()
        put_final, get_final = finals.write_port(), finals.read_port()
        # Changes with every word put into a slot; the round of `emptied` tells what it means.
        filled = Signal(p.depth)
        head = Signal()  # the next word is in its slot
        take = Signal()
        turn = Cat(emptied[:-1] == slot for slot in range(p.depth))
        m.d.comb += [
            response.ready.eq(1),
            put.en.eq(response.valid),
            put.addr.eq(response.payload.tag),
            put.data.eq(response.payload.data),
            put_final.en.eq(ask),
            put_final.addr.eq(asked[:-1]),
            put_final.data.eq(final),
            head.eq((filled & turn).any() ^ emptied[-1]),
            take.eq(head & (~o.valid | o.ready)),
            get.en.eq(take),
            get.addr.eq(emptied[:-1]),
            get_final.en.eq(take),
            get_final.addr.eq(emptied[:-1]),
            Value.cast(o.payload.data).eq(get.data),
            o.payload.last.eq(get_final.data),
        ]
        arrived = Cat(response.valid & (response.payload.tag == slot) for slot in range(p.depth))
        m.d.sync += [filled.eq(filled ^ arrived), emptied.eq(emptied + take)]
        with m.If(~o.valid | o.ready):
            m.d.sync += o.valid.eq(head)
        return m
