"""Efficient attention scores: of all positions, most of them estimated (LAD, IV-B, part 2)."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, enum, wiring

from hw.arith.bits.order_key import from_key
from hw.arith.float_format import FP16
from hw.component import Component
from hw.lad.linear import lend, linear_ports
from hw.lad.mode_words import ModeWords
from hw.lad.scores.centre_scores import CentreScores
from hw.lad.scores.code_scores import CodeScores
from hw.lad.scores.exact_keys import ExactKeys
from hw.lad.scores.score_output import ScoreOutput
from hw.lad.scores.score_source import score_command_layout
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


class _Ask:
    """A row that a state requests."""

    def __init__(self, p: LadTileParameters):
        self.valid = Signal(name="asks")
        self.label = Signal(label_layout(p), name="asked_label")
        self.address = Signal(p.address_width, name="asked_address")
        self.write = Signal(name="asks_write")


class Eas(Component[LadTileParameters]):
    """Scores of a head's positions, and their maximum.

    ::

        G ─→ mode ≥ near: M ───→ keys of M, window ─→ VPU 0 ─────────────┬─→ s
        codes of keys, or keys of centres ─→ VPU 0, VPU 1 ─→ × ─→ not in M ┘   └─→ maximum m

    A command is a head. The first query head of each kv head also stores the new token's K and V,
    and encodes K for the later steps (or looks for its centre). Then the words of G are read and
    output, with a zero for the new position. Positions before the window whose mode's interval
    begins at `near` or above are M: their scores, and the window's, are products with the
    whole key. The others' scores are estimated (:mod:`hw.lad.scores.score_source`): they only
    decide which positions are active.

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
            "q": stream_in(p.row_layout),
            "kv": stream_in(p.row_layout, "With a `first` command the new K, then V."),
            "request": stream_out(p.block_memory.request_layout),
            "response": stream_in(p.block_memory.response_layout),
            "words_valid": wire_out(1, "A row of G, zero from the new position on."),
            "words_row": wire_out(index(range(max(2, p.table_rows))), "Number of that row."),
            "words": wire_out(data.ArrayLayout(p.word_layout, p.d), "Words of its d positions."),
            "score_valid": wire_out(
                1, "Scores of a pair of positions, the first one even, those in `score_keep`."
            ),
            "score_index": wire_out(range(p.positions + 2), "Position of the pair's first one."),
            "scores": wire_out(data.ArrayLayout(FP16, 2), "The pair of scores, FP16."),
            "score_keep": wire_out(mask(2), "Mask of the final ones."),
            "query": wire_out(p.row_layout, "The head's row of `q`."),
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
        by_centres = p.identification == "centres"
        m.submodules.source = source = CentreScores(p) if by_centres else CodeScores(p)
        command, q, k, old, last = self._head(m, source)
        answered = data.View(label_layout(p), self.response.payload.tag)
        m.submodules.words = self._words = ModeWords(p)
        tables = self._mode_words(m, answered, last, old)
        exact = Signal(range(p.positions + 1))  # exact scores that have left
        loading = Signal()
        scoring = Signal()
        m.d.comb += source.go.eq(scoring & tables)
        ask = self._port(m, source, answered)
        keys = self._exact_keys(m, source, loading, command.n)
        key = keys.position
        key_arrives = self.response.valid & (answered.kind == Kind.KEY)
        self._multiply(m, source, q, k, key_arrives, answered.number, loading)
        output = self._results(m, source, exact, loading)
        if p.weights:
            for vpu, port in zip(self._vpus, self.linear, strict=True):
                lend(m, vpu, port)
        counted, rows = self._count_rows(m)
        with m.FSM():
            with m.State("IDLE"):
                # A command and its q are accepted together; the first head of a kv head stores the
                # new key and value before it looks for scores.
                m.d.comb += [
                    self.command.ready.eq(self.q.valid),
                    self.q.ready.eq(self.command.valid),
                ]
                m.d.sync += [x.eq(0) for x in (rows, self._g_row)]
                with m.If(self.command.valid & self.q.valid):
                    m.d.sync += [command.eq(self.command.payload), q.eq(self.q.payload)]
                    m.next = "LOAD"
                    with m.If(self.command.payload.first):
                        m.next = "STORE_K"
            self._store_states(m, ask, source, command.kv_head, last, k)
            self._word_states(m, ask, source, command.head, loading, counted)
            with m.State("SCORES"):
                # Keys of M and of the window, and rows of the estimate, as they come.
                m.d.comb += [counted.eq(1), scoring.eq(1)]
                with m.If(key.valid):
                    self._ask(m, ask, Kind.KEY, command.kv_head, key.payload, "k")
                    m.d.comb += key.ready.eq(self.request.ready)
                # All keys are requested, and no score is under way.
                with m.If(source.done & keys.finished & (exact == keys.emitted) & ~output.pending):
                    m.next = "DONE"
            with m.State("DONE"):
                # All scores have left; the maximum is final and APID may decide.
                m.d.comb += self.identified.valid.eq(1)
                with m.If(self.identified.ready):
                    m.next = "IDLE"
        found = self.identified.payload
        m.d.comb += [
            self.query.eq(q),
            found.m.eq(from_key(output.maximum)),
            found.large.eq(keys.large),
            found.rows.eq(rows),
        ]
        if by_centres:
            m.d.comb += [source.first.eq(command.first), found.centres.eq(source.centres)]
        return m

    def _head(self, m: Module, source) -> tuple[Any, Any, Any, Signal, Any]:
        """The head's command, query and new key; positions before the window, the new position."""
        p = self.parameters
        command = Signal(score_command_layout(p), reset_less=True)
        q = Signal(p.row_layout, reset_less=True)
        k = Signal(p.row_layout, reset_less=True)
        old = Signal(range(p.positions + 1))
        last = Signal(p.position)
        m.d.comb += [
            old.eq(Mux(command.n > p.window, command.n - p.window, 0)),
            last.eq(command.n - 1),
            source.kv_head.eq(command.kv_head),
            source.position.eq(last),
            source.old.eq(old),
            source.k.eq(k),
        ]
        return command, q, k, old, last

    def _mode_words(self, m: Module, answered, last: Signal, old: Signal) -> Signal:
        """Rows of G to the bits of M, and out. Returns: all that were requested are there."""
        p, words = self.parameters, self._words
        self._g_row, self._g_rows, self._g_remaining = (
            Signal(range(p.table_rows + 1), name=f"g_{name}")
            for name in ("row", "rows", "remaining")
        )
        tables = Signal()
        arrives = self.response.valid & (answered.kind == Kind.G)
        m.d.comb += [
            words.begin.eq(self.command.ready & self.command.valid),
            words.last.eq(last),
            words.old.eq(old),
            words.arrives.eq(arrives),
            words.row.eq(answered.number),
            words.data.eq(self.response.payload.data),
            self.words_valid.eq(words.words_valid),
            self.words_row.eq(words.words_row),
            self.words.eq(words.words),
            self._g_rows.eq((last + (p.d - 1)) >> p.element_bits),
            tables.eq(self._g_remaining == 0),
        ]
        # Rows of G may come while further ones are requested.
        with m.If(arrives):
            m.d.sync += self._g_remaining.eq(self._g_remaining - 1)
        return tables

    def _port(self, m: Module, source, answered) -> "_Ask":
        """The memory port: of the estimate, in cycles in which no state requests a row."""
        p, request, response = self.parameters, self.request, self.response
        ask = _Ask(p)
        offered = source.request.payload
        label = Signal(label_layout(p))
        m.d.comb += [
            request.valid.eq(ask.valid | source.request.valid),
            request.payload.tag.eq(Mux(ask.valid, Value.cast(ask.label), Value.cast(label))),
            label.kind.eq(Mux(offered.table, Kind.TABLE, Kind.OTHER)),
            label.number.eq(offered.number),
            request.payload.address.eq(Mux(ask.valid, ask.address, offered.address)),
            request.payload.write.eq(Mux(ask.valid, ask.write, offered.write)),
            # A state writes the new token's rows alone.
            Value.cast(request.payload.data).eq(
                Mux(ask.write, Value.cast(self.kv.payload), Value.cast(offered.data))
            ),
            source.request.ready.eq(request.ready & ~ask.valid),
            # A row is accepted by whoever requested it, which its label says. A key goes straight
            # to the first VPU, all other kinds are stored at once.
            response.ready.eq(
                Mux(
                    answered.kind.matches(Kind.OTHER, Kind.TABLE),
                    source.response.ready,
                    (answered.kind != Kind.KEY) | self._vpus[0].i.ready,
                )
            ),
            source.response.valid.eq(
                response.valid & answered.kind.matches(Kind.OTHER, Kind.TABLE)
            ),
            source.response.payload.table.eq(answered.kind == Kind.TABLE),
            source.response.payload.number.eq(answered.number),
            source.response.payload.data.eq(response.payload.data),
        ]
        return ask

    def _count_rows(self, m: Module) -> tuple[Signal, Signal]:
        """Rows read in this head-step, for the report. Returns (they count, their number).

        The new key's own reads, for centres, would count once for each kv head and not for each
        head.
        """
        request = self.request
        counted = Signal()
        rows = Signal(self.parameters.rows_count)
        with m.If(request.valid & request.ready & ~request.payload.write & counted):
            m.d.sync += rows.eq(rows + 1)
        return counted, rows

    def _exact_keys(self, m: Module, source, loading: Signal, n: Value) -> ExactKeys:
        """Keys with exact scores, once M is known."""
        m.submodules.keys = keys = ExactKeys(self.parameters)
        m.d.comb += [
            keys.restart.eq(loading),
            keys.go.eq(source.go),
            keys.old.eq(source.old),
            keys.n.eq(n),
            self._words.scan_row.eq(keys.row),
            keys.bits.eq(self._words.scan_bits),
        ]
        return keys

    def _ask(self, m: Module, ask: "_Ask", kind: Kind, part: Value, row: Value, region="g") -> None:
        """A state requests a row of a head's or kv head's part of a table."""
        m.d.comb += [
            ask.valid.eq(1),
            ask.label.kind.eq(kind),
            ask.label.number.eq(row),
            ask.address.eq(self.parameters.regions[region].address_of(part, row)),
        ]

    def _store_states(self, m: Module, ask: "_Ask", source, kv_head, last, k: Signal) -> None:
        """The new token's rows to memory, once for each kv head."""
        # K is kept, to be encoded; V is not needed until its position is active.
        for name, region, following in (("STORE_K", "k", "STORE_V"), ("STORE_V", "v", "ENCODE")):
            with m.State(name):
                with m.If(self.kv.valid):
                    m.d.comb += [
                        ask.valid.eq(1),
                        ask.address.eq(self.parameters.regions[region].address_of(kv_head, last)),
                        ask.write.eq(1),
                        self.kv.ready.eq(self.request.ready),
                    ]
                    if region == "k":
                        m.d.sync += k.eq(self.kv.payload)
                    with m.If(self.request.ready):
                        m.next = following
        with m.State("ENCODE"):
            # The source writes codes and unit of the new key, or nothing where centres are kept.
            m.d.comb += source.store.eq(1)
            with m.If(source.stored):
                m.next = "LOAD"

    def _word_states(self, m: Module, ask: "_Ask", source, head, loading, counted) -> None:
        """The query to the VPUs, and the head's rows of G."""
        with m.State("LOAD"):
            # The VPUs are empty, so each of them stores its vector at once.
            m.d.comb += loading.eq(1)
            m.d.sync += self._g_remaining.eq(self._g_rows)
            m.next = "TABLES"
        with m.State("TABLES"):
            # Rows of G; the new position's own word is not in memory yet.
            m.d.comb += counted.eq(1)
            with m.If(self._g_row == self._g_rows):
                m.d.comb += source.begin.eq(1)
                m.next = "SCORES"
            with m.Else():
                self._ask(m, ask, Kind.G, head, self._g_row)
                with m.If(self.request.ready):
                    m.d.sync += self._g_row.eq(self._g_row + 1)

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
        fire = Signal()
        key, code = self.response.payload.data, op.payload.vectors[0]
        m.d.comb += [
            # The second VPU has none but operations of the first, and so room where that has.
            fire.eq(op.valid & ~key_arrives & first.i.ready),
            op.ready.eq(fire),
            first.i.valid.eq(key_arrives | loading | fire),
            second.i.valid.eq(loading | (fire & ~scale)),
            first.i.payload.vec1.eq(q),
            second.i.payload.vec1.eq(k if p.identification == "centres" else q),
            first.i.payload.load.eq(loading),
            second.i.payload.load.eq(loading),
            first.i.payload.vec2.eq(Mux(key_arrives, Value.cast(key), Value.cast(code))),
            second.i.payload.vec2.eq(op.payload.vectors[1]),
            first.i.payload.scal.eq(op.payload.factor),
            second.i.payload.scal.eq(op.payload.factor),
            first.i.payload.mode.eq(Mux(loading, Mode.NONE, Mux(scale, Mode.S, Mode.DP))),
            second.i.payload.mode.eq(Mux(loading, Mode.NONE, Mode.DP)),
            second.o_vec.ready.eq(1),
            self._tags.i.valid.eq((key_arrives & first.i.ready) | (fire & ~scale)),
            self._tags.i.payload.exact.eq(key_arrives),
            self._tags.i.payload.index.eq(number),
        ]
        wiring.connect(m, first.o_vec, source.vector)

    def _results(self, m: Module, source, exact, loading) -> ScoreOutput:
        """Results of the VPUs: exact scores, which are counted, or the estimate's."""
        p = self.parameters
        # Results leave the VPUs in the order of operations, which the queue of tags repeats.
        first, second = self._vpus
        tag = self._tags.o
        m.submodules.output = output = ScoreOutput(p)
        is_exact = Signal()
        is_estimate = Signal()
        m.d.comb += [
            is_exact.eq(tag.valid & tag.payload.exact & first.o_scal.valid & output.ready),
            # The second VPU's product is there as soon as the first one's.
            is_estimate.eq(tag.valid & ~tag.payload.exact & first.o_scal.valid),
            first.o_scal.ready.eq(is_exact | is_estimate),
            second.o_scal.ready.eq(is_estimate),
            tag.ready.eq(is_exact | is_estimate),
            source.result.valid.eq(is_estimate),
            source.result.payload.dots[0].eq(first.o_scal.payload),
            source.result.payload.dots[1].eq(second.o_scal.payload),
            output.restart.eq(loading),
            output.old.eq(source.old),
            output.estimate.eq(source.score),
            self._words.score_row.eq(output.bits_row),
            output.bits.eq(self._words.score_bits),
            output.exact_valid.eq(is_exact),
            output.exact_index.eq(tag.payload.index),
            output.exact.eq(first.o_scal.payload),
            *(
                getattr(self, name).eq(getattr(output, name))
                for name in ("score_valid", "score_index", "scores", "score_keep")
            ),
        ]
        with m.If(is_exact):
            m.d.sync += exact.eq(exact + 1)
        with m.If(loading):  # a new head: no position has been seen
            m.d.sync += exact.eq(0)
        return output


def identified_layout(p: LadTileParameters) -> data.StructLayout:
    """The maximum ``m``; numbers of positions in M, ``large``, of ``centres``; ``rows`` read."""
    return data.StructLayout(
        {"m": FP16, "large": p.number, "centres": p.number, "rows": p.rows_count}
    )


def label_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout({"number": index(p.label_bits - 2), "kind": Kind})
