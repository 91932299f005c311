"""Efficient attention scores: of all positions, most of them estimated (LAD, IV-B, part 2)."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, wiring

from hw.arith.float_format import FP16
from hw.arith.order_key import NAN_KEY, from_key, to_key
from hw.component import Component
from hw.lad.centre_scores import CentreScores
from hw.lad.code_scores import CodeScores
from hw.lad.linear import lend, linear_ports
from hw.lad.mode_words import ModeWords
from hw.lad.position_scan import PositionScan
from hw.lad.score_source import score_layout
from hw.lad.tile_parameters import LadTileParameters
from hw.lad.vpu import Mode, Vpu
from hw.layout import FLAG, index, mask
from hw.ports import Ports, stream_in, stream_out, wire_out
from hw.stream.queue import Queue, QueueParameters


class Kind(enum.IntEnum, shape=2):
    """What a row is: of G, a whole key, or of the estimate: not a table, or a table."""

    G = 0
    KEY = 1
    OTHER = 2
    TABLE = 3


class Eas(Component[LadTileParameters]):
    """Scores of a head's positions, and their maximum.

    ::

        G ─→ mode ≥ near: M ───→ keys of M, window ─→ VPU 0 ─────────────┬─→ s
        codes of keys, or keys of centres ─→ VPU 0, VPU 1 ─→ × ─→ not in M ┘   └─→ maximum m

    A command is a head. The first query head of each kv head also stores the new token's K and V,
    and encodes K for the later steps (or looks for its centre). Then the words of G are read and
    output, with a zero for the new position. Positions before the window whose mode's interval
    begins at `near` or above are M: their scores, and the window's, are products with the
    whole key. The others' scores are estimated (:mod:`hw.lad.score_source`): they only decide
    which positions are active.

    m is the largest score, as an order key: NaN is ignored unless all are NaN, and zeros are +0.

    Cycles: about the number of rows read, or of scores, whichever is more: a pair of estimated ones
    per cycle, or an exact one; and the memory's latency twice, as M is known only from G.

    Handshake: ``words`` and ``scores`` have none. A request that waits may give way to another one.
    ``response.ready`` is low only for a key that a VPU cannot take.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(score_command_layout(p)),
            "q": stream_in(p.row),
            "kv": stream_in(p.row, "With a `first` command the new K, then V."),
            "request": stream_out(p.read_layout),
            "response": stream_in(p.answer_layout),
            "words_valid": wire_out(1, "A row of G, zero from the new position on."),
            "words_row": wire_out(index(range(max(2, p.table_rows))), "See `words_valid`."),
            "words": wire_out(data.ArrayLayout(p.word_layout, p.d), "See `words_valid`."),
            "score_valid": wire_out(
                1, "Scores of a pair of positions, the first one even, those in `score_keep`."
            ),
            "score_index": wire_out(range(p.positions + 2), "See `score_valid`."),
            "scores": wire_out(data.ArrayLayout(FP16, 2), "See `score_valid`."),
            "score_keep": wire_out(mask(2), "See `score_valid`."),
            "identified": stream_out(
                identified_layout(p),
                "All scores are there: their maximum, \\\\|M\\\\|, number of centres, rows read.",
            ),
            **linear_ports(p, "the VPUs, while no head is here.", 2),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        # Two VPUs: the first multiplies whole keys, both multiply for the estimate.
        self._vpus = [Vpu(p.vpu) for _ in range(2)]
        for number, vpu in enumerate(self._vpus):
            m.submodules[f"vpu_{number}"] = vpu
        m.submodules.source = source = self._make_source()
        command = Signal(score_command_layout(p), reset_less=True)
        q = Signal(p.row, reset_less=True)
        k = Signal(p.row, reset_less=True)
        old = Signal(range(p.positions + 1))  # positions before the window
        last = Signal(p.position)  # the new position
        m.d.comb += [
            old.eq(Mux(command.n > p.window, command.n - p.window, 0)),
            last.eq(command.n - 1),
            source.kv_head.eq(command.kv_head),
            source.position.eq(last),
            source.old.eq(old),
            source.k.eq(k),
        ]
        request, response = self.request, self.response
        label = Signal(label_layout(p))
        answered = data.View(label_layout(p), response.payload.label)
        # For the report: every row read in this head-step.
        rows = Signal(p.rows_count)  # read so far
        tables = Signal()  # the rows of G are there
        m.d.comb += [
            request.payload.label.eq(label),
            # A row is taken by whoever requested it, which its label says. A key goes straight to
            # the first VPU, all other kinds are stored at once.
            response.ready.eq(
                Mux(
                    answered.kind.matches(Kind.OTHER, Kind.TABLE),
                    source.response.ready,
                    (answered.kind != Kind.KEY) | self._vpus[0].i.ready,
                )
            ),
            # Unless a state says otherwise, the estimate has the port.
            request.valid.eq(source.request.valid),
            label.kind.eq(Mux(source.request.payload.table, Kind.TABLE, Kind.OTHER)),
            label.number.eq(source.request.payload.number),
            request.payload.address.eq(source.request.payload.address),
            request.payload.write.eq(source.request.payload.write),
            request.payload.data.eq(source.request.payload.data),
            source.request.ready.eq(request.ready),
            source.response.valid.eq(response.valid & answered.kind.matches(2, 3)),
            source.response.payload.table.eq(answered.kind == Kind.TABLE),
            source.response.payload.number.eq(answered.number),
            source.response.payload.data.eq(response.payload.data),
        ]
        large, emitted, exact = (
            Signal(range(p.positions + 1), name=name) for name in ("large", "emitted", "exact")
        )
        loading, scoring = Signal(), Signal()
        m.submodules.words = words = self._words = ModeWords(p)
        m.submodules.scan = scan = PositionScan(p)
        scanned = Signal()  # the scan has begun
        windowed = Signal(range(p.positions + 1))  # the next position of the window
        key = Signal(p.position)
        wants_key, in_window = Signal(), Signal()
        m.d.comb += [
            # The scan finds the positions of M from a bit for each position, one a cycle.
            scan.begin.eq(scoring & tables & ~scanned),
            scan.rows.eq((old + (p.d - 1)) >> p.element_bits),
            scan.bits.eq(words.scan_bits),
            words.scan_row.eq(scan.row),
            # The window follows the positions of M.
            in_window.eq(scanned & scan.finished),
            wants_key.eq(scan.positions.valid | (in_window & (windowed != command.n))),
            key.eq(Mux(in_window, windowed, scan.positions.payload)),
        ]
        # The window's first position is requested after the last one of M.
        with m.If(scan.begin):
            m.d.sync += [scanned.eq(1), windowed.eq(old)]
        with m.If(loading):
            m.d.sync += scanned.eq(0)
        m.d.comb += source.go.eq(scoring & tables)
        key_arrives = response.valid & (answered.kind == Kind.KEY)
        self._multiply(m, source, q, k, key_arrives, answered.number, loading)
        maximum, pending = self._results(m, source, exact, loading)
        if p.weights:
            for vpu, port in zip(self._vpus, self.linear, strict=True):
                lend(m, vpu, port)

        g_row, g_rows, g_left = (
            Signal(range(p.table_rows + 1), name=name) for name in ("g_row", "g_rows", "g_left")
        )
        m.d.comb += [
            g_rows.eq((last + (p.d - 1)) >> p.element_bits),
            tables.eq((g_left == 0) & (g_row == g_rows)),
        ]
        arrives = response.valid & (answered.kind == Kind.G)
        # The new key's own reads, for centres, would count once for each kv head and not for each
        # head.
        counted = Signal()  # rows that are read belong to the head, not to the new key
        with m.If(request.valid & request.ready & ~request.payload.write & counted):
            m.d.sync += rows.eq(rows + 1)

        def access(region: str, part: Value, row: Value, kind: Kind, write: Value | None) -> None:
            m.d.comb += [
                source.request.ready.eq(0),
                request.valid.eq(1),
                label.kind.eq(kind),
                label.number.eq(row),
                request.payload.address.eq(p.regions[region].address_of(part, row)),
                request.payload.write.eq(write is not None),
            ]
            if write is not None:
                m.d.comb += request.payload.data.eq(write)

        with m.FSM():
            with m.State("IDLE"):
                # A command and its q are accepted together; the first head of a kv head stores the
                # new key and value before it looks for scores.
                m.d.comb += [
                    self.command.ready.eq(self.q.valid),
                    self.q.ready.eq(self.command.valid),
                ]
                m.d.sync += [large.eq(0), emitted.eq(0), rows.eq(0), g_row.eq(0), g_left.eq(0)]
                with m.If(self.command.valid & self.q.valid):
                    m.d.sync += [command.eq(self.command.payload), q.eq(self.q.payload)]
                    m.next = "LOAD"
                    with m.If(self.command.payload.first):
                        m.next = "STORE_K"
            # The new token's rows, once for each kv head; K is kept, to be encoded.
            with m.State("STORE_K"):
                with m.If(self.kv.valid):
                    access("k", command.kv_head, last, Kind.KEY, self.kv.payload)
                    m.d.comb += self.kv.ready.eq(request.ready)
                    m.d.sync += k.eq(self.kv.payload)
                    with m.If(request.ready):
                        m.next = "STORE_V"
            with m.State("STORE_V"):
                # V is only stored: it is not needed until the position is active.
                with m.If(self.kv.valid):
                    access("v", command.kv_head, last, Kind.KEY, self.kv.payload)
                    m.d.comb += self.kv.ready.eq(request.ready)
                    with m.If(request.ready):
                        m.next = "ENCODE"
            with m.State("ENCODE"):
                # The source writes codes and unit of the new key, or nothing where centres are
                # kept.
                m.d.comb += source.store.eq(1)
                with m.If(source.stored):
                    m.next = "LOAD"
            with m.State("LOAD"):
                # The VPUs are empty, so each of them stores its vector at once.
                m.d.comb += loading.eq(1)
                m.d.sync += g_left.eq(g_rows)
                m.next = "TABLES"
            with m.State("TABLES"):
                # Rows of G; the new position's own word is not in memory yet.
                m.d.comb += counted.eq(1)
                with m.If(g_row == g_rows):
                    m.d.comb += source.begin.eq(1)
                    m.next = "SCORES"
                with m.Else():
                    access("g", command.head, g_row, Kind.G, None)
                    with m.If(request.ready):
                        m.d.sync += g_row.eq(g_row + 1)
            with m.State("SCORES"):
                m.d.comb += [counted.eq(1), scoring.eq(1)]
                # Keys of M and of the window, and rows of the estimate, as they come.
                with m.If(wants_key):
                    access("k", command.kv_head, key, Kind.KEY, None)
                    m.d.comb += scan.positions.ready.eq(request.ready)
                    with m.If(request.ready):
                        m.d.sync += [
                            emitted.eq(emitted + 1),
                            large.eq(large + ~in_window),
                            windowed.eq(windowed + in_window),
                        ]
                # All keys are requested, and no score is under way.
                with m.If(source.done & in_window & ~wants_key & (exact == emitted) & ~pending):
                    m.next = "DONE"
            with m.State("DONE"):
                # All scores have left; the maximum is final and APID may decide.
                m.d.comb += self.identified.valid.eq(1)
                with m.If(self.identified.ready):
                    m.next = "IDLE"
        if p.identification == "centres":
            m.d.comb += source.first.eq(command.first)
            m.d.comb += self.identified.payload.centres.eq(source.centres)
        m.d.comb += [
            self.identified.payload.m.eq(from_key(maximum)),
            self.identified.payload.large.eq(large),
            self.identified.payload.rows.eq(rows),
        ]
        # Rows of G may come while further ones are requested.
        with m.If(arrives):
            m.d.sync += g_left.eq(g_left - 1)
        m.d.comb += [
            words.begin.eq(self.command.ready & self.command.valid),
            words.last.eq(last),
            words.old.eq(old),
            words.arrives.eq(arrives),
            words.row.eq(answered.number),
            words.data.eq(response.payload.data),
            self.words_valid.eq(words.words_valid),
            self.words_row.eq(words.words_row),
            self.words.eq(words.words),
        ]
        return m

    def _make_source(self) -> Any:
        """What estimates the scores."""
        p = self.parameters
        return CentreScores(p) if p.identification == "centres" else CodeScores(p)

    def _multiply(self, m: Module, source, q, k, key_arrives, number, loading) -> None:
        """Operations of the VPUs: a whole key in the first one, or the estimate's in both."""
        p = self.parameters
        first, second = self._vpus
        m.submodules.tags = self._tags = Queue(
            QueueParameters(depth=p.vpu.credits.credits),
            shape=data.StructLayout({"exact": FLAG, "index": p.position}),
        )
        # A key from memory cannot wait, so the estimate's operation does.
        op = source.op
        scale = op.payload.scale
        allowed, taken = Signal(), Signal()
        m.d.comb += [
            allowed.eq(op.valid & ~key_arrives & ~loading),
            taken.eq(allowed & first.i.ready & (scale | second.i.ready)),
            op.ready.eq(taken),
            first.i.valid.eq(key_arrives | loading | taken),
            second.i.valid.eq(loading | (taken & ~scale)),
            first.i.payload.vec1.eq(q),
            second.i.payload.vec1.eq(k if p.identification == "centres" else q),
            first.i.payload.load.eq(loading),
            second.i.payload.load.eq(loading),
            first.i.payload.vec2.eq(
                Mux(
                    key_arrives,
                    Value.cast(self.response.payload.data),
                    Value.cast(op.payload.vectors[0]),
                )
            ),
            second.i.payload.vec2.eq(op.payload.vectors[1]),
            first.i.payload.scal.eq(op.payload.factor),
            second.i.payload.scal.eq(op.payload.factor),
            first.i.payload.mode.eq(
                Mux(loading, Mode.NONE, Mux(scale & ~key_arrives, Mode.S, Mode.DP))
            ),
            second.i.payload.mode.eq(Mux(loading, Mode.NONE, Mode.DP)),
            second.o_vec.ready.eq(1),
            self._tags.i.valid.eq((key_arrives & first.i.ready) | (taken & ~scale)),
            self._tags.i.payload.exact.eq(key_arrives),
            self._tags.i.payload.index.eq(number),
        ]
        wiring.connect(m, first.o_vec, source.vector)

    def _results(self, m: Module, source, exact, loading) -> tuple[Signal, Value]:
        """Scores out, and their maximum. Returns (its order key, scores are under way)."""
        p = self.parameters
        # Results leave the VPUs in the order of operations, which the queue of tags repeats.
        first, second = self._vpus
        tag = self._tags.o
        # Estimated scores wait a cycle for M's bits.
        waiting = Signal(score_layout(p))
        bits = Signal(2)
        is_exact, is_estimate = Signal(), Signal()
        m.d.sync += waiting.eq(source.score)
        old_bits = data.ArrayLayout(2, p.d // 2)(self._words.score_bits)
        m.d.comb += [
            self._words.score_row.eq(source.score.index >> p.element_bits),
            bits.eq(Array(old_bits)[waiting.index[1 : p.element_bits]]),
            is_exact.eq(tag.valid & tag.payload.exact & first.o_scal.valid & ~waiting.valid),
            is_estimate.eq(
                tag.valid & ~tag.payload.exact & first.o_scal.valid & second.o_scal.valid
            ),
            first.o_scal.ready.eq(is_exact | is_estimate),
            second.o_scal.ready.eq(is_estimate),
            tag.ready.eq(is_exact | is_estimate),
            source.result.valid.eq(is_estimate),
            source.result.payload.dots[0].eq(first.o_scal.payload),
            source.result.payload.dots[1].eq(second.o_scal.payload),
        ]
        # Estimates of positions in the window are dropped, because those have exact scores.
        below = Signal(2)  # the window
        m.d.comb += below.eq(Cat(waiting.index + k < source.old for k in range(2)))
        # An estimate comes with the scores of two positions, an exact score alone; estimates have
        # priority because they cannot wait.
        with m.If(waiting.valid):
            m.d.comb += [
                self.score_index.eq(waiting.index),
                self.scores.eq(waiting.s),
                self.score_keep.eq(~bits & below),
            ]
        with m.Else():
            m.d.comb += [
                self.score_index.eq(Cat(0, tag.payload.index[1:])),
                self.scores[0].eq(first.o_scal.payload),
                self.scores[1].eq(first.o_scal.payload),
                self.score_keep.eq(Cat(~tag.payload.index[0], tag.payload.index[0])),
            ]
        m.d.comb += self.score_valid.eq(waiting.valid | is_exact)
        with m.If(is_exact):
            m.d.sync += exact.eq(exact + 1)

        # The maximum, as integers: the larger one of a pair first, then all of them.
        keys = [Signal(FP16.width, name=f"score_key_{k}") for k in range(2)]
        larger = Signal(FP16.width, init=NAN_KEY)
        maximum = Signal(FP16.width)
        changed = Signal()
        for number, key in enumerate(keys):
            kept = self.score_valid & self.score_keep[number]
            m.d.comb += key.eq(Mux(kept, to_key(self.scores[number]), NAN_KEY))
        m.d.sync += [
            larger.eq(Mux(keys[0] > keys[1], *keys)),
            changed.eq(self.score_valid),
        ]
        # Two comparisons in two cycles keep each path short.
        with m.If(larger > maximum):
            m.d.sync += maximum.eq(larger)
        # A new head: below every number, because no position has been seen.
        with m.If(loading):
            m.d.sync += [maximum.eq(NAN_KEY), exact.eq(0)]
        return maximum, source.score.valid | waiting.valid | changed


def score_command_layout(p: LadTileParameters) -> data.StructLayout:
    """A head of a token with ``n`` positions; ``first`` of its kv head."""
    return data.StructLayout(
        {"head": p.head_index, "kv_head": p.kv_head_index, "n": p.number, "first": FLAG}
    )


def identified_layout(p: LadTileParameters) -> data.StructLayout:
    """The maximum ``m``; numbers of positions in M, ``large``, of ``centres``; ``rows`` read."""
    return data.StructLayout(
        {"m": FP16, "large": p.number, "centres": p.number, "rows": p.rows_count}
    )


def label_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout({"number": index(p.label_bits - 2), "kind": Kind})
