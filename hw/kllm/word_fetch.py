"""The weights of a vector's product, asked for as soon as its length is known (KLLM, Fig. 5)."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.kllm.core_parameters import IN_FLIGHT, CoreParameters
from hw.kllm.job_dispatch import order_layouts
from hw.stream.queue import Queue, QueueParameters
from hw.stream.sequential_reader import SequentialReader


class WordFetch(Component):
    """Pass vectors on, and read as many words of the memory for each set as a vector takes.

    ::

        x ─┬────────────────────────────────→ vector
           └→ words of W positions ─→ queue ─┐
        order ───────────────────────────────┴→ a command a set ─→ SequentialReader ─→ words

    Latency: none for vectors; 2 cycles from a vector's last beat to its first request, and then
    what :class:`SequentialReader` says. Throughput: a beat and a word each cycle.

    Handshake: ``x.ready`` and ``vector.valid`` follow ``vector.ready`` and ``x.valid``.

    Members
    -------
    x : :py:`In(stream.Signature(parameters.splitting.input_layout))`
        Vectors.
    vector : :py:`Out(stream.Signature(parameters.splitting.input_layout))`
        The same.
    order : :py:`In(stream)`
        Where a product's words are and how many sets it has, as :func:`order_layouts` says.
    request : :py:`Out(stream.Signature(parameters.reading.request_layout))`
        To the memory.
    response : :py:`In(stream.Signature(parameters.reading.response_layout(word_layout)))`
        From the memory, in any order.
    words : :py:`Out(stream.Signature(parameters.reading.output_layout(word_layout)))`
        The products' words, set by set.
    """

    def __init__(self, parameters: CoreParameters):
        p = self._parameters = parameters
        reading = p.reading
        super().__init__(
            {
                "x": In(stream.Signature(p.splitting.input_layout)),
                "vector": Out(stream.Signature(p.splitting.input_layout)),
                "order": In(stream.Signature(order_layouts(p)["fetch"])),
                "request": Out(stream.Signature(reading.request_layout)),
                "response": In(stream.Signature(reading.response_layout(p.word_layout))),
                "words": Out(stream.Signature(reading.output_layout(p.word_layout))),
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
        m.submodules.reader = reader = SequentialReader(p.reading, p.word_layout)
        wiring.connect(m, reader.request, wiring.flipped(self.request))
        wiring.connect(m, wiring.flipped(self.response), reader.response)
        wiring.connect(m, reader.o, wiring.flipped(self.words))
        self._count(m, counts.i)
        self._command(m, counts.o, reader.command)
        return m

    def _count(self, m: Module, counts) -> None:
        """Count the words of each vector that passes."""
        p, x, vector = self._parameters, self.x, self.vector
        beat = Signal(range(p.splitting.beats))
        part = Signal(range(max(2, p.counters)))
        word = Signal(range(p.beats))
        taken = Signal()
        ended = Signal()
        m.d.comb += [
            vector.valid.eq(x.valid & counts.ready),
            x.ready.eq(vector.ready & counts.ready),
            Value.cast(vector.payload).eq(Value.cast(x.payload)),
            taken.eq(x.valid & x.ready),
            ended.eq(x.payload.last | (beat == p.splitting.beats - 1)),
            counts.valid.eq(taken & ended),
            counts.payload.eq(word + 1),
        ]
        with m.If(taken):
            m.d.sync += [beat.eq(beat + 1), part.eq(part + 1)]
            with m.If(part == p.counters - 1):
                m.d.sync += [part.eq(0), word.eq(word + 1)]
            with m.If(ended):
                m.d.sync += [beat.eq(0), part.eq(0), word.eq(0)]

    def _command(self, m: Module, counts, command) -> None:
        """Ask for the words of one set after the other."""
        p, order = self._parameters, self.order
        following = Signal(p.address_width, reset_less=True)
        asked = Signal(range(1, p.sets + 1), init=1)
        address = Signal(p.address_width)
        ask = Signal()
        final = Signal()
        m.d.comb += [
            command.valid.eq(order.valid & counts.valid),
            command.payload.address.eq(address),
            command.payload.words.eq(counts.payload),
            address.eq(Mux(asked == 1, order.payload.address, following)),
            final.eq(asked == order.payload.sets),
            ask.eq(command.valid & command.ready),
            order.ready.eq(ask & final),
            counts.ready.eq(ask & final),
        ]
        with m.If(ask):
            m.d.sync += [
                following.eq(address + counts.payload),
                asked.eq(Mux(final, 1, asked + 1)),
            ]
