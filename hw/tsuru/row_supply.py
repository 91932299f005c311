"""Chosen rows from memory to the lanes: K of all, the rest, then V of all, decoded to FP16."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory, wiring

from hw.arith.float_format import FP16
from hw.component import Component
from hw.ports import Ports, stream_in, stream_out
from hw.stream.combine import join
from hw.stream.queue import Queue, QueueParameters
from hw.stream.reorder_buffer import ReorderBuffer
from hw.tsuru.part_cycles import WAITING
from hw.tsuru.row_format import fine_to_float
from hw.tsuru.row_requests import RowRequests
from hw.tsuru.row_requests import RowSupplyParameters as RowSupplyParameters


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
        m.submodules.requests = requests = RowRequests(p)
        m.submodules.batches = batches = Queue(QueueParameters(depth=WAITING), shape=p.batch_layout)
        wiring.connect(m, wiring.flipped(self.i), requests.i)
        wiring.connect(m, requests.issue, reorder.i)
        join(m, [self.batch], [requests.batch, batches.i])
        m.d.comb += [
            requests.batch.payload.eq(self.batch.payload),
            batches.i.payload.eq(self.batch.payload),
        ]
        wiring.connect(m, reorder.request, wiring.flipped(self.request))
        wiring.connect(m, wiring.flipped(self.response), reorder.response)
        self._feed(m, reorder.o, batches.o)
        return m

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
