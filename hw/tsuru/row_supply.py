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
        order = Order(p)
        passed = Signal()
        advance = Signal()  # the register is free
        row = Signal.like(o.payload)
        m.d.comb += [
            advance.eq(~o.valid | o.ready),
            passed.eq(order.offered & advance),
            words.ready.eq(order.of_word & advance),
            rest.ready.eq(order.of_rest & advance),
        ]
        size = p.format.row_layout.size
        word = data.View(p.format.row_layout, Value.cast(words.payload.data)[:size])
        kept, there = self._kept(m, order, word.value, passed)
        valid = Mux(order.of_word, words.valid, Mux(order.of_rest, rest.valid, there))
        m.d.comb += [
            order.offered.eq(order.busy & valid),
            batches.ready.eq(passed & order.of_mean),
            row.rest.eq(order.of_rest),
            row.last.eq(order.of_rest | order.of_mean),
        ]
        self._states(m, order, passed, words.payload.last, batches)

        fine = self._decoded(m, word, kept, order)
        scores = Cat(rest.payload, Const(0, (p.d - p.parallel) * FP16.width))
        other = Mux(order.of_rest, scores, fine)
        m.d.comb += Value.cast(row.data).eq(Mux(order.exact, Value.cast(words.payload.data), other))
        with m.If(advance):
            m.d.sync += o.valid.eq(order.offered)
        with m.If(passed):
            m.d.sync += o.payload.eq(row)

    def _states(self, m: Module, order: "Order", passed, last, batches) -> None:
        """What each row is; `last` of the word that is there."""
        sinks = batches.payload.sinks
        sink = Signal(range(self.parameters.sinks + 1))
        given = Signal(range(self.parameters.capacity + 1))  # rows whose V has been given
        last_sink = Signal()
        m.d.comb += last_sink.eq(sink + 1 == sinks)
        next_sink = sink.eq(Mux(last_sink, 0, sink + 1))

        def values() -> None:
            m.next = "MEAN"
            with m.If(order.chosen.any()):
                m.next = "KEPT_V"

        with m.FSM(name="supply"):
            with m.State("IDLE"):
                m.d.sync += [order.chosen.eq(0), given.eq(0), order.value.eq(0)]
                with m.If(batches.valid):
                    m.next = "FINE_K"
                    with m.If(sinks.any()):
                        m.next = "EXACT_K"
            with m.State("EXACT_K"):
                m.d.comb += order.exact_word()
                with m.If(passed):
                    m.d.sync += [next_sink, order.value.eq(last)]
                    with m.If(last):
                        m.next = "REST"
                    with m.Elif(last_sink):
                        m.next = "FINE_K"
            with m.State("FINE_K"):
                m.d.comb += [order.busy.eq(1), order.of_word.eq(1), order.of_key.eq(1)]
                with m.If(passed):
                    m.d.sync += [order.chosen.eq(order.chosen + 1), order.value.eq(last)]
                    with m.If(last):
                        m.next = "REST"
            with m.State("REST"):
                m.d.comb += [order.busy.eq(1), order.of_rest.eq(1)]
                with m.If(passed):
                    values()
                    with m.If(sinks.any()):
                        m.next = "EXACT_V"
            with m.State("EXACT_V"):
                m.d.comb += order.exact_word()
                with m.If(passed):
                    m.d.sync += next_sink
                    with m.If(last_sink):
                        values()
            for state in ("KEPT_V", "AGAIN_V"):
                with m.State(state):
                    of = order.of_kept if state == "KEPT_V" else order.of_word
                    m.d.comb += [order.busy.eq(1), of.eq(1)]
                    with m.If(passed):
                        m.d.sync += given.eq(given + 1)
                        with m.If(given + 1 == order.chosen):
                            m.next = "MEAN"
                        with m.Elif(given + 1 == self.parameters.kept):
                            m.next = "AGAIN_V"
            with m.State("MEAN"):
                m.d.comb += [*order.exact_word(), order.of_mean.eq(1)]
                with m.If(passed):
                    m.next = "IDLE"

    def _kept(self, m: Module, order: "Order", value, passed) -> tuple[data.View, Signal]:
        """V of the first rows, on the chip; the next one to be given, and whether it is there."""
        p, chosen = self.parameters, order.chosen
        taken = passed & order.of_kept
        layout = p.format.value_layout
        m.submodules.kept = kept = memory.Memory(shape=unsigned(layout.size), depth=p.kept, init=[])
        write, read = kept.write_port(), kept.read_port()
        next_read = Signal(range(p.capacity + 1))
        there = Signal()
        m.d.comb += [
            write.en.eq(passed & order.of_key & (chosen < p.kept)),
            write.addr.eq(chosen),
            write.data.eq(Value.cast(value)),
            read.addr.eq(next_read),
            read.en.eq(
                order.value & (next_read != chosen) & (next_read != p.kept) & (~there | taken)
            ),
        ]
        with m.If(~order.value):
            m.d.sync += next_read.eq(0)
        with m.Elif(read.en):
            m.d.sync += next_read.eq(next_read + 1)
        with m.If(read.en):
            m.d.sync += there.eq(1)
        with m.Elif(taken):
            m.d.sync += there.eq(0)
        return data.View(layout, read.data), there

    def _decoded(self, m: Module, word, kept, order: "Order") -> Value:
        """K of a word, V of it, or V that was kept, as FP16, by the same decoders."""
        p = self.parameters
        fraction = max(p.key_fraction, p.value_fraction)

        def whole(code, bits: int) -> Value:
            """A code with zeros appended, which mean nothing."""
            return Cat(Const(0, fraction - bits), code)

        of_kept = order.of_kept
        scale = Mux(of_kept, kept.scale, Mux(order.of_key, word.key.scale, word.value.scale))
        elements = []
        for c in range(p.d):
            code = Signal(fraction + 3, name=f"code_{c}")
            of_value = whole(Mux(of_kept, kept.codes[c], word.value.codes[c]), p.value_fraction)
            of_key = whole(word.key.codes[c], p.key_fraction)
            m.d.comb += code.eq(Mux(order.of_key, of_key, of_value))
            elements.append(fine_to_float(m, code, scale, f"fine_{c}"))
        return Cat(elements)


class Order:
    """What the row is that comes next for the lanes.

    busy, offered
        There is one; and its word, its V or its scores are there.
    of_word, of_key, of_kept, of_rest, of_mean, exact
        It is a word's, K of one, V that was kept, the rest, the mean; FP16 numbers of a word.
    value, chosen
        All K of the batch has been taken; chosen rows so far.
    """

    def __init__(self, p: RowSupplyParameters):
        self.busy = Signal()
        self.offered = Signal()
        self.of_word = Signal()
        self.of_key = Signal()
        self.of_kept = Signal()
        self.of_rest = Signal()
        self.of_mean = Signal()
        self.exact = Signal()
        self.value = Signal()
        self.chosen = Signal(range(p.capacity + 1))

    def exact_word(self) -> list:
        """Assignments of a row of FP16 numbers."""
        return [self.busy.eq(1), self.of_word.eq(1), self.exact.eq(1)]
