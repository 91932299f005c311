"""Rows of G as they come from memory, and which positions have a large mode (LAD, EAS.3)."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, memory
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import index


class ModeWords(Component):
    """Passes on a head's words of G, and keeps a bit for each position: it is in M.

    M are the positions before the window whose mode's interval begins at `near` or above. Words
    from the new position on are output as zeros: what the memory has there is of an earlier
    sequence. If the new position is the first one of its row, the row is not read; it is output as
    zeros in a cycle in which no row arrives, which there is before the first one.

    Members
    -------
    begin : :py:`In(1)`
        A head begins.
    last, old : :py:`In`
        The new position; the number of positions before the window. Stable from `begin` on.
    arrives, row, data : :py:`In`
        A row of G.
    words_valid, words_row, words : :py:`Out`
    scan_row, score_row : :py:`In`
        Rows of bits to be read,
    scan_bits, score_bits : :py:`Out(d)`
        which are here in the next cycle.
    """

    def __init__(self, parameters: LadTileParameters):
        self._parameters = p = parameters
        row = index(range(max(2, p.table_rows)))
        super().__init__(
            {
                "begin": In(1),
                "last": In(p.position),
                "old": In(range(p.positions + 1)),
                "arrives": In(1),
                "row": In(p.label_bits - 2),
                "data": In(p.row),
                "words_valid": Out(1),
                "words_row": Out(row),
                "words": Out(data.ArrayLayout(p.word_layout, p.d)),
                "scan_row": In(range(p.table_rows + 1)),
                "scan_bits": Out(p.d),
                "score_row": In(row),
                "score_bits": Out(p.d),
            }
        )

    @property
    def parameters(self) -> LadTileParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        words = data.ArrayLayout(p.word_layout, p.d)(Value.cast(self.data))
        present = self._below(m, self.last, "present")
        before = self._below(m, self.old, "before_window")
        near = Signal(p.d)
        for lane, word in enumerate(words):
            has_interval = (word.mode >= p.near_mode) & (word.mode < p.intervals)
            m.d.comb += near[lane].eq(has_interval)

        starts_row = self.last[: p.element_bits] == 0
        clears_row = Signal()  # the new position's row, which is not read
        m.d.comb += [self.words_valid.eq(self.arrives), self.words_row.eq(self.row)]
        for lane, (word, shown) in enumerate(zip(words, self.words, strict=True)):
            m.d.comb += shown.eq(Mux(present[lane] & self.arrives, Value.cast(word), 0))
        with m.If(self.begin):
            m.d.sync += clears_row.eq(1)
        with m.Elif(~self.arrives):
            m.d.sync += clears_row.eq(0)
        with m.If(~self.arrives & clears_row & starts_row):
            m.d.comb += [self.words_valid.eq(1), self.words_row.eq(self.last >> p.element_bits)]

        table: Any = memory.Memory(shape=p.d, depth=p.table_rows, init=[])
        m.submodules.large = table
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
        p = self._parameters
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
