"""Prefetching reader of consecutive memory words, in order, from an out-of-order memory."""

import dataclasses

from amaranth.hdl import Cat, Module, Signal, Value, unsigned
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.layout import FLAG, address, count, index
from hw.parameters import Parameters, require


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

    @property
    def request_layout(self) -> data.StructLayout:
        """``tag`` and ``address`` of a word."""
        return data.StructLayout(
            {"tag": index(range(self.depth)), "address": address(self.address_width)}
        )

    def response_layout(self, shape=None) -> data.StructLayout:
        """``tag`` of the request and the word's ``data``."""
        shape = unsigned(self.data_width) if shape is None else shape
        return data.StructLayout({"tag": index(range(self.depth)), "data": shape})

    def output_layout(self, shape=None) -> data.StructLayout:
        """The word's ``data``, and ``last`` on the last word of a command."""
        shape = unsigned(self.data_width) if shape is None else shape
        return data.StructLayout({"data": shape, "last": FLAG})


class SequentialReader(Component):
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

    The slots are one memory of `depth` words with a synchronous read port, fit for block RAM or
    SRAM, and a register for each slot says whether it is filled.

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

        # Slot numbers of the next request and of the next word to read, with a wrap bit each:
        # equal pointers are an empty buffer, pointers that differ in the wrap bit only a full one.
        requested = Signal(range(2 * p.depth))
        emptied = Signal(range(2 * p.depth))
        left = Signal(range(p.longest + 1))  # words of the command still to request
        address = Signal(p.address_width, reset_less=True)
        full = Signal()
        final = Signal()  # the requested word is its command's last
        issue = Signal()  # a request is accepted by the memory
        m.d.comb += [
            full.eq((requested ^ emptied) == p.depth),
            final.eq(left == 1),
            request.valid.eq(left.any() & ~full),
            request.payload.tag.eq(requested[:-1]),
            request.payload.address.eq(address),
            issue.eq(request.valid & request.ready),
            # The next command is accepted together with the last request, so there is no gap.
            command.ready.eq(~left.any() | (final & issue)),
        ]
        with m.If(issue):
            m.d.sync += [
                requested.eq(requested + 1),
                address.eq(address + 1),
                left.eq(left - 1),
            ]
        with m.If(command.valid & command.ready):
            m.d.sync += [address.eq(command.payload.address), left.eq(command.payload.words)]

        # Words are written when they arrive, their `last` flags when they are requested.
        word = len(Value.cast(response.payload.data))
        m.submodules.slots = slots = memory.Memory(shape=unsigned(word), depth=p.depth, init=[])
        m.submodules.finals = finals = memory.Memory(shape=1, depth=p.depth, init=[])
        write, read = slots.write_port(), slots.read_port()
        write_final, read_final = finals.write_port(), finals.read_port()
        # A slot's bit toggles with every word written: in even passes through the buffer 1 means
        # filled, in odd passes 0. So reading a slot need not clear its bit.
        filled = Signal(p.depth)
        present = Signal()  # the next word to read is in its slot
        take = Signal()  # it is read into the output register of the memory
        turn = Cat(emptied[:-1] == slot for slot in range(p.depth))  # its slot, one-hot
        m.d.comb += [
            response.ready.eq(1),
            write.en.eq(response.valid),
            write.addr.eq(response.payload.tag),
            write.data.eq(response.payload.data),
            write_final.en.eq(issue),
            write_final.addr.eq(requested[:-1]),
            write_final.data.eq(final),
            # The wrap bit of `emptied` says which pass this is.
            present.eq((filled & turn).any() ^ emptied[-1]),
            take.eq(present & (~o.valid | o.ready)),
            read.en.eq(take),
            read.addr.eq(emptied[:-1]),
            read_final.en.eq(take),
            read_final.addr.eq(emptied[:-1]),
            # The memories' read registers are the output register.
            Value.cast(o.payload.data).eq(read.data),
            o.payload.last.eq(read_final.data),
        ]
        arrived = Cat(response.valid & (response.payload.tag == slot) for slot in range(p.depth))
        m.d.sync += [filled.eq(filled ^ arrived), emptied.eq(emptied + take)]
        with m.If(~o.valid | o.ready):
            m.d.sync += o.valid.eq(present)
        return m
