"""Rows of G as they come from memory, and which positions have a large mode (LAD, EAS.3)."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, memory

from hw.component import Component
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import index
from hw.ports import Ports, wire_in, wire_out


class ModeWords(Component[LadTileParameters]):
    """Passes on a head's words of G, and keeps a bit for each position: it is in M.

    M are the positions before the window whose mode's interval begins at `near` or above. Words
    from the new position on are output as zeros: what the memory has there is of an earlier
    sequence. If the new position is the first one of its row, the row is not read; it is output as
    zeros in the cycle after `begin`, in which no row arrives yet.
    """

    def ports(self) -> Ports:
        p = self.parameters
        row = index(range(max(2, p.table_rows)))
        return {
            "begin": wire_in(1, "A head begins."),
            "last": wire_in(p.position, "The new position."),
            "old": wire_in(
                range(p.positions + 1),
                "The number of positions before the window. Stable from `begin` on.",
            ),
            "arrives": wire_in(1, "A row of G."),
            "row": wire_in(p.label_bits - 2, "Number of the row that arrives."),
            "data": wire_in(p.row_layout, "Words of the row that arrives."),
            "words_valid": wire_out(1),
            "words_row": wire_out(row),
            "words": wire_out(data.ArrayLayout(p.word_layout, p.d)),
            "scan_row": wire_in(range(p.table_rows + 1), "Row of bits to read for the keys."),
            "scan_bits": wire_out(p.d, "Bits of `scan_row`, in the next cycle."),
            "score_row": wire_in(row, "Row of bits to read for the scores."),
            "score_bits": wire_out(p.d, "Bits of `score_row`, in the next cycle."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        words = data.ArrayLayout(p.word_layout, p.d)(Value.cast(self.data))
        # Thermometer masks of the row, compared once for the row and once for the lane within it,
        # not with a comparator of whole positions for each lane.
        present = self._below(m, self.last, "present")
        before = self._below(m, self.old, "before_window")
        near = Signal(p.d)
        for lane, word in enumerate(words):
            has_interval = (word.mode >= p.near_mode) & (word.mode < p.intervals)
            m.d.comb += near[lane].eq(has_interval)

        # A row that only the new position would use is never read, so its zeros are output without
        # one.
        starts_row = self.last[: p.element_bits] == 0
        clears_row = Signal()  # the new position's row, which is not read
        m.d.comb += [self.words_valid.eq(self.arrives), self.words_row.eq(self.row)]
        for lane, (word, shown) in enumerate(zip(words, self.words, strict=True)):
            m.d.comb += shown.eq(Mux(present[lane] & self.arrives, Value.cast(word), 0))
        m.d.sync += clears_row.eq(self.begin)
        with m.If(clears_row & starts_row):
            m.d.comb += [self.words_valid.eq(1), self.words_row.eq(self.last >> p.element_bits)]

        table = memory.Memory(shape=p.d, depth=p.table_rows, init=[])
        m.submodules.large = table
        # Two readers that run at their own pace: the scan for exact keys, and the output of
        # estimates, which drops positions that get an exact score.
        write, scanned, scored = table.write_port(), table.read_port(), table.read_port()
        m.d.comb += [
            write.addr.eq(self.row),
            write.data.eq(near & before),
            write.en.eq(self.arrives),
            scanned.addr.eq(self.scan_row),
            self.scan_bits.eq(scanned.data),
            scored.addr.eq(self.score_row),
            self.score_bits.eq(scored.data),
        ]
        return m

    def _below(self, m: Module, bound: Value, name: str) -> Signal:
        """Which positions of the row are below a bound."""
        p = self.parameters
        full, partly = Signal(name=f"{name}_all"), Signal(name=f"{name}_some")
        below = Signal(p.d, name=name)
        m.d.comb += [
            full.eq(self.row < bound >> p.element_bits),
            partly.eq(self.row == bound >> p.element_bits),
            below[-1].eq(full),
        ]
        for lane in range(p.d - 1):
            m.d.comb += below[lane].eq(full | (partly & (bound[: p.element_bits] > lane)))
        return below
