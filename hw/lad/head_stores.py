"""Scores and words of G of the heads in the tile's pipeline, and their way through APID."""

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.component import Component
from hw.lad.head_store import HeadStore
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import index, mask
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out

HELD = 2
"""Heads in the pipeline: one whose scores are computed, one whose output is."""


class HeadStores(Component[LadTileParameters]):
    """A :class:`HeadStore` for each head in the pipeline, used by turns.

    ::

        EAS: words, scores ─→ store h + 1 ─→ beats ─→ APID ─→ counters ─→ the same store
        MD: words          ─→ store h ──────────────────────────────────→ row

    When all scores of a head are there (`identified`), its beats go to APID, which may be before
    the head in front has left. When APID's counters have come back, MD changes words of active
    positions one by one; then rows of G are read, and `release` frees the store.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "words_valid": wire_in(1, "A row of G, from EAS."),
            "words_row": wire_in(
                index(range(max(2, p.table_rows))), "Number of that row in its head."
            ),
            "words": wire_in(
                data.ArrayLayout(p.word_layout, p.d), "Words of that row's d positions."
            ),
            "score_valid": wire_in(1, "A pair of scores, from EAS."),
            "score_index": wire_in(
                range(p.positions + 2), "Position of the first score of the pair."
            ),
            "scores": wire_in(data.ArrayLayout(FP16, 2), "The pair of scores, FP16."),
            "score_keep": wire_in(mask(2), "Mask of the scores of the pair that are final."),
            "identified": wire_in(
                1,
                "EAS has finished a head of n positions, with maximum m. n may not change until "
                "`release`.",
            ),
            "n": wire_in(p.number, "Number of the head's positions."),
            "m": wire_in(FP16, "Maximum of the head's scores."),
            "command": stream_out(p.apid.command_layout),
            "beats": stream_out(p.apid.input_layout),
            "counters": stream_in(p.apid.counters_layout),
            "md_valid": wire_in(1, "A word of G, from MD; APID's wait for it."),
            "md_index": wire_in(p.position, "Position of that word."),
            "md_word": wire_in(p.word_layout, "New word of that position."),
            "read": wire_in(
                1,
                "Read a row of G, not while APID is fed from the same store: ``row`` in the "
                "next cycle.",
            ),
            "row_number": wire_in(range(p.table_rows + 1), "Number of the row of G to read."),
            "row": wire_out(p.row_layout),
            "release": wire_in(1, "The front head has left."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        stores = [HeadStore(p) for _ in range(HELD)]
        for number, store in enumerate(stores):
            m.submodules[f"store_{number}"] = store
        # The stores that EAS fills, that APID is fed from, and of the front head.
        filled, fed, front = (Signal(range(HELD), name=name) for name in ("filled", "fed", "front"))
        maxima = Signal(data.ArrayLayout(FP16, HELD), reset_less=True)
        waiting = Signal(range(HELD + 1))  # heads that APID has not begun
        with m.If(self.identified):
            m.d.sync += [maxima[filled].eq(self.m), filled.eq(filled + 1)]
        with m.If(self.release):
            m.d.sync += front.eq(front + 1)

        # Beats of a store to APID: read in one cycle, offered from the next one on.
        command, beats, counters = self.command, self.beats, self.counters
        running = Signal()
        fetch = Signal()
        beat = Signal(range(-(-p.positions // p.lanes) + 1))
        count = Signal.like(beat, name="count")
        starts = command.valid & command.ready
        # EAS is at most one head ahead of APID, so the counter cannot pass `HELD`.
        m.d.sync += waiting.eq(waiting + self.identified - starts)
        m.d.comb += [
            # `n` is the step's and the same for all of its heads; only the maximum differs.
            command.valid.eq(~running & (waiting != 0)),
            command.payload.n.eq(self.n),
            command.payload.m.eq(Array(maxima)[fed]),
            count.eq((self.n + (p.lanes - 1)) >> (p.lanes - 1).bit_length()),
            fetch.eq(running & (beat != count) & (~beats.valid | beats.ready)),
        ]
        # A beat is fetched only while the output register is empty or is being emptied, since the
        # memory has no other place to hold it.
        with m.If(starts):
            m.d.sync += [running.eq(1), beat.eq(0)]
        with m.If(~beats.valid | beats.ready):
            m.d.sync += beats.valid.eq(fetch)
        with m.If(fetch):
            m.d.sync += beat.eq(beat + 1)
        # The counters of the last beat end a head: only then is another store fed.
        m.d.comb += counters.ready.eq(~(self.md_valid & (fed == front)))
        with m.If(counters.valid & counters.ready & counters.payload.last):
            m.d.sync += [running.eq(0), fed.eq(fed + 1)]

        # Three readers and writers at once, each with a store to itself: EAS fills one, APID reads
        # and changes another one, MD changes the front one. Where two of them meet in one store, MD
        # goes first, and APID's counters wait (`counters.ready`).
        for number, store in enumerate(stores):
            reads_row = self.read & (front == number)
            m.d.comb += [
                store.words_valid.eq(self.words_valid & (filled == number)),
                store.words_row.eq(self.words_row),
                store.words.eq(self.words),
                store.score_valid.eq(self.score_valid & (filled == number)),
                store.score_index.eq(self.score_index),
                store.scores.eq(self.scores),
                store.score_keep.eq(self.score_keep),
                store.beat_valid.eq(counters.valid & (fed == number)),
                store.beat_number.eq(counters.payload.beat),
                store.beat_keep.eq(counters.payload.write),
                store.md_valid.eq(self.md_valid & (front == number)),
                store.md_index.eq(self.md_index),
                store.md_word.eq(self.md_word),
                store.read.eq((fetch & (fed == number)) | reads_row),
                store.read_row.eq(reads_row),
                store.number.eq(Mux(reads_row, self.row_number, beat)),
            ]
            for word, into in zip(counters.payload.g, store.beat_words, strict=True):
                m.d.comb += _copy(word, into)
        self._outputs(m, stores, fed, front)
        return m

    def _outputs(self, m: Module, stores: list[HeadStore], fed, front) -> None:
        """Beats of the store that APID is fed from, and the front head's row."""
        beats = self.beats
        with m.Switch(fed):
            for number, store in enumerate(stores):
                with m.Case(number) if number < HELD - 1 else m.Default():
                    m.d.comb += beats.payload.s.eq(store.s)
                    for word, into in zip(store.g, beats.payload.g, strict=True):
                        m.d.comb += _copy(word, into)
        with m.Switch(front):
            for number, store in enumerate(stores):
                with m.Case(number) if number < HELD - 1 else m.Default():
                    m.d.comb += self.row.eq(store.row)


def _copy(word, into) -> list:
    """A word of G to one of another layout: APID's counters may be narrower."""
    return [getattr(into, name).eq(getattr(word, name)) for name in ("count", "mode", "active")]
