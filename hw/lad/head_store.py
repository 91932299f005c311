"""Scores and words of G of a head in the pipeline."""

from amaranth.hdl import Array, Module, Mux, Signal, Value
from amaranth.lib import data, memory

from hw.arith.float_format import FP16
from hw.component import Component
from hw.lad.caches.row_memory import row_memory
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import index, mask
from hw.ports import Ports, wire_in, wire_out


class HeadStore(Component[LadTileParameters]):
    """Two memories: scores, a beat of APID's lanes in a word; words of G, a row in a word.

    Both are written by EAS. G is then changed by APID, a beat at a time, and by MD, a position at a
    time; MD goes first. Read are beats, of both, or rows of G: one of them in a cycle, valid in the
    next one and until the next read.
    """

    def ports(self) -> Ports:
        p = self.parameters
        beat = data.ArrayLayout(p.word_layout, p.lanes)
        beats = index(range(max(2, -(-p.positions // p.lanes))))
        rows = index(range(max(2, p.table_rows)))
        return {
            "words_valid": wire_in(1, "A row of G."),
            "words_row": wire_in(rows, "Number of that row in its head."),
            "words": wire_in(
                data.ArrayLayout(p.word_layout, p.d), "Words of that row's d positions."
            ),
            "score_valid": wire_in(1, "A pair of scores, the first one of an even position."),
            "score_index": wire_in(
                range(p.positions + 2), "Position of the first score of the pair."
            ),
            "scores": wire_in(data.ArrayLayout(FP16, 2), "The pair of scores, FP16."),
            "score_keep": wire_in(mask(2), "Mask of the scores of the pair that are final."),
            "md_valid": wire_in(1),
            "md_index": wire_in(p.position),
            "md_word": wire_in(p.word_layout),
            "beat_valid": wire_in(1, "Words of a beat, not written while `md_valid` is high."),
            "beat_number": wire_in(beats, "Number of the beat that is written."),
            "beat_words": wire_in(beat, "New words of the beat's positions."),
            "beat_keep": wire_in(mask(p.lanes), "Mask of the words to write."),
            "read": wire_in(1, "Read a beat or, with `read_row`, a row."),
            "read_row": wire_in(1, "The read is of a row of G, or else of a beat."),
            "number": wire_in(beats, "Number of the beat or row to read."),
            "s": wire_out(data.ArrayLayout(FP16, p.lanes), "The beat that was read."),
            "g": wire_out(beat, "Words of G of that beat, in the order of positions."),
            "row": wire_out(p.row_layout, "The row that was read."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        lane_bits = (p.lanes - 1).bit_length()
        per_row = p.d // p.lanes  # beats in a row
        beat_bits = p.element_bits - lane_bits

        # Two memories, because APID reads a score and a word of G of each position in one cycle.
        scores = row_memory(data.ArrayLayout(16, p.lanes), -(-p.positions // p.lanes))
        m.submodules.scores = scores
        write, read = scores.write_port(granularity=1), scores.read_port()
        m.d.comb += [
            write.addr.eq(self.score_index >> lane_bits),
            read.addr.eq(self.number),
            read.en.eq(self.read),
            Value.cast(self.s).eq(Value.cast(read.data)),
        ]
        # A pair of scores goes to two neighbouring lanes of a beat.
        pair = Signal(max(1, lane_bits - 1))
        m.d.comb += pair.eq(self.score_index[1:lane_bits])
        for lane in range(p.lanes):
            m.d.comb += [
                write.data[lane].eq(self.scores[lane % 2]),
                write.en[lane].eq(
                    self.score_valid & self.score_keep[lane % 2] & (pair == lane // 2)
                ),
            ]

        shape, depth = data.ArrayLayout(16, p.d), p.table_rows
        if per_row == 1:
            words = row_memory(shape, depth)
        else:  # a beat may be read as counters are written to another beat of its row
            words = memory.Memory(shape=shape, depth=depth, init=[])
        m.submodules.words = words
        write, read = words.write_port(granularity=1), words.read_port()
        # A row of words is read and written whole; beats and words are parts of it.
        beat_index = Signal(max(1, beat_bits))  # of the beat read in its row
        with m.If(self.read):
            m.d.sync += beat_index.eq(self.number)
        m.d.comb += [
            read.en.eq(self.read),
            read.addr.eq(Mux(self.read_row, self.number, self.number >> beat_bits)),
            Value.cast(self.row).eq(Value.cast(read.data)),
        ]
        beats = data.ArrayLayout(16 * p.lanes, per_row)(Value.cast(read.data))
        m.d.comb += Value.cast(self.g).eq(Array(beats)[beat_index] if per_row > 1 else beats[0])
        # One write port has three users. EAS is alone, as its head is not read yet; MD precedes
        # APID, which the parent holds back. Each user writes whole words, by the port's enables.
        with m.If(self.words_valid):
            m.d.comb += [
                write.addr.eq(self.words_row),
                write.en.eq(~0),
                Value.cast(write.data).eq(Value.cast(self.words)),
            ]
        with m.Elif(self.md_valid):
            m.d.comb += write.addr.eq(self.md_index >> p.element_bits)
            for lane in range(p.d):
                m.d.comb += [
                    write.en[lane].eq(self.md_index[: p.element_bits] == lane),
                    write.data[lane].eq(self.md_word),
                ]
        with m.Elif(self.beat_valid):
            m.d.comb += write.addr.eq(self.beat_number >> beat_bits)
            for lane in range(p.d):
                beat, number = divmod(lane, p.lanes)
                chosen = self.beat_number[:beat_bits] == beat if per_row > 1 else 1
                m.d.comb += [
                    write.en[lane].eq(self.beat_keep[number] & chosen),
                    write.data[lane].eq(self.beat_words[number]),
                ]
        return m
