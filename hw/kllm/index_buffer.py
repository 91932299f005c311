"""Stores a vector's indices and outputs them for every column (KLLM, Fig. 5)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data

from hw.component import Component
from hw.kllm.core.replay_memory import ReplayMemory, ReplayMemoryParameters
from hw.layout import FLAG, count, index, mask
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class IndexBufferParameters(Parameters):
    """
    k
        K: indices of the longest vector.
    bits
        Bits of an index.
    lanes
        Indices in one input beat.
    segment
        W: indices in one word, a multiple of `lanes`.
    columns
        Most columns for which a batch's words are output.
    vectors
        Most vectors of a batch.
    tag_bits
        Bits of a batch's tag.
    """

    k: int = 576
    bits: int = 4
    lanes: int = 16
    segment: int = 80
    columns: int = 1536
    vectors: int = 1
    tag_bits: int = 3

    def __post_init__(self):
        for name in ("k", "bits", "lanes", "columns", "vectors", "tag_bits"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))
        multiple = self.segment >= 1 and self.segment % self.lanes == 0
        require(multiple, f"segment must be a multiple of lanes = {self.lanes}", self.segment)

    @classmethod
    def presets(cls) -> dict[str, "IndexBufferParameters"]:
        return {
            "small": cls(k=22, bits=2, lanes=4, segment=8, columns=5, vectors=3),
            "default": cls(),
            "paper": cls(k=4096, segment=512, columns=4096, vectors=8),
        }

    @property
    def parts(self) -> int:
        """Input beats in one word."""
        return self.segment // self.lanes

    @property
    def words(self) -> int:
        """Words of the longest vector."""
        return -(-self.k // self.segment)

    @cached_property
    def replay_memory(self) -> ReplayMemoryParameters:
        # Indices, mask, and in the last part of a word whether it is its vector's last word.
        part_width = self.lanes * (self.bits + 1) + 1
        rows = self.words * self.vectors
        return ReplayMemoryParameters(rows, self.parts, part_width, self.columns)

    @property
    def latency(self) -> int:
        """Cycles from a batch's last input beat accepted to its first word."""
        return self.replay_memory.latency

    def cycles(self, beats: list[int], words: list[int]) -> int:
        """Cycles from the first beat offered to the last word accepted, when nothing stalls.

        beats, words
            Input beats of each batch, and words that are output of it, all columns together; at
            least one of the last batch.
        """
        return self.replay_memory.cycles(beats, words)

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """``index`` in order of position, mask ``keep`` of inliers.

        ``last`` beat of a vector; with it, ``end``: the vector is its batch's last.
        """
        indices = data.ArrayLayout(index(self.bits), self.lanes)
        return data.StructLayout(
            {"index": indices, "keep": mask(self.lanes), "last": FLAG, "end": FLAG}
        )

    @cached_property
    def replay_layout(self) -> data.StructLayout:
        """Number of ``columns`` for which a batch is output, and a ``tag`` for all its words."""
        columns, tag = count(range(self.columns + 1)), mask(self.tag_bits)
        return data.StructLayout({"columns": columns, "tag": tag})

    @cached_property
    def output_layout(self) -> data.StructLayout:
        """One word.

        ``index``, ``keep``; ``last`` word of the vector; ``end``: the last word of the batch, for
        the last column; the replay's ``tag``.
        """
        return data.StructLayout(
            {
                "index": data.ArrayLayout(index(self.bits), self.segment),
                "keep": data.ArrayLayout(mask(1), self.segment),
                "last": FLAG,
                "end": FLAG,
                "tag": mask(self.tag_bits),
            }
        )


class IndexBuffer(Component[IndexBufferParameters]):
    """Gather a vector's indices in words of W, and output the words for every column.

    ::

        i ─→ ReplayMemory ─→ o, column after column

    A vector ends with ``last`` or with the beat that makes it K long. Positions of its last word
    after that beat are not kept, and repeat the beat's indices. Vectors up to one with ``end`` are
    a batch, of at most `vectors`: all of them are output for a column, then for the next. One batch
    is gathered while the one before is output. For each batch `replay` gives the number of columns;
    it is accepted with the last word, and 0 columns drop the batch.

    Latency: 2 cycles from the end of a batch to its first word. Throughput: a beat in and a word
    out each cycle, from column to column and from batch to batch without a gap.

    Handshake: ``o.valid`` and ``o.payload`` are registers, ``i.ready`` depends on registers,
    ``replay.ready`` follows ``o.ready`` combinationally. The memory has a synchronous read port.
    Overflow: none.

    Examples
    --------
    >>> from hw.kllm.index_buffer import IndexBuffer, IndexBufferParameters
    >>> parameters = IndexBufferParameters(k=576, bits=4, lanes=16, segment=80)
    >>> parameters.words, parameters.parts
    (8, 5)
    >>> parameters.cycles([36], [8 * 100])  # 576 indices in, out for 100 columns
    837
    """

    summary = "Indices of a vector in words, output for every column"
    source = "KLLM, Fig. 5"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Vectors in order of position."),
            "replay": stream_in(p.replay_layout, "For each vector, its number of columns."),
            "o": stream_out(p.output_layout, "Words."),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.words = words = ReplayMemory(self.parameters.replay_memory)
        self._gather(m, words)
        self._output(m, words)
        return m

    def _gather(self, m: Module, words: ReplayMemory) -> None:
        """Write each beat to its part of the word.

        A beat is also written, as not kept, to all later parts; their own beats then replace it::

            beat 0      | 0 | 0 | 0 | 0 |     keep in part 0 only
            beat 1      | 0 | 1 | 1 | 1 |     keep in parts 0, 1
        """
        p, i = self.parameters, self.i
        part = Signal(range(max(2, p.parts)))
        fire = Signal()
        word = Signal(range(p.words))
        word_end = Signal()
        # A vector may end early, with `last`, or by filling all its words.
        done = Signal()  # the beat is its vector's last
        m.d.comb += [
            i.ready.eq(words.room),
            fire.eq(i.valid & i.ready),
            done.eq(i.payload.last | ((part == p.parts - 1) & (word == p.words - 1))),
            word_end.eq(done | (part == p.parts - 1)),
            words.row_end.eq(fire & word_end),
            words.batch_end.eq(fire & done & i.payload.end),
        ]
        for n in range(p.parts):
            keep = i.payload.keep & (part == n).replicate(p.lanes)
            # The flag `done` is stored with each part; the last part's is the word's.
            beat = Cat(i.payload.index.as_value(), keep, done)
            m.d.comb += [
                # The beat is written to its own part and to all later ones; the last part always is
                # one of them.
                # So a vector that ends within a word leaves no old indices in its rest, without a
                # cycle to clear.
                words.enable[n].eq(fire if n == p.parts - 1 else fire & (part <= n)),
                words.data.word_select(n, len(beat)).eq(beat),
            ]
        with m.If(fire):
            m.d.sync += part.eq(Mux(word_end, 0, part + 1))
            with m.If(word_end):
                m.d.sync += word.eq(Mux(done, 0, word + 1))

    def _output(self, m: Module, words: ReplayMemory) -> None:
        """Output the words; the tag accompanies them in a register."""
        p, o, replay = self.parameters, self.o, self.replay
        word = words.o.payload
        m.d.comb += [
            # Each set of columns reads all words of the batch once more.
            words.columns.valid.eq(replay.valid),
            words.columns.payload.eq(replay.payload.columns),
            replay.ready.eq(words.columns.ready),
            o.valid.eq(words.o.valid),
            words.o.ready.eq(o.ready),
            o.payload.last.eq(word.row[-1]),
            o.payload.end.eq(word.last & word.end),
        ]
        for n in range(p.parts):
            beat = word.row.word_select(n, p.lanes * (p.bits + 1) + 1)[:-1]
            indices = o.payload.index.as_value().word_select(n, p.lanes * p.bits)
            keep = o.payload.keep.as_value().word_select(n, p.lanes)
            m.d.comb += Cat(indices, keep).eq(beat)
        # The tag belongs to a whole replay, so it changes only between words.
        with m.If(~o.valid | o.ready):
            m.d.sync += o.payload.tag.eq(replay.payload.tag)
