"""Mode discrepancy module: exact scores of active positions (LAD, section IV-B, part 4)."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring

from hw.arith.bits.order_key import to_key
from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_format import FP16
from hw.component import Component
from hw.lad.apid_parameters import MODE_BITS
from hw.lad.caches.counter_rows import CounterRows, counter_row_layout
from hw.lad.correction import STAGES, Correction
from hw.lad.linear import lend, linear_ports
from hw.lad.tile_parameters import LadTileParameters, StageParameters
from hw.lad.vpu import Mode, Vpu
from hw.layout import FLAG, index
from hw.ports import Ports, stream_in, stream_out, wire_out
from hw.stream.queue import Queue, QueueParameters

INTERVAL = STAGES
"""The pipeline stage, counted from 0, in which x is known; the next one has its interval."""

CORRECTED = INTERVAL + 3 * STAGES
"""The stage that has the correction."""


class MdParameters(StageParameters):
    __doc__ = LadTileParameters.__doc__

    @property
    def latency(self) -> int:
        """Cycles from a key to its correction."""
        return self.vpu.dot_latency + CORRECTED + 1


class Md(Component[LadTileParameters]):
    """What active positions add to the output, and which of them change their mode.

    ::

        K[j] ─→ VPU ─→ s - m ─→ interval id ─→ alpha = a[id] - a[mode] ─→ alpha (s - m) + beta ─→ cf
        q ──────↑                   │          beta = b[id] - b[mode]
                                    └──→ counters[j, id] + 1 ─→ mode, count, counters of j

    For each entry of a head, in ascending order, the exact score s = q . K[j] is computed. Its
    interval is the last one whose lower bound is smaller than s - m; a score that is infinite or
    NaN counts as interval 0. If the interval's counter exceeds the mode's, it becomes the mode. The
    oldest position of the window always takes the interval as its mode, the others of the window
    never do. At most `updates` - 1 other positions change in a step: AC keeps the rows of those
    that do. Further ones keep their mode, which is not wrong, as `cf` corrects for it.

    A counter that becomes full, 2^bits - 1, is halved with all others of the position. An entry
    marked ``halve`` is an inactive position whose mode's counter was halved by APID: only its
    other counters are halved here, and nothing is output.

    The counters of `counter_words` positions share a row. A row is accepted with its first entry
    and written back once, when an entry is in another row or after the last one. The entry of the
    mode itself is out of date; its counter is in G.

    Latency: dot_latency of the VPU + 9 cycles from a key to its correction. Throughput: one
    position per cycle. A head of E entries takes E + dot_latency + 10 cycles, from its command to
    the next one: the paper's |J| / 2 (equation 7) becomes |J|.

    The paper has two VPUs here, for two positions per cycle. With a memory port of one row per
    cycle, a position's K and V take two cycles, so one VPU is enough.

    Handshake: ``command`` is accepted when nothing of the last head is left. ``correction`` that is
    not accepted stops the pipeline after the VPU. ``g`` has no handshake. Overflow: as in the VPU.

    Examples
    --------
    >>> from hw.lad.md import MdParameters
    >>> parameters = MdParameters(d=128, prefetch=0, weights=0)
    >>> parameters.latency, parameters.counter_words
    (27, 16)
    """

    summary = "Factors of active positions, and which of them change their mode"
    source = "LAD, section IV-B, part 4"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(command_layout(p), "Heads: query, maximum, number of positions."),
            "key": stream_in(
                key_layout(p),
                "Entries with their rows of K, which do not matter with ``halve``. The last one "
                "of a head is active, and the window's have mode 0.",
            ),
            "counters": stream_in(p.row_layout, "Rows of the head's mode counters."),
            "written": stream_out(counter_row_layout(p), "Rows of counters with their numbers."),
            "g_valid": wire_out(1, "A word of G is there."),
            "g_index": wire_out(p.position, "Position of the word of G."),
            "g_word": wire_out(p.word_layout, "An active position's new word of G."),
            "correction": stream_out(correction_layout(), "One for each active position."),
            "totals": wire_out(
                totals_layout(p),
                "Counts of the head, valid with its last correction and until the next command.",
            ),
            "idle": wire_out(1, "Nothing of a head is left."),
            **linear_ports(p, "the VPU, while no head is here."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        command = Signal(command_layout(p), reset_less=True)
        busy = Signal()
        m.submodules.rows = rows = self._rows = CounterRows(p)
        wiring.connect(m, wiring.flipped(self.counters), rows.counters)
        wiring.connect(m, rows.written, wiring.flipped(self.written))
        m.d.comb += [
            self.idle.eq(~busy & ~rows.flush & ~self.written.valid),
            self.command.ready.eq(self.idle),
        ]
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += [command.eq(self.command.payload), busy.eq(1)]

        # Dot product, difference to the maximum, interval, counters, correction: a stage's record
        # holds what the arithmetic beside it does not.
        entry, score, valid, taken = self._score(m, command)
        advance = Signal()
        m.d.comb += taken.eq(advance)

        # One record for each stage, moving along with the arithmetic: entries up to stage INTERVAL,
        # behind it what has become of them.
        stages: list[Any] = [
            Signal(_record_layout(p), name=f"stage_{number}") for number in range(INTERVAL)
        ]
        outcomes: list[Any] = [
            Signal(_outcome_layout(), name=f"stage_{number}")
            for number in range(INTERVAL + 1, CORRECTED + 1)
        ]
        with m.If(advance):
            m.d.sync += [
                stages[0].valid.eq(valid),
                stages[0].entry.eq(entry),
                stages[0].infinite.eq(score[FP16.mantissa : -1].all()),
            ]
            for records in (stages, outcomes):
                pairs = zip(records, records[1:], strict=False)
                m.d.sync += [after.eq(before) for before, after in pairs]
        x = self._difference(m, advance, score, command.m)
        found = self._interval(m, advance, x, stages[-1])
        m.d.comb += [
            rows.valid.eq(found.valid),
            rows.position.eq(found.entry.index),
            rows.last.eq(found.entry.last),
            rows.advance.eq(advance),
        ]
        changed = self._count(m, advance, command, found)
        with m.If(advance):
            m.d.sync += [
                outcomes[0].active.eq(found.valid & ~found.entry.halve),
                outcomes[0].last.eq(found.entry.last),
                outcomes[0].infinite.eq(found.infinite),
                outcomes[0].minus.eq(Mux(changed, found.entry.mode, 0)),
                outcomes[0].plus.eq(Mux(changed, found.interval, 0)),
                outcomes[0].changed.eq(changed),
            ]
        m.submodules.correct = correct = Correction(p)
        m.d.comb += [
            correct.advance.eq(advance),
            correct.x.eq(found.x),
            correct.interval.eq(found.interval),
            correct.mode.eq(found.entry.mode),
        ]

        out = outcomes[-1]
        correction = self.correction
        m.d.comb += [
            correction.valid.eq(out.active & ~rows.stall),
            correction.payload.cf.eq(correct.cf),
            *(
                getattr(correction.payload, name).eq(getattr(out, name))
                for name in ("minus", "plus", "changed", "infinite", "last")
            ),
            advance.eq(~rows.stall & (~correction.valid | correction.ready)),
        ]
        with m.If(correction.valid & correction.ready & out.last):
            m.d.sync += busy.eq(0)
        return m

    def _score(self, m: Module, command) -> tuple[Value, Value, Signal, Signal]:
        """Returns (entry, its score, valid, accept them)."""
        p = self.parameters
        m.submodules.vpu = vpu = Vpu(p.vpu)
        m.submodules.entries = entries = Queue(QueueParameters(depth=32), shape=p.entry_layout)
        key = self.key
        first = Signal(init=1)  # the query is not in the VPU yet
        loading = Signal()  # keys of the head are to come
        operation = vpu.i.payload
        halve = key.payload.entry.halve
        # The VPU and the queue accept a key together; without a score the VPU is left out.
        m.d.comb += [
            vpu.i.valid.eq(key.valid & loading & ~halve & entries.i.ready),
            operation.mode.eq(Mode.DP),
            # The head's query is loaded into the VPU with its first key.
            operation.load.eq(first),
            operation.vec1.eq(command.q),
            operation.vec2.eq(key.payload.data),
            operation.scal.eq(command.m),  # not used by a dot product
            entries.i.valid.eq(key.valid & loading & (halve | vpu.i.ready)),
            entries.i.payload.eq(key.payload.entry),
            key.ready.eq(loading & entries.i.ready & (halve | vpu.i.ready)),
            vpu.o_vec.ready.eq(1),
        ]
        with m.If(vpu.i.valid & vpu.i.ready):
            m.d.sync += first.eq(0)
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += [first.eq(1), loading.eq(1)]
        with m.Elif(key.valid & key.ready & key.payload.entry.last):
            m.d.sync += loading.eq(0)
        taken, valid = Signal(name="entry_taken"), Signal(name="entry_valid")
        entry = entries.o.payload
        m.d.comb += [
            # An entry that is only to be halved needs no score and must still be in order.
            valid.eq(entries.o.valid & (entry.halve | vpu.o_scal.valid)),
            entries.o.ready.eq(taken & valid),
            vpu.o_scal.ready.eq(taken & valid & ~entry.halve),
        ]
        if p.weights:
            lend(m, vpu, self.linear)
        return entry, vpu.o_scal.payload, valid, taken

    def _difference(self, m: Module, advance, score, maximum) -> Value:
        """x = s - m, in stage INTERVAL - 1."""
        m.submodules.score_difference = subtract = FloatAdd(FloatAddParameters(stages=STAGES))
        m.d.comb += [
            subtract.enable.eq(advance),
            subtract.a.eq(score),
            subtract.b.eq(maximum),
            subtract.subtract.eq(1),
        ]
        return subtract.o

    def _interval(self, m: Module, advance, x, before) -> Any:
        """The record of stage INTERVAL, with x and the number of the interval that x is in."""
        p = self.parameters
        # Order keys compare as unsigned integers, with one comparator for each bound.
        key = Signal(FP16.width, name="x_key")
        exceeded = Signal(p.intervals - 1)
        bounds = p.tables.bounds
        m.d.comb += [key.eq(to_key(x)), exceeded.eq(Cat(key > bound for bound in bounds))]
        number = Signal(MODE_BITS)  # bounds ascend: `exceeded` is a thermometer code
        with m.If(~before.infinite):
            for bound in range(p.intervals - 1):
                with m.If(exceeded[bound]):
                    m.d.comb += number.eq(bound + 1)
        found = Signal(_found_layout(p), name="found")
        with m.If(advance):
            m.d.sync += [
                *(getattr(found, name).eq(getattr(before, name)) for name, _ in before.shape()),
                found.interval.eq(number),
                found.x.eq(x),
                found.above.eq(key > 1 << FP16.width - 1),
            ]
        return found

    def _count(self, m: Module, advance, command, found) -> Signal:
        """Counters of stage INTERVAL's position. Returns: its mode changes.

        The mode's counter is in G, those of the other intervals are in rows.
        """
        p = self.parameters
        entry, bits = found.entry, p.counter_bits
        word, new_word = self._word(m, command, entry)
        # The counter of the position's interval, whichever it is, is one more.
        same = Signal()
        risen = Signal(bits)
        count = Signal(bits)
        m.d.comb += [
            same.eq(found.interval == entry.mode),
            risen.eq(Array(word)[found.interval] + 1),
            count.eq(entry.count + same),
        ]
        credit = Signal(range(p.updates), init=0)  # further changes of old positions
        changed, leaving = self._changes(m, command, entry, same, risen, credit)
        # A counter that is full is halved with all others of the position.
        full = (1 << bits) - 1
        overflow = Signal()
        m.d.comb += overflow.eq(entry.halve | (count == full) | (~same & (risen == full)))
        after = Signal(data.ArrayLayout(bits, p.intervals))
        for interval in range(p.intervals):
            value = Signal(bits, name=f"counter_{interval}")
            with m.If(~entry.halve & ~same & (found.interval == interval)):
                m.d.comb += value.eq(risen)
            with m.Elif(changed & (entry.mode == interval)):
                m.d.comb += value.eq(entry.count)
            with m.Else():
                m.d.comb += value.eq(word[interval])
            m.d.comb += after[interval].eq(Mux(overflow, value >> 1, value))
        m.d.comb += new_word.eq(Value.cast(after))
        # The outcome is a word of G.
        is_active = Signal()
        m.d.comb += [
            is_active.eq(found.valid & advance & ~entry.halve),
            self.g_valid.eq(is_active),
            self.g_index.eq(entry.index),
            self.g_word.count.eq(Mux(changed, risen, count) >> overflow),
            self.g_word.mode.eq(Mux(changed, found.interval, entry.mode)),
            self.g_word.active.eq(1),
        ]
        self._total(m, is_active, found, changed, leaving, credit)
        return changed

    def _word(self, m: Module, command, entry) -> tuple[Any, Signal]:
        """The position's counters in their row, and the place for the new ones."""
        p, rows = self.parameters, self._rows
        in_row = (p.counter_words - 1).bit_length()
        words = data.ArrayLayout(p.counter_word_bits, p.counter_words)(rows.row)
        place = entry.index[:in_row] if in_row else Value.cast(0)
        is_new = Signal()
        word = Signal(data.ArrayLayout(p.counter_bits, p.intervals))
        counts = Signal(p.intervals * p.counter_bits)
        m.d.comb += [
            # The new position's counters are not in memory yet.
            is_new.eq(entry.index == (command.n - 1)[: len(entry.index)]),
            counts.eq(Array(words)[place] if p.counter_words > 1 else words[0]),
            word.eq(Mux(is_new, 0, counts)),
        ]
        new_word = Signal(p.intervals * p.counter_bits)
        row_out = words.shape()(rows.new_row)
        for position in range(p.counter_words):
            chosen = place == position if p.counter_words > 1 else 1
            m.d.comb += row_out[position].eq(Mux(chosen, new_word, words[position]))
        return word, new_word

    def _changes(self, m: Module, command, entry, same, risen, credit) -> tuple[Signal, Signal]:
        """Whether the position's mode changes; whether the position leaves the window."""
        p = self.parameters
        rises = Signal()  # above the mode's counter
        old = Signal()
        leaving = Signal()
        changed = Signal()
        first = Signal(len(command.n) + 1)  # n - window, the first position of the window
        m.d.comb += [
            rises.eq(~same & (risen > entry.count)),
            first.eq(command.n - p.window),
            old.eq(~first[-1] & (entry.index < first)),
            leaving.eq(~first[-1] & (entry.index == first)),
            changed.eq(~entry.halve & ~same & (leaving | (rises & old & (credit != 0)))),
        ]
        return changed, leaving

    def _total(self, m: Module, is_active, found, changed, leaving, credit) -> None:
        """Numbers of the head's positions so far, and of the changes it may still make."""
        totals = self.totals
        with m.If(is_active):
            m.d.sync += [
                totals.active.eq(totals.active + 1),
                totals.fresh.eq(totals.fresh + found.entry.fresh),
                totals.above.eq(totals.above + found.above),
                totals.updated.eq(totals.updated + (changed | leaving)),
            ]
            with m.If(changed & ~leaving):
                m.d.sync += credit.eq(credit - 1)
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += [totals.eq(0), credit.eq(self.parameters.updates - 1)]


def command_layout(p: LadTileParameters) -> data.StructLayout:
    """A head: its query ``q``, the maximum ``m`` of its scores, its number ``n`` of positions."""
    return data.StructLayout({"q": p.row_layout, "m": FP16, "n": p.number})


def key_layout(p: LadTileParameters) -> data.StructLayout:
    """An entry and its position's row of K."""
    return data.StructLayout({"entry": p.entry_layout, "data": p.row_layout})


def correction_layout() -> data.StructLayout:
    """``cf``, a factor of V[j]. ``changed``: the mode changes from ``minus`` to ``plus``.
    ``infinite``: the score is infinite or NaN. ``last`` of the head."""
    mode = index(MODE_BITS)
    return data.StructLayout(
        {"cf": FP16, "minus": mode, "plus": mode, "changed": FLAG, "infinite": FLAG, "last": FLAG}
    )


def totals_layout(p: LadTileParameters) -> data.StructLayout:
    """Numbers of positions: ``active``; ``fresh``, not active in the step before; ``updated``,
    which changed their mode, with the one that leaves the window; ``above`` m."""
    return data.StructLayout(dict.fromkeys(("active", "fresh", "updated", "above"), p.number))


def _record_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout({"valid": FLAG, "entry": p.entry_layout, "infinite": FLAG})


def _found_layout(p: LadTileParameters) -> data.StructLayout:
    fields = {name: field.shape for name, field in _record_layout(p)}
    return data.StructLayout(fields | {"interval": index(MODE_BITS), "x": FP16, "above": FLAG})


def _outcome_layout() -> data.StructLayout:
    fields = {name: field.shape for name, field in correction_layout() if name != "cf"}
    return data.StructLayout({"active": FLAG} | fields)
