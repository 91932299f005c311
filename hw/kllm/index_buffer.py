"""A vector's indices, gathered once and read again for every column (KLLM, Fig. 5)."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.parameters import Parameters, require


@dataclasses.dataclass(frozen=True)
class IndexBufferParameters(Parameters):
    """
    k
        K: indices of the longest vector.
    bits
        Of an index.
    lanes
        Indices in one input beat.
    segment
        W: indices in one word, a multiple of `lanes`.
    columns
        Most columns for which a vector's words are given out.
    """

    k: int = 576
    bits: int = 4
    lanes: int = 16
    segment: int = 80
    columns: int = 1536

    def __post_init__(self):
        for name in ("k", "bits", "lanes", "columns"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))
        multiple = self.segment >= 1 and self.segment % self.lanes == 0
        require(multiple, f"segment must be a multiple of lanes = {self.lanes}", self.segment)

    @classmethod
    def presets(cls) -> dict[str, "IndexBufferParameters"]:
        return {
            "small": cls(k=22, bits=2, lanes=4, segment=8, columns=5),
            "default": cls(),
            "paper": cls(k=4096, segment=512, columns=4096),
        }

    @property
    def parts(self) -> int:
        """Input beats in one word."""
        return self.segment // self.lanes

    @property
    def words(self) -> int:
        """Words of the longest vector."""
        return -(-self.k // self.segment)

    @property
    def latency(self) -> int:
        """Cycles from a vector's last input beat, once taken, to its first word."""
        return 2

    def cycles(self, beats: list[int], replays: list[int]) -> int:
        """Cycles from the first beat offered to the last word taken, when nothing stalls.

        For vectors of so many input beats and of so many words to give out, all columns together;
        the last of them at least one.
        """
        gathered = replayed = 0  # cycles when the last vector was
        freed = [0, 0]  # when each half of the memory was given out
        for number, (count, replay) in enumerate(zip(beats, replays, strict=True)):
            gathered = max(gathered, freed[number % 2]) + count
            replayed = max(gathered, replayed) + max(1, replay)
            freed[number % 2] = replayed
        return replayed + 1

    @property
    def input_layout(self) -> data.StructLayout:
        """``index`` in order of position, ``keep`` which of them count, ``last`` beat."""
        index = data.ArrayLayout(self.bits, self.lanes)
        return data.StructLayout({"index": index, "keep": self.lanes, "last": 1})

    @property
    def replay_layout(self) -> data.StructLayout:
        """How to give a vector out: for so many ``columns``, with ``tag`` beside each word."""
        return data.StructLayout({"columns": range(self.columns + 1), "tag": 3})

    @property
    def output_layout(self) -> data.StructLayout:
        """One word.

        ``index``, ``keep``; ``last`` of the column, ``end`` of a word of the last column; the
        replay's ``tag``.
        """
        return data.StructLayout(
            {
                "index": data.ArrayLayout(self.bits, self.segment),
                "keep": data.ArrayLayout(1, self.segment),
                "last": 1,
                "end": 1,
                "tag": 3,
            }
        )


class IndexBuffer(Component):
    """Gather a vector's indices in words of W, and give the words out for every column.

    ::

        i ─→ memory, one half ─┐
             memory, other half ─→ o, again and again

    A vector ends with ``last`` or with the beat that fills its half. Positions of a word behind
    that beat are not kept, and hold its indices again. One vector is gathered while the one before
    it is given out. For each, `replay` says how often; it is taken with the last word, and 0
    columns drop the vector.

    Latency: 2 cycles from the end of a vector to its first word. Throughput: a beat in and a word
    out each cycle, from column to column and from vector to vector without a gap.

    Handshake: ``o.valid`` and ``o.payload`` are registers, ``i.ready`` depends on registers,
    ``replay.ready`` follows ``o.ready`` combinationally. The memory has a synchronous read port.

    Members
    -------
    i : :py:`In(stream.Signature(parameters.input_layout))`
        Vectors in order of position.
    replay : :py:`In(stream.Signature(parameters.replay_layout))`
        How to give them out.
    o : :py:`Out(stream.Signature(parameters.output_layout))`
        Words.
    """

    summary = "A vector's indices in words, given out for every column"
    source = "KLLM, Fig. 5"

    def __init__(self, parameters: IndexBufferParameters):
        self._parameters = parameters
        super().__init__(
            {
                "i": In(stream.Signature(parameters.input_layout)),
                "replay": In(stream.Signature(parameters.replay_layout)),
                "o": Out(stream.Signature(parameters.output_layout)),
            }
        )

    @property
    def parameters(self) -> IndexBufferParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        part_width = p.lanes * (p.bits + 1)
        m.submodules.words = words = memory.Memory(
            shape=unsigned(p.parts * part_width), depth=2 * p.words, init=[]
        )
        full = Signal(2)
        ends = [Signal(range(2 * p.words), name=f"end_{half}", reset_less=True) for half in (0, 1)]
        gathering = Signal()  # the half that is written
        finished, row = self._gather(m, words.write_port(granularity=part_width), gathering, full)
        freed = self._give(m, words.read_port(), full, ends)
        for half in (0, 1):
            with m.If(finished & (gathering == half)):
                m.d.sync += [full[half].eq(1), ends[half].eq(row)]
            with m.Elif(freed[half]):
                m.d.sync += full[half].eq(0)
        return m

    def _gather(self, m: Module, port, gathering: Signal, full: Signal) -> tuple[Signal, Signal]:
        """Write beats; whether a vector ends, and the word it ends in."""
        p, i = self._parameters, self.i
        row = Signal(range(2 * p.words))
        part = Signal(range(max(2, p.parts)))
        taken = Signal()
        word_end = Signal()
        finished = Signal()
        full_at = Mux(gathering, 2 * p.words - 1, p.words - 1)
        m.d.comb += [
            i.ready.eq(~Mux(gathering, full[1], full[0])),
            taken.eq(i.valid & i.ready),
            word_end.eq(part == p.parts - 1),
            finished.eq(taken & (i.payload.last | (word_end & (row == full_at)))),
            port.addr.eq(row),
        ]
        # A beat also empties the parts behind it, which their own beats then fill.
        for n in range(p.parts):
            keep = i.payload.keep & (part == n).replicate(p.lanes)
            m.d.comb += [
                port.en[n].eq(taken if n == p.parts - 1 else taken & (part <= n)),
                port.data.word_select(n, p.lanes * (p.bits + 1)).eq(
                    Cat(i.payload.index.as_value(), keep)
                ),
            ]
        with m.If(taken):
            m.d.sync += part.eq(Mux(finished | word_end, 0, part + 1))
        with m.If(finished):
            m.d.sync += [row.eq(Mux(gathering, 0, p.words)), gathering.eq(~gathering)]
        with m.Elif(taken & word_end):
            m.d.sync += row.eq(row + 1)
        return finished, row

    def _give(self, m: Module, port, full: Signal, ends: list[Signal]) -> Signal:
        """Read the words, column by column; which half is freed."""
        p, o = self._parameters, self.o
        giving = Signal()  # the half that is read
        row = Signal(range(2 * p.words))
        column = Signal(range(1, p.columns + 1), init=1)
        freed = Signal(2)
        here = Signal()
        last_row = Signal()
        nothing = Signal()
        vector_end = Signal()
        taken = Signal()
        columns = self.replay.payload.columns
        room = Signal()
        m.d.comb += [
            here.eq(Mux(giving, full[1], full[0]) & self.replay.valid),
            room.eq(~o.valid | o.ready),
            last_row.eq(row == Mux(giving, ends[1], ends[0])),
            nothing.eq(columns == 0),
            taken.eq(here & ~nothing & room),
            vector_end.eq((taken & last_row & (column == columns)) | (here & nothing)),
            self.replay.ready.eq(vector_end),
            port.en.eq(taken),
            port.addr.eq(row),
            freed.eq(Cat(vector_end & ~giving, vector_end & giving)),
        ]
        part = p.lanes * (p.bits + 1)
        for n in range(p.parts):
            word = port.data.word_select(n, part)
            index = o.payload.index.as_value().word_select(n, p.lanes * p.bits)
            keep = o.payload.keep.as_value().word_select(n, p.lanes)
            m.d.comb += [index.eq(word[: p.lanes * p.bits]), keep.eq(word[p.lanes * p.bits :])]
        with m.If(room):
            m.d.sync += o.valid.eq(taken)
        with m.If(taken):
            m.d.sync += [
                row.eq(row + 1),
                o.payload.last.eq(last_row),
                o.payload.end.eq(column == columns),
                o.payload.tag.eq(self.replay.payload.tag),
            ]
            with m.If(last_row):
                m.d.sync += [row.eq(Mux(giving, p.words, 0)), column.eq(column + 1)]
        with m.If(vector_end):
            m.d.sync += [row.eq(Mux(giving, 0, p.words)), column.eq(1), giving.eq(~giving)]
        return freed
