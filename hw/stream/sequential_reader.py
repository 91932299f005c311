"""Prefetching reader of consecutive memory words, in order, from an out-of-order memory."""

import dataclasses

from amaranth.hdl import Module, Shape, Signal, Value, unsigned
from amaranth.lib import data, wiring

from hw.component import Component
from hw.layout import FLAG, address, count, index
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.memory_port import MemoryPort
from hw.stream.reorder_buffer import ReorderBuffer


@dataclasses.dataclass(frozen=True)
class SequentialReaderParameters(Parameters):
    """
    address_width
        Bits of a word's address; addresses count words.
    data_width
        Bits of a word, where the instantiating block gives no shape.
    depth
        Largest number of words requested and not yet output: a power of two, at least 4. Memories
        that respond within `depth` - 2 cycles are read at full rate.
    longest
        Largest number of words of one command.
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

        words
            Number of words of each command, the last of them not 0.
        memory_latency
            Cycles from every request to its response, at most `depth` - 2.
        """
        return sum(max(1, number) for number in words) + self.latency + memory_latency

    @property
    def command_layout(self) -> data.StructLayout:
        """``address`` of the first word and the number of ``words``."""
        return data.StructLayout(
            {"address": address(self.address_width), "words": count(range(self.longest + 1))}
        )

    def memory(self, shape=None) -> MemoryPort:
        """The memory, of which the reader only reads; a tag is the number of a slot."""
        shape = unsigned(self.data_width) if shape is None else shape
        return MemoryPort(index(range(self.depth)), self.address_width, shape)

    def output_layout(self, shape=None) -> data.StructLayout:
        """The word's ``data``, and ``last`` on the last word of a command."""
        shape = unsigned(self.data_width) if shape is None else shape
        return data.StructLayout({"data": shape, "last": FLAG})


class SequentialReader(Component[SequentialReaderParameters]):
    """Read runs of consecutive words from a memory with long latency and out-of-order responses.

    ::

        command ─→ address, words left ─→ request ┄┄ memory ┄┄→ response ─→ slots ─→ o
                          ↑                                                   │
                          └──────────────── a slot is free ───────────────────┘

    A reorder buffer: the slots are allocated in order of request and read in the same order. A
    request's tag is the number of its slot, so every response is accepted at once. At most `depth`
    words are requested or wait in a slot at any time, and one more waits at the output. A command
    of 0 words outputs nothing. Addresses wrap from the highest to 0.

    Latency: with a memory that responds L cycles after a request, L + 3 cycles from a command to
    its first word: one to the request and two from the response. Throughput: one word per cycle
    while L is at most `depth` - 2, else `depth` words in L + 2 cycles; commands follow each other
    without a gap, but one of 0 words takes a cycle.

    Handshake: ``response.ready`` is always high. ``command.ready`` follows ``request.ready``
    combinationally in the cycle of a command's last request; all else depends on registers only.
    Overflow: none. A response whose tag has no outstanding request is an error of the memory, and
    results are undefined from then on.

    The buffer is :class:`hw.stream.reorder_buffer.ReorderBuffer`.

    Parameters
    ----------
    parameters : :class:`SequentialReaderParameters`
    shape : shape-like
        Shape of a word; by default ``unsigned(data_width)``.

    Examples
    --------
    Two commands of 100 and 20 words, from a memory that responds after 10 cycles:

    >>> from hw.stream.sequential_reader import SequentialReader, SequentialReaderParameters
    >>> parameters = SequentialReaderParameters(data_width=64, depth=16)
    >>> parameters.cycles([100, 20], memory_latency=10)
    133
    >>> SequentialReader(parameters).request.payload.tag.shape()
    unsigned(4)
    """

    summary = "Prefetches consecutive words, in order, from an out-of-order memory"
    source = "library"

    def __init__(self, parameters: SequentialReaderParameters, shape=None):
        self._shape = shape
        super().__init__(parameters)

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.command_layout, "What to read."),
            **p.memory(self._shape).ports(reads_only=True),
            "o": stream_out(
                p.output_layout(self._shape),
                "The words of one command after the other, in order of address.",
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        command = self.command
        word = unsigned(Shape.cast(self.response.payload.shape()["data"].shape).width)
        # Requests run ahead of the consumer by as many words as there are slots; each has a slot
        # before it is issued, so a response is always accepted and the memory never blocks.
        m.submodules.reorder = reorder = ReorderBuffer(p.depth, p.address_width, word)
        left = Signal(range(p.longest + 1))  # words of the command still to request
        address = Signal(p.address_width, reset_less=True)
        final = Signal()  # the requested word is its command's last
        issue = Signal()  # a request is accepted by the memory
        m.d.comb += [
            final.eq(left == 1),
            reorder.i.valid.eq(left.any()),
            reorder.i.payload.address.eq(address),
            reorder.i.payload.last.eq(final),
            issue.eq(reorder.i.valid & reorder.i.ready),
            # The next command is accepted together with the last request, so there is no gap.
            command.ready.eq(~left.any() | (final & issue)),
        ]
        # The reorder buffer adds a slot's number as the tag and issues words in the order of slots.
        wiring.connect(m, reorder.request, wiring.flipped(self.request))
        m.d.comb += [
            reorder.response.valid.eq(self.response.valid),
            self.response.ready.eq(reorder.response.ready),
            Value.cast(reorder.response.payload).eq(Value.cast(self.response.payload)),
            self.o.valid.eq(reorder.o.valid),
            reorder.o.ready.eq(self.o.ready),
            Value.cast(self.o.payload).eq(Value.cast(reorder.o.payload)),
        ]
        # A request is counted when the memory accepts it, so back-pressure only delays the run.
        with m.If(issue):
            m.d.sync += [address.eq(address + 1), left.eq(left - 1)]
        with m.If(command.valid & command.ready):
            m.d.sync += [address.eq(command.payload.address), left.eq(command.payload.words)]
        return m
