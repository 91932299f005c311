"""Reads a matrix ahead of the lanes, and once for all vectors of a batch (KLLM, Fig. 5)."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, wiring

from hw.component import Component
from hw.kllm.core.command_dispatch import command_layouts
from hw.kllm.core.core_parameters import IN_FLIGHT, CoreParameters
from hw.kllm.product_table import from_one
from hw.ports import Ports, stream_in, stream_out
from hw.stream.queue import Queue, QueueParameters
from hw.stream.reorder_buffer import ReorderBuffer


class WordFetch(Component[CoreParameters]):
    """Read the words of each set of columns, and output them once for every vector of a batch.

    ::

        memory, from the command's address   | scales | set 0 | set 1 | … | scales | set S | …

        command ─→ addresses ─→ request ┄ memory ┄ response ─→ slots ─┬─→ words, set by set
                                                    scales register ←─┘

    A word of scales has the scales of the next S sets, `scale_sets`; the words of a set follow one
    another. Words are requested as soon as the command is there and a slot is free, up to `depth`
    ahead. A set's words are kept in their slots until the batch's last vector. The words of at most
    `IN_FLIGHT` commands may be requested and not all output.

    Latency: with a memory that responds L cycles after a request, L + 3 cycles from a command to
    its first word. Throughput: a word a cycle while L is at most `depth` - 2 and the memory gives
    one; a word of scales takes a cycle too. Handshake: ``words.valid`` depends on registers only.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(
                command_layouts(p)["word_fetch"],
                "First address of a product's words, words of a set, sets, and vectors.",
            ),
            **p.memory.ports(reads_only=True),
            "words": stream_out(
                fetched_layout(p), "The products' words with their columns' scales."
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        shape = p.word_layout
        m.submodules.reorder = slots = ReorderBuffer(p.depth, p.address_width, shape, repeat=True)
        wiring.connect(m, slots.request, wiring.flipped(self.request))
        wiring.connect(m, wiring.flipped(self.response), slots.response)
        repeats = self._request(m, slots)
        self._output(m, slots, repeats)
        return m

    def _request(self, m: Module, slots: ReorderBuffer):
        """Request a command's words; returns the queue of commands whose words are output."""
        p, command, ask = self.parameters, self.command, slots.i
        layout = data.StructLayout(
            {name: command.payload.shape()[name].shape for name in ("sets", "vectors")}
        )
        size = QueueParameters(layout.size, IN_FLIGHT)
        m.submodules.repeats = repeats = Queue(size, shape=layout)
        begin = Signal(init=1)  # the next word is the command's first
        scales = Signal(init=1)  # the next word is one of scales
        word = from_one(p.beats, "word")  # its number in the set
        number = from_one(p.sets, "set_number")
        following = Signal(p.address_width, reset_less=True)
        set_end = Signal()
        issue = Signal()
        final = Signal()
        m.d.comb += [
            set_end.eq(~scales & (word == command.payload.words[: len(word)])),
            final.eq(set_end & (number == command.payload.sets[: len(number)])),
            ask.valid.eq(command.valid),
            ask.payload.address.eq(Mux(begin, command.payload.address, following)),
            ask.payload.last.eq(scales | set_end),
            issue.eq(ask.valid & ask.ready),
            # A command's queue entry is made with its first request, so output can begin before the
            # last. Its queue has room, because no more than IN_FLIGHT products are in flight.
            repeats.i.valid.eq(issue & begin),
            repeats.i.payload.sets.eq(command.payload.sets),
            repeats.i.payload.vectors.eq(command.payload.vectors),
            command.ready.eq(issue & final),
        ]
        with m.If(issue):
            m.d.sync += [
                following.eq(ask.payload.address + 1),
                begin.eq(final),
                scales.eq(final | (set_end & self._block_end(number))),
            ]
            with m.If(~scales):
                m.d.sync += word.eq(word + 1)
            with m.If(set_end):
                m.d.sync += [word.eq(1), number.eq(number + 1)]
            with m.If(final):
                m.d.sync += number.eq(1)
        return repeats

    def _block_end(self, number: Value) -> Value:
        """Whether the next word after that set, counted from 1, is one of scales."""
        return ~number[: self.parameters.scale_sets.bit_length() - 1].any()

    def _output(self, m: Module, slots: ReorderBuffer, repeats: Queue) -> None:
        """Keep words of scales, and output words of weights for each vector."""
        p, words, command = self.parameters, self.words, repeats.o
        scales = Signal(init=1)  # the next run is a word of scales
        # A set's words are output once for each vector of the batch, from the same slots.
        vector = from_one(p.vectors, "vector")
        number = from_one(max(p.sets, p.scale_sets), "number")  # its lowest bits are `at`
        vector_end = Signal()  # the run's last vector
        set_end = Signal()
        final = Signal()
        m.d.comb += [
            vector_end.eq(vector == command.payload.vectors[: len(vector)]),
            # Weights are read from memory once for a batch: the reorder buffer keeps a set's words
            # until the last vector has used them.
            slots.again.eq(~scales & ~vector_end),
            set_end.eq(slots.run_end & ~scales & vector_end),
            final.eq(set_end & (number == command.payload.sets[: len(number)])),
            command.ready.eq(final),
        ]
        # A word of scales is a run of one word and is not repeated; after `scale_sets` sets the
        # next word is one again.
        with m.If(slots.run_end):
            m.d.sync += scales.eq(final | (set_end & self._block_end(number)))
        with m.If(slots.run_end & ~scales):
            m.d.sync += vector.eq(vector + 1)
        with m.If(set_end):
            m.d.sync += [vector.eq(1), number.eq(number + 1)]
        with m.If(final):
            m.d.sync += number.eq(1)
        # Beside the word at the output: whether it is of scales, else the lowest bits of its set.
        has_scales = Signal()
        at = Signal(max(1, p.scale_sets.bit_length() - 1), reset_less=True)
        with m.If(slots.take):
            m.d.sync += [has_scales.eq(scales), at.eq(number)]
        # The word of scales is kept in a register and not output; a set selects its part.
        width = len(Value.cast(words.payload.scale))
        kept = Signal(width * p.scale_sets, reset_less=True)
        with m.If(has_scales):
            m.d.sync += kept.eq(Value.cast(slots.o.payload.data))
        m.d.comb += [
            words.valid.eq(slots.o.valid & ~has_scales),
            slots.o.ready.eq(has_scales | words.ready),
            Value.cast(words.payload.weight).eq(Value.cast(slots.o.payload.data)),
        ]
        # Sets are counted from 1, so the last part belongs to the set whose lowest bits are 0.
        with m.Switch(at):
            for n in range(p.scale_sets):
                with m.Case(n + 1) if n < p.scale_sets - 1 else m.Default():
                    m.d.comb += Value.cast(words.payload.scale).eq(kept.word_select(n, width))


def fetched_layout(p: CoreParameters) -> data.StructLayout:
    """A word of a set, ``weight``, and the ``scale`` of each of its columns."""
    return data.StructLayout({"weight": p.word_layout, "scale": p.scale_layout})
