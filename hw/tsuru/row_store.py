"""A token's new rows into the memory: codes, and the words of the search that they are added to."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory

from hw.arith.float_format import FP16
from hw.attention.step_sequence import store_layout
from hw.component import Component
from hw.layout import address, count
from hw.ports import Ports, stream_in, stream_out, wire_in
from hw.tsuru.core_parameters import TsuruCoreParameters
from hw.tsuru.row_format import SCALE_BITS, SEARCH_BITS
from hw.tsuru.row_search import PLANES


class RowStore(Component[TsuruCoreParameters]):
    """For each kv head, the words of its new row, and the words of the search with its codes.

    ::

        kv: codes ─┬→ the row's word                    address ─→ o
                   ├→ search codes ─→ tail ─→ words ───────────────┘
            mean ──┘       (the last word of codes and of scales of each kv head)
            K, V of a sink

    The search code of a row is the sign and the upper exponent bit of each fine code of K. As the
    memory writes whole words, the last words of codes and of scales are on the chip, too, for each
    kv head; slots that have no row are 0.

    Words of `kv`: codes, of a row as a row word, of a sink its planes' search codes, then their
    scales; the mean of V; of a sink, K and V as FP16.

    Latency: FINE_CYCLES a kv head, SINK_CYCLES of a sink, without stalls.

    Handshake: a word of `kv` is accepted with the last word that is made of it. ``o.valid`` depends
    combinationally on ``kv.valid``, and ``kv.ready`` on ``o.ready``.
    """

    def ports(self) -> Ports:
        p = self.parameters
        word = data.ArrayLayout(FP16, p.d)
        return {
            "store": stream_in(store_layout(p.order), "New rows: K, then V, of each kv head."),
            "row": wire_in(count(range(p.capacity)), "Number of the new row."),
            "restart": wire_in(1, "A sequence begins."),
            "kv": stream_in(word, "Words of new rows."),
            "o": stream_out({"address": address(p.address_width), "data": word}, "Words to write."),
        }

    def elaborate(self, platform):
        m = Module()
        p, store, o = self.parameters, self.store, self.o
        m.submodules.tail = tail = memory.Memory(
            shape=unsigned(2 * p.format.word_bits), depth=max(2, p.kv_heads), init=[]
        )
        read, write = tail.read_port(), tail.write_port()
        kv_head = store.payload.kv_head
        is_sink = Signal()
        slot = Signal(p.choice.slot_bits)
        place = Signal(p.row_bits)
        half = Signal()
        passed = Signal()
        m.d.comb += [
            is_sink.eq(self.row < p.sinks),
            slot.eq(Mux(is_sink, self.row * PLANES, self.row + (PLANES - 1) * p.sinks)),
            o.payload.address.eq(Cat(place, half, kv_head)),
            passed.eq(o.valid & o.ready),
            read.addr.eq(kv_head),
            write.addr.eq(kv_head),
        ]
        # Tails that are older than the sequence mean nothing.
        written = Signal(p.kv_heads)
        mine = Signal()
        m.d.comb += mine.eq((written >> kv_head)[0])
        with m.If(write.en):
            m.d.sync += written.bit_select(kv_head, 1).eq(1)
        with m.If(self.restart):
            m.d.sync += written.eq(0)
        tail_words = read.data & mine.replicate(len(read.data))
        codes, scales = self._merged(m, tail_words, slot, is_sink)
        m.d.comb += write.data.eq(Cat(codes, scales))

        self._states(m, is_sink, slot, codes, scales, read.en, write.en, place, half, passed)
        return m

    def _states(
        self, m, is_sink, slot, codes, scales, read_en, write_en, place, half, passed
    ) -> None:
        """A word a state: of `kv` or made of it, and where it goes."""
        p, store, kv, o = self.parameters, self.store, self.kv, self.o
        # Addresses of the search words: blocks of a word of scales and of words of codes.
        block = slot[p.format.search_rows.bit_length() - 1 :]
        code_words = p.format.search_words - 1
        scale_place = (block << code_words.bit_length() - 1) + block
        code_place = slot[3:] + block + 1
        word = Value.cast(kv.payload)

        def write_word(word, where, of_row: int = 0, last_of_kv: bool = True) -> None:
            m.d.comb += [
                o.valid.eq(kv.valid),
                kv.ready.eq(o.ready if last_of_kv else 0),
                Value.cast(o.payload.data).eq(word),
                place.eq(where),
                half.eq(of_row),
            ]

        with m.FSM(name="write"):
            with m.State("IDLE"):
                m.d.comb += read_en.eq(1)
                with m.If(store.valid):
                    m.next = "ROW"
                    with m.If(is_sink):
                        m.next = "CODES"
                    with m.If(store.payload.value):
                        m.next = "MEAN"
            with m.State("ROW"):
                write_word(word, self.row, 1, last_of_kv=False)
                with m.If(passed):
                    m.next = "CODES"
            with m.State("CODES"):
                write_word(codes, code_place, last_of_kv=False)
                with m.If(passed):
                    m.next = "SCALES"
            with m.State("SCALES"):
                write_word(scales, scale_place)
                m.d.comb += [write_en.eq(passed), store.ready.eq(passed)]
                with m.If(passed):
                    m.next = "IDLE"
            with m.State("MEAN"):
                write_word(word, p.supply.mean_address)
                m.d.comb += store.ready.eq(passed & ~is_sink)
                with m.If(passed):
                    m.next = "IDLE"
                    with m.If(is_sink):
                        m.next = "SINK_K"
            with m.State("SINK_K"):
                write_word(word, self.row, 1)
                with m.If(passed):
                    m.next = "SINK_V"
            with m.State("SINK_V"):
                write_word(word, p.supply.sinks_address + self.row)
                m.d.comb += store.ready.eq(passed)
                with m.If(passed):
                    m.next = "IDLE"

    def _merged(self, m: Module, tail: Value, slot: Value, is_sink: Value) -> tuple[Value, Value]:
        """The last word of codes, and that of scales, with the new row's."""
        p = self.parameters
        word, size = Value.cast(self.kv.payload), p.format.word_bits
        key = data.View(p.format.row_layout, word[: p.format.row_layout.size]).key
        upper = p.key_fraction + 1
        code = Cat(key.codes[c][upper : upper + SEARCH_BITS] for c in range(p.d))
        width = SEARCH_BITS * p.d
        planes = [word[n * width :][:width] for n in range(PLANES)]
        plane_scales = [word[PLANES * width + n * SCALE_BITS :][:SCALE_BITS] for n in range(PLANES)]
        first_of_word = ~slot[:3].any()
        first_of_block = ~slot[: p.format.search_rows.bit_length() - 1].any()

        def merged(name, old, each, number, new, of_planes, first) -> Signal:
            """Elements of `each` bits of the `old` word, with the new one, or a sink's planes."""
            result = Signal(size, name=name)
            for n in range(size // each):
                before = Mux(first, 0, old[n * each :][:each])
                element = Mux(number == n, new, before)
                if n < p.sinks * PLANES:
                    mine = number == n // PLANES * PLANES
                    element = Mux(is_sink, Mux(mine, of_planes[n % PLANES], before), element)
                m.d.comb += result[n * each :][:each].eq(element)
            return result

        old_codes, old_scales = tail[:size], tail[size:]
        in_block = slot[: p.format.search_rows.bit_length() - 1]
        codes = merged("codes", old_codes, width, slot[:3], code, planes, first_of_word)
        scales = merged(
            "scales", old_scales, SCALE_BITS, in_block, key.scale, plane_scales, first_of_block
        )
        return codes, scales
