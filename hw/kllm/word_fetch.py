"""Requests the weights of a vector's product as soon as its length is known (KLLM, Fig. 5)."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.kllm.command_dispatch import command_layouts
from hw.kllm.core_parameters import IN_FLIGHT, CoreParameters
from hw.stream.queue import Queue, QueueParameters
from hw.stream.sequential_reader import SequentialReader


class WordFetch(Component):
    """Pass vectors on, and for each set of columns read as many memory words as the vector has.

    ::

        x ─┬────────────────────────────────→ vector
           └→ words of W positions ─→ queue ─┐
        command ─────────────────────────────┴→ one read for each set ─→ SequentialReader ─→ words

    Latency: 0 cycles for vectors; 2 cycles from a vector's last beat to its first request, and then
    what :class:`SequentialReader` says. Throughput: a beat and a word each cycle.

    Handshake: ``x.ready`` and ``vector.valid`` follow ``vector.ready`` and ``x.valid``
    combinationally.

    Members
    -------
    x : :py:`In(stream.Signature(parameters.outlier_split.input_layout))`
        Vectors.
    vector : :py:`Out(stream.Signature(parameters.outlier_split.input_layout))`
        The same vectors.
    command : :py:`In(stream.Signature(command_layouts(parameters)["word_fetch"]))`
        First address of a product's words, and its number of sets.
    request : :py:`Out(stream.Signature(parameters.sequential_reader.request_layout))`
        To the memory.
    response : :py:`In(stream.Signature(sequential_reader.response_layout(word_layout)))`
        From the memory, in any order.
    words : :py:`Out(stream.Signature(sequential_reader.output_layout(word_layout)))`
        The products' words, set by set.
    """

    def __init__(self, parameters: CoreParameters):
        p = self._parameters = parameters
        reader = p.sequential_reader
        super().__init__(
            {
                "x": In(stream.Signature(p.outlier_split.input_layout)),
                "vector": Out(stream.Signature(p.outlier_split.input_layout)),
                "command": In(stream.Signature(command_layouts(p)["word_fetch"])),
                "request": Out(stream.Signature(reader.request_layout)),
                "response": In(stream.Signature(reader.response_layout(p.word_layout))),
                "words": Out(stream.Signature(reader.output_layout(p.word_layout))),
            }
        )

    @property
    def parameters(self) -> CoreParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        shape = range(p.beats + 1)
        size = QueueParameters(len(Signal(shape)), IN_FLIGHT)
        m.submodules.counts = counts = Queue(size, shape=Signal(shape).shape())
        m.submodules.reader = reader = SequentialReader(p.sequential_reader, p.word_layout)
        wiring.connect(m, reader.request, wiring.flipped(self.request))
        wiring.connect(m, wiring.flipped(self.response), reader.response)
        wiring.connect(m, reader.o, wiring.flipped(self.words))
        self._count(m, counts.i)
        self._read(m, counts.o, reader.command)
        return m

    def _count(self, m: Module, counts) -> None:
        """Queue the number of words of each vector that passes."""
        p, x, vector = self._parameters, self.x, self.vector
        beat = Signal(range(p.outlier_split.beats))
        part = Signal(range(max(2, p.counters)))  # beat within the word
        word = Signal(range(p.beats))
        taken = Signal()
        ended = Signal()
        # A vector waits for room in the queue of counts even where it does not end.
        m.d.comb += [
            vector.valid.eq(x.valid & counts.ready),
            x.ready.eq(vector.ready & counts.ready),
            Value.cast(vector.payload).eq(Value.cast(x.payload)),
            taken.eq(x.valid & x.ready),
            ended.eq(x.payload.last | (beat == p.outlier_split.beats - 1)),
            counts.valid.eq(taken & ended),
            counts.payload.eq(word + 1),
        ]
        with m.If(taken):
            m.d.sync += [beat.eq(beat + 1), part.eq(part + 1)]
            with m.If(part == p.counters - 1):
                m.d.sync += [part.eq(0), word.eq(word + 1)]
            with m.If(ended):
                m.d.sync += [beat.eq(0), part.eq(0), word.eq(0)]

    def _read(self, m: Module, counts, read) -> None:
        """Read the words of one set after the other; sets lie one behind the other in memory."""
        p, command = self._parameters, self.command
        following = Signal(p.address_width, reset_less=True)  # address of the next set
        number = Signal(range(1, p.sets + 1), init=1)  # of the set
        address = Signal(p.address_width)
        issue = Signal()
        final = Signal()
        # The first set starts at the command's address, each other one behind the set before.
        m.d.comb += [
            read.valid.eq(command.valid & counts.valid),
            read.payload.address.eq(address),
            read.payload.words.eq(counts.payload),
            address.eq(Mux(number == 1, command.payload.address, following)),
            final.eq(number == command.payload.sets),
            issue.eq(read.valid & read.ready),
            command.ready.eq(issue & final),
            counts.ready.eq(issue & final),
        ]
        with m.If(issue):
            m.d.sync += [
                following.eq(address + counts.payload),
                number.eq(Mux(final, 1, number + 1)),
            ]
