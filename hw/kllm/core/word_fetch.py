"""Reads a matrix ahead of the lanes, and once for all vectors of a batch (KLLM, Fig. 5)."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, wiring

from hw.component import Component
from hw.kllm.core.command_dispatch import command_layouts
from hw.kllm.core.core_parameters import IN_FLIGHT, CoreParameters
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
    ahead. A set's words are kept in their slots until the batch's last vector.

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
        scales = Signal(init=1)  # the next word is one of scales
        word = Signal(range(p.beats))
        number = Signal(range(1, p.sets + 1), init=1)  # of the set
        index = Signal(range(max(2, p.scale_sets)))  # of the set's scales
        following = Signal(p.address_width, reset_less=True)
        begin = Signal()  # the command's first word
        set_end = Signal()
        issue = Signal()
        final = Signal()
        m.d.comb += [
            # A command's queue entry is made with its first request, so output can begin before the
            # last.
            begin.eq(scales & (number == 1)),
            set_end.eq(~scales & (word == command.payload.words - 1)),
            final.eq(set_end & (number == command.payload.sets)),
            ask.valid.eq(command.valid & (repeats.i.ready | ~begin)),
            ask.payload.address.eq(Mux(begin, command.payload.address, following)),
            ask.payload.last.eq(scales | set_end),
            issue.eq(ask.valid & ask.ready),
            repeats.i.valid.eq(issue & begin),
            repeats.i.payload.sets.eq(command.payload.sets),
            repeats.i.payload.vectors.eq(command.payload.vectors),
            command.ready.eq(issue & final),
        ]
        with m.If(issue):
            m.d.sync += [following.eq(ask.payload.address + 1), scales.eq(0)]
            with m.If(~scales):
                m.d.sync += word.eq(Mux(set_end, 0, word + 1))
            with m.If(final):
                m.d.sync += [number.eq(1), index.eq(0), scales.eq(1)]
            with m.Elif(set_end):
                block_end = index == p.scale_sets - 1
                m.d.sync += [
                    number.eq(number + 1),
                    index.eq(Mux(block_end, 0, index + 1)),
                    scales.eq(block_end),
                ]
        return repeats

    def _output(self, m: Module, slots: ReorderBuffer, repeats: Queue) -> None:
        """Keep words of scales, and output words of weights for each vector."""
        p, words, command = self.parameters, self.words, repeats.o
        scales = Signal(init=1)  # the next run is a word of scales
        # A set's words are output once for each vector of the batch, from the same slots.
        vector = Signal(range(1, p.vectors + 1), init=1)
        number = Signal(range(1, p.sets + 1), init=1)
        index = Signal(range(max(2, p.scale_sets)))
        vector_end = Signal()  # the run's last vector
        final = Signal()
        m.d.comb += [
            vector_end.eq(vector == command.payload.vectors),
            # Weights are read from memory once for a batch: the reorder buffer keeps a set's words
            # until the last vector has used them.
            slots.again.eq(~scales & ~vector_end),
            final.eq(slots.run_end & ~scales & vector_end & (number == command.payload.sets)),
            command.ready.eq(final),
        ]
        # A word of scales is a run of one word and is not repeated.
        with m.If(slots.run_end & scales):
            m.d.sync += scales.eq(0)
        with m.If(slots.run_end & ~scales):
            m.d.sync += vector.eq(Mux(vector_end, 1, vector + 1))
            with m.If(final):
                m.d.sync += [number.eq(1), index.eq(0), scales.eq(1)]
            # After `scale_sets` sets the next word is one of scales again.
            with m.Elif(vector_end):
                block_end = index == p.scale_sets - 1
                m.d.sync += [
                    number.eq(number + 1),
                    index.eq(Mux(block_end, 0, index + 1)),
                    scales.eq(block_end),
                ]
        # Beside the word at the output: whether it is of scales, else the place of its set's.
        has_scales = Signal()
        at = Signal.like(index, reset_less=True)
        with m.If(slots.take):
            m.d.sync += [has_scales.eq(scales), at.eq(index)]
        # The word of scales is kept in a register and not output; a set selects its part.
        width = len(Value.cast(words.payload.scale))
        kept = Signal(width * p.scale_sets, reset_less=True)
        with m.If(slots.o.valid & has_scales):
            m.d.sync += kept.eq(Value.cast(slots.o.payload.data))
        m.d.comb += [
            words.valid.eq(slots.o.valid & ~has_scales),
            slots.o.ready.eq(has_scales | words.ready),
            Value.cast(words.payload.weight).eq(Value.cast(slots.o.payload.data)),
        ]
        with m.Switch(at):
            for n in range(p.scale_sets):
                with m.Case(n) if n < p.scale_sets - 1 else m.Default():
                    m.d.comb += Value.cast(words.payload.scale).eq(kept.word_select(n, width))


def fetched_layout(p: CoreParameters) -> data.StructLayout:
    """A word of a set, ``weight``, and the ``scale`` of each of its columns."""
    return data.StructLayout({"weight": p.word_layout, "scale": p.scale_layout})
