"""Chosen rows from memory to the lanes: K of all, the rest, then V of all, decoded to FP16."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory, wiring

from hw.arith.float_format import FP16
from hw.component import Component
from hw.layout import FLAG, count, index
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.memory_port import MemoryPort
from hw.stream.queue import Queue, QueueParameters
from hw.stream.reorder_buffer import ReorderBuffer
from hw.tsuru.row_format import RowFormat, fine_to_float
from hw.tsuru.row_search import MOST_SINKS

WAITING = 2
"""Batches whose rows are on their way, at most."""


@dataclasses.dataclass(frozen=True)
class RowSupplyParameters(Parameters):
    """
    d
        Elements of a row: a power of two from 8 to 256.
    capacity
        Rows of a kv head: a power of two from 16 to 4096.
    head_bits
        Width of a kv head's index.
    parallel
        Scores of the rest: query heads of a batch, at most d.
    sinks
        Rows at the start that are exact, 0 to 2.
    kept
        Rows whose V waits on the chip while K is read, 2 to `capacity`. V of further rows is read
        once more.
    depth
        Words requested and not yet used: a power of two, at least 4.
    key_fraction, value_fraction
        As of :class:`hw.tsuru.row_format.RowFormat`.
    """

    d: int = 64
    capacity: int = 1024
    head_bits: int = 2
    parallel: int = 3
    sinks: int = 1
    kept: int = 128
    depth: int = 16
    key_fraction: int = 4
    value_fraction: int = 4

    def __post_init__(self):
        power = 8 <= self.d <= 256 and not self.d & self.d - 1
        require(power, "d must be a power of two from 8 to 256", self.d)
        power = 16 <= self.capacity <= 4096 and not self.capacity & self.capacity - 1
        require(power, "capacity must be a power of two from 16 to 4096", self.capacity)
        require(self.head_bits >= 1, "head_bits must be at least 1", self.head_bits)
        rule = f"parallel must be between 1 and {self.d} (d)"
        require(1 <= self.parallel <= self.d, rule, self.parallel)
        rule = f"sinks must be between 0 and {MOST_SINKS}"
        require(0 <= self.sinks <= MOST_SINKS, rule, self.sinks)
        rule = f"kept must be between 2 and {self.capacity} (capacity)"
        require(2 <= self.kept <= self.capacity, rule, self.kept)
        power = self.depth >= 4 and not self.depth & self.depth - 1
        require(power, "depth must be a power of two from 4", self.depth)
        _ = self.format

    @classmethod
    def presets(cls) -> dict[str, "RowSupplyParameters"]:
        return {
            "small": cls(d=8, capacity=32, head_bits=1, parallel=2, kept=4, depth=8),
            "default": cls(),
            "wide": cls(d=128, capacity=4096, head_bits=3, parallel=4, kept=512, depth=64),
        }

    @cached_property
    def format(self) -> RowFormat:
        return RowFormat(self.d, self.key_fraction, self.value_fraction)

    @property
    def row_bits(self) -> int:
        return (self.capacity - 1).bit_length()

    @property
    def sinks_address(self) -> int:
        """Of V of the first sink, in a kv head's first half."""
        return self.capacity // 2

    @property
    def mean_address(self) -> int:
        """Of the mean of V."""
        return self.capacity // 2 + self.capacity // 4

    @cached_property
    def memory(self) -> MemoryPort:
        """The memory, of which only words are read: | kv head | row | of a row, sinks' K among
        them, is in a kv head's second half."""
        row = data.ArrayLayout(FP16, self.d)
        return MemoryPort(index(range(self.depth)), self.row_bits + 1 + self.head_bits, row)

    @cached_property
    def batch_layout(self) -> data.StructLayout:
        """``sinks`` that a `kv_head` has, and whether it has ``more`` rows."""
        sinks = count(range(self.sinks + 1))
        return data.StructLayout({"kv_head": index(self.head_bits), "sinks": sinks, "more": FLAG})

    @cached_property
    def chosen_layout(self) -> data.StructLayout:
        """The number of a ``row``, and whether it is the batch's ``last``."""
        return data.StructLayout({"row": index(self.row_bits), "last": FLAG})

    @cached_property
    def rest_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(FP16, self.parallel)

    @cached_property
    def rows_layout(self) -> data.StructLayout:
        """``data`` of a row, ``last`` of a batch's K or V; the ``rest`` has scores as elements."""
        row = data.ArrayLayout(FP16, self.d)
        return data.StructLayout({"data": row, "last": FLAG, "rest": FLAG})


class RowSupply(Component[RowSupplyParameters]):
    """For each batch: K of sinks and of chosen rows, the rest; V of the same, the mean of V.

    ::

        i: row numbers ─→ requests ┄┄ memory ┄┄→ reorder buffer ─┬→ K ───→ decode ─→ o
              └→ numbers beyond `kept`, once more ↑              └→ V of `kept` rows ↑

    Lanes need all K of a batch before any V. A row's word has both, so V of the first `kept` rows
    waits on the chip, and only V of further rows is read once more: a batch of n chosen rows and s
    sinks reads n + max(0, n - `kept`) + 2 s + 1 words. The requests of a batch's V and of the next
    one's K run ahead of the lanes by up to `depth` words.

    Sinks and the mean are FP16; other rows are codes, which :func:`fine_to_float` decodes exactly.

    Latency: a row a cycle after its word. Throughput: a row a cycle; a cycle between batches.

    Handshake: ``response.ready`` is always high. `rest` is accepted after a batch's last K.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "batch": stream_in(p.batch_layout, "Batches."),
            "i": stream_in(p.chosen_layout, "Chosen rows of a batch, without sinks."),
            "rest": stream_in(p.rest_layout, "Scores of the rest, of each batch."),
            **p.memory.ports(reads_only=True),
            "o": stream_out(p.rows_layout, "Rows for the lanes."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        row = data.ArrayLayout(FP16, p.d)
        m.submodules.reorder = reorder = ReorderBuffer(p.depth, p.memory.address_width, row)
        layout = data.StructLayout({"sinks": count(range(p.sinks + 1)), "more": FLAG})
        m.submodules.batches = batches = Queue(QueueParameters(depth=WAITING), shape=layout)
        wiring.connect(m, reorder.request, wiring.flipped(self.request))
        wiring.connect(m, wiring.flipped(self.response), reorder.response)
        self._fetch(m, reorder.i, batches.i)
        self._feed(m, reorder.o, batches.o)
        return m

    def _fetch(self, m: Module, issue, batches) -> None:
        """Addresses of a batch's words, in the order in which the lanes need them."""
        p, batch, i = self.parameters, self.batch, self.i
        kv_head = Signal(p.head_bits, reset_less=True)
        sinks = Signal(range(p.sinks + 1), reset_less=True)
        more = Signal(reset_less=True)
        sink = Signal(range(max(2, p.sinks)))  # that is requested
        chosen = Signal(range(p.capacity + 1), reset_less=True)  # rows so far
        beyond = Signal(range(p.capacity + 1), reset_less=True)  # of them, whose V is not kept
        place = Signal(p.row_bits)
        half = Signal()
        m.submodules.list = kept = memory.Memory(
            shape=unsigned(p.row_bits), depth=p.capacity, init=[]
        )
        write, read = kept.write_port(), kept.read_port()
        listed = Signal(range(p.capacity + 1), reset_less=True)
        there = Signal()
        last_sink = sink + 1 == sinks
        passed = issue.valid & issue.ready
        m.d.comb += [
            issue.payload.address.eq(Cat(place, half, kv_head)),
            write.addr.eq(beyond),
            write.data.eq(i.payload.row),
            read.addr.eq(listed),
        ]

        def values() -> None:
            """After the sinks' V: V of rows that is not kept, or the mean."""
            m.next = "MEAN"
            with m.If(beyond.any()):
                m.next = "AGAIN"

        def after_keys() -> None:
            values()
            with m.If(sinks.any()):
                m.next = "SINK_V"

        with m.FSM(name="request"):
            with m.State("IDLE"):
                m.d.comb += [
                    batch.ready.eq(batches.ready),
                    batches.valid.eq(batch.valid),
                    batches.payload.sinks.eq(batch.payload.sinks),
                    batches.payload.more.eq(batch.payload.more),
                ]
                m.d.sync += [
                    kv_head.eq(batch.payload.kv_head),
                    sinks.eq(batch.payload.sinks),
                    more.eq(batch.payload.more),
                    chosen.eq(0),
                    beyond.eq(0),
                    listed.eq(0),
                ]
                with m.If(batch.valid & batch.ready):
                    m.next = "ROWS"
                    with m.If(batch.payload.sinks.any()):
                        m.next = "SINK_K"
            with m.State("SINK_K"):
                m.d.comb += [
                    issue.valid.eq(1),
                    half.eq(1),
                    place.eq(sink),
                    issue.payload.last.eq(last_sink & ~more),
                ]
                with m.If(issue.ready):
                    m.d.sync += sink.eq(Mux(last_sink, 0, sink + 1))
                    with m.If(last_sink):
                        m.next = "SINK_V"
                        with m.If(more):
                            m.next = "ROWS"
            with m.State("ROWS"):
                m.d.comb += [
                    issue.valid.eq(i.valid),
                    i.ready.eq(issue.ready),
                    half.eq(1),
                    place.eq(i.payload.row),
                    issue.payload.last.eq(i.payload.last),
                    write.en.eq(passed & (chosen >= p.kept)),
                ]
                with m.If(passed):
                    m.d.sync += [chosen.eq(chosen + 1), beyond.eq(beyond + write.en)]
                    with m.If(i.payload.last):
                        m.next = "LISTED"
            with m.State("LISTED"):  # `beyond` counts the last row too
                after_keys()
            with m.State("SINK_V"):
                m.d.comb += [issue.valid.eq(1), place.eq(p.sinks_address + sink)]
                with m.If(issue.ready):
                    m.d.sync += sink.eq(Mux(last_sink, 0, sink + 1))
                    with m.If(last_sink):
                        values()
            with m.State("AGAIN"):
                m.d.comb += [
                    issue.valid.eq(there),
                    half.eq(1),
                    place.eq(read.data),
                    read.en.eq((listed != beyond) & (~there | issue.ready)),
                ]
                with m.If(read.en):
                    m.d.sync += [listed.eq(listed + 1), there.eq(1)]
                with m.Elif(issue.ready):
                    m.d.sync += there.eq(0)
                    with m.If(there):
                        m.next = "MEAN"
            with m.State("MEAN"):
                m.d.comb += [
                    issue.valid.eq(1),
                    place.eq(p.mean_address),
                    issue.payload.last.eq(1),
                ]
                with m.If(issue.ready):
                    m.next = "IDLE"

    def _feed(self, m: Module, words, batches) -> None:
        """Rows into a register for the lanes: of words, of V that was kept, and the rest."""
        p, o, rest = self.parameters, self.o, self.rest
        advance = Signal()  # the register is free
        m.d.comb += advance.eq(~o.valid | o.ready)
        chosen = Signal(range(p.capacity + 1))  # rows of the batch
        given = Signal(range(p.capacity + 1))  # rows whose V has been given
        sink = Signal(range(p.sinks + 1))
        value = Signal()  # all K has been taken
        exact, of_kept = Signal(), Signal()  # the row offered is FP16, or a V that was kept
        offered = Signal()
        word_row = Signal()  # it is of a word
        row = Signal.like(o.payload)
        passed = Signal()
        m.d.comb += [passed.eq(offered & advance), words.ready.eq(word_row & advance)]
        size = p.format.row_layout.size
        word = data.View(p.format.row_layout, Value.cast(words.payload.data)[:size])
        keep = Signal()  # the V of the word is to be kept
        kept, there = self._kept(m, word.value, keep, chosen, value, of_kept & passed)
        last_sink = sink + 1 == batches.payload.sinks

        def of_word() -> None:
            m.d.comb += [word_row.eq(1), offered.eq(words.valid)]

        def rows_of_value() -> None:
            m.next = "MEAN"
            with m.If(chosen.any()):
                m.next = "KEPT_V"

        with m.FSM(name="supply"):
            with m.State("IDLE"):
                m.d.sync += [chosen.eq(0), given.eq(0), value.eq(0)]
                with m.If(batches.valid):
                    m.next = "FINE_K"
                    with m.If(batches.payload.sinks.any()):
                        m.next = "EXACT_K"
            with m.State("EXACT_K"):
                of_word()
                m.d.comb += exact.eq(1)
                with m.If(passed):
                    m.d.sync += sink.eq(Mux(last_sink, 0, sink + 1))
                    with m.If(words.payload.last):
                        m.d.sync += value.eq(1)
                        m.next = "REST"
                    with m.Elif(last_sink):
                        m.next = "FINE_K"
            with m.State("FINE_K"):
                of_word()
                m.d.comb += keep.eq(passed & (chosen < p.kept))
                with m.If(passed):
                    m.d.sync += chosen.eq(chosen + 1)
                    with m.If(words.payload.last):
                        m.d.sync += value.eq(1)
                        m.next = "REST"
            with m.State("REST"):
                m.d.comb += [offered.eq(rest.valid), rest.ready.eq(advance)]
                m.d.comb += [row.rest.eq(1), row.last.eq(1)]
                with m.If(passed):
                    rows_of_value()
                    with m.If(batches.payload.sinks.any()):
                        m.next = "EXACT_V"
            with m.State("EXACT_V"):
                of_word()
                m.d.comb += exact.eq(1)
                with m.If(passed):
                    m.d.sync += sink.eq(Mux(last_sink, 0, sink + 1))
                    with m.If(last_sink):
                        rows_of_value()
            with m.State("KEPT_V"):
                m.d.comb += [of_kept.eq(1), offered.eq(there)]
                with m.If(passed):
                    m.d.sync += given.eq(given + 1)
                    with m.If(given + 1 == chosen):
                        m.next = "MEAN"
                    with m.Elif(given + 1 == p.kept):
                        m.next = "AGAIN_V"
            with m.State("AGAIN_V"):
                of_word()
                with m.If(passed):
                    m.d.sync += given.eq(given + 1)
                    with m.If(given + 1 == chosen):
                        m.next = "MEAN"
            with m.State("MEAN"):
                of_word()
                m.d.comb += [exact.eq(1), row.last.eq(1), batches.ready.eq(passed)]
                with m.If(passed):
                    m.next = "IDLE"

        fine = self._decoded(m, word, kept, value, of_kept)
        scores = Cat(rest.payload, Const(0, (p.d - p.parallel) * FP16.width))
        chosen_row = Mux(exact, Value.cast(words.payload.data), Mux(row.rest, scores, fine))
        m.d.comb += Value.cast(row.data).eq(chosen_row)
        with m.If(advance):
            m.d.sync += o.valid.eq(offered)
        with m.If(passed):
            m.d.sync += o.payload.eq(row)

    def _kept(self, m: Module, value, keep, chosen, of_value, taken) -> tuple[Value, Signal]:
        """V of the first rows, on the chip; the next one to be given, and whether it is there."""
        p = self.parameters
        layout = p.format.value_layout
        m.submodules.kept = kept = memory.Memory(shape=unsigned(layout.size), depth=p.kept, init=[])
        write, read = kept.write_port(), kept.read_port()
        next_read = Signal(range(p.capacity + 1))
        there = Signal()
        m.d.comb += [
            write.en.eq(keep),
            write.addr.eq(chosen),
            write.data.eq(Value.cast(value)),
            read.addr.eq(next_read),
            read.en.eq(of_value & (next_read != chosen) & (next_read != p.kept) & (~there | taken)),
        ]
        with m.If(~of_value):
            m.d.sync += next_read.eq(0)
        with m.Elif(read.en):
            m.d.sync += next_read.eq(next_read + 1)
        with m.If(read.en):
            m.d.sync += there.eq(1)
        with m.Elif(taken):
            m.d.sync += there.eq(0)
        return data.View(layout, read.data), there

    def _decoded(self, m: Module, word, kept, value, of_kept) -> Value:
        """K of a word, V of it, or V that was kept, as FP16, by the same decoders."""
        p = self.parameters
        fraction = max(p.key_fraction, p.value_fraction)

        def whole(code, bits: int) -> Value:
            """A code with zeros appended, which mean nothing."""
            return Cat(Const(0, fraction - bits), code)

        scale = Mux(of_kept, kept.scale, Mux(value, word.value.scale, word.key.scale))
        elements = []
        for c in range(p.d):
            code = Signal(fraction + 3, name=f"code_{c}")
            of_value = whole(Mux(of_kept, kept.codes[c], word.value.codes[c]), p.value_fraction)
            of_key = whole(word.key.codes[c], p.key_fraction)
            m.d.comb += code.eq(Mux(of_kept | value, of_value, of_key))
            elements.append(fine_to_float(m, code, scale, f"fine_{c}"))
        return Cat(elements)
