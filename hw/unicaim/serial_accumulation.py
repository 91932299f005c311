"""Accumulated scores of rows from a memory, some rows a cycle, and the row to evict next."""

from typing import NamedTuple

from amaranth.hdl import Array, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import memory

from hw.component import Component
from hw.ports import Ports
from hw.unicaim.accumulation_pass import AccumulationPass
from hw.unicaim.command import CommandOp
from hw.unicaim.core_parameters import STAGES, UnicaimCoreParameters
from hw.unicaim.row_accumulation import accumulation_ports
from hw.unicaim.serial_division import SerialDivision


class HeadState(NamedTuple):
    """What is known of a kv head.

    total, rows
        Sum of its accumulations, in offset binary, so that sums and comparisons need no signs; and
        number of its rows in use, the first ones.
    new_total, new_rows, set
        What replaces them, 0 unless it is driven, and when.
    """

    total: Signal
    rows: Signal
    new_total: Signal
    new_rows: Signal
    set: Signal


class SerialAccumulation(Component[UnicaimCoreParameters]):
    """What a command does to the accumulations of its kv head (UniCAIM, section III-B4).

    The same as :class:`hw.unicaim.row_accumulation.RowAccumulation`, for a small part of its area:
    accumulations, and sums of a group's scores, are in memories of `accumulators` rows a word.

    A query's scores are taken in a pass over all words, in which the array waits. A pass leaves
    the sum of the kv head's accumulations, so that the mean of a new row is one division; and the
    lowest one, which is the row to evict. Rows start in ascending order until all are in use, as
    the row manager gives them, so a number says which are.

    Cycles of a job: 3 to start a row, and one for each bit of an accumulation if it starts from a
    mean; `pass_cycles` for each query, or to find a row to evict where no query came; one to hand
    that on, and one to be accepted.
    """

    def ports(self) -> Ports:
        return accumulation_ports(self.parameters)

    def elaborate(self, platform):
        m = Module()
        p, job = self.parameters, self.jobs.payload
        width = p.accumulator.width
        m.submodules.sweep = sweep = AccumulationPass(p)
        m.submodules.mean = mean = SerialDivision(p.rows, width)
        starting = Signal()  # the job's row takes `start`
        start = Signal(width)
        last_word = Signal()
        begins = Signal()  # a job, whose row's word is read
        old = self._memory(m, sweep, begins, starting, start, last_word)
        head = self._heads(m)
        # What a row in use had counts no longer when it starts again.
        in_use = job.row < head.rows
        rest_now = Signal.like(head.total)
        rest = Signal.like(head.total, reset_less=True)
        others = Signal.like(head.rows, reset_less=True)
        # The prompt's rows start from 0, and so does a row that is alone.
        of_mean = (job.op == CommandOp.STEP) if p.start == "mean" else Const(0)
        m.d.comb += [
            rest_now.eq(head.total - Mux(in_use, old, 0)),
            mean.dividend.eq(rest_now),
            mean.divisor.eq(others),
            start.eq(Mux(of_mean & others.any(), mean.quotient, 1 << width - 1)),
            sweep.used.eq(head.rows),
            self.evict.payload.row.eq(sweep.lowest),
        ]
        if p.kv_heads > 1:
            m.d.comb += self.evict.payload.context.eq(job.context)
        with m.FSM():
            with m.State("START"):
                m.d.comb += begins.eq(self.jobs.valid)
                with m.If(self.jobs.valid):
                    m.next = "TAKE"
                    with m.If(job.op == CommandOp.RESTART):
                        m.d.comb += head.set.eq(1)  # to 0
                        m.next = "DONE"
            with m.State("TAKE"):
                # The row's word has been read; what is left is the others' sum.
                m.d.comb += mean.start.eq(1)
                m.d.sync += [rest.eq(rest_now), others.eq(head.rows - in_use)]
                m.next = "STORE"
                with m.If(of_mean):
                    m.next = "DIVIDE"
            with m.State("DIVIDE"):
                with m.If(mean.last):
                    m.next = "STORE"
            with m.State("STORE"):
                # The new row takes part in this step's sharing, so it is written before.
                m.d.comb += [
                    starting.eq(1),
                    head.set.eq(1),
                    head.new_total.eq(rest + start),
                    head.new_rows.eq(others + 1),
                ]
                self._next(m, "SCAN")
                with m.If((job.op == CommandOp.STEP) & job.shares):
                    m.next = "SHARE"
            self._passes(m, sweep, head, last_word)
            # The job is done only when the row manager has the row, as the next job takes it.
            with m.State("FOUND"):
                m.d.comb += self.evict.valid.eq(1)
                with m.If(self.evict.ready):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.jobs.ready.eq(1)
                m.next = "START"
        return m

    def _passes(
        self, m: Module, sweep: AccumulationPass, head: HeadState, last_word: Signal
    ) -> None:
        """States of passes, of each query or of none, and of the cycles until their results."""
        waited = Signal(range(STAGES))
        ended = Signal()  # the pass was of a group's last query, or of none
        with m.State("SHARE"):
            # A query's scores stay where they are until the last word has been taken.
            m.d.comb += [sweep.valid.eq(self.values.valid), self.values.ready.eq(last_word)]
            m.d.sync += [ended.eq(self.values.payload.last), waited.eq(0)]
            with m.If(self.values.valid & last_word):
                m.next = "WAIT"
        with m.State("SCAN"):
            # No query has left the lowest row, as in a step without heads or a prompt's row.
            m.d.comb += [sweep.valid.eq(1), sweep.scans.eq(1)]
            m.d.sync += [ended.eq(1), waited.eq(0)]
            with m.If(last_word):
                m.next = "WAIT"
        with m.State("WAIT"):
            # The next pass reads what this one still writes, so it may not begin sooner.
            m.d.sync += waited.eq(waited + 1)
            m.d.comb += [head.new_total.eq(sweep.total), head.new_rows.eq(head.rows)]
            with m.If(waited == STAGES - 1):
                m.next = "SHARE"
                with m.If(ended):
                    m.d.comb += head.set.eq(1)
                    self._next(m, "FOUND")

    def _next(self, m: Module, if_full: str) -> None:
        """The job is done, but where all rows are in use one is to be found."""
        m.next = "DONE"
        with m.If(self.jobs.payload.full):
            m.next = if_full

    def _heads(self, m: Module) -> HeadState:
        """Registers of all kv heads, seen as those of the job's."""
        p, context = self.parameters, self.jobs.payload.context
        totals = Array(Signal(p.accumulation_total, name=f"total_{n}") for n in range(p.kv_heads))
        counts = Array(Signal(range(p.rows + 1), name=f"count_{n}") for n in range(p.kv_heads))
        total = Signal(p.accumulation_total)
        count = Signal(range(p.rows + 1))
        head = HeadState(
            total,
            count,
            new_total=Signal.like(total, name="new_total"),
            new_rows=Signal.like(count, name="new_rows"),
            set=Signal(name="set_head"),
        )
        m.d.comb += [total.eq(totals[context]), count.eq(counts[context])]
        for number in range(p.kv_heads):
            with m.If(head.set & (context == number)):
                m.d.sync += [totals[number].eq(head.new_total), counts[number].eq(head.new_rows)]
        return head

    def _memory(
        self,
        m: Module,
        sweep: AccumulationPass,
        begins: Signal,
        starting: Signal,
        start: Signal,
        last: Signal,
    ) -> Value:
        """The accumulations, for a pass, whose word is the `last`, and for the row of a job that
        `begins`, whose old one is returned in the next cycle."""
        p, job = self.parameters, self.jobs.payload
        lanes, width = p.accumulators, p.accumulator.width
        shape = unsigned(lanes * width)
        held = memory.Memory(shape=shape, depth=p.kv_heads * p.words, init=[])
        m.submodules.held = held
        read, write = held.read_port(), held.write_port(granularity=width)
        # | word | lane |
        row, lane_bits = Value.cast(job.row), (lanes - 1).bit_length()
        lane, row_word = row[:lane_bits], row[lane_bits:]
        scores = Value.cast(self.values.payload.values)
        word = Signal(range(p.words))
        write_word = Signal(range(p.words))
        with m.If(sweep.valid):
            m.d.sync += word.eq(Mux(last, 0, word + 1))
        m.d.comb += [
            last.eq(word == p.words - 1),
            sweep.word.eq(word),
            sweep.scores.eq(scores.word_select(word, lanes * p.score_bits)),
            sweep.moves.eq(self.values.payload.last),
            sweep.held.eq(read.data),
            # An access costs energy, so only words that are needed are read.
            read.en.eq(sweep.valid | begins),
            read.addr.eq(job.context * p.words + Mux(sweep.valid, word, row_word)),
            # A row starts only between passes, so the two never write at once.
            write_word.eq(Mux(starting, row_word, sweep.stored_word)),
            write.addr.eq(job.context * p.words + write_word),
            write.data.eq(Mux(starting, start.replicate(lanes), sweep.stored)),
            write.en.eq(Mux(starting, 1 << lane, sweep.store.replicate(lanes))),
        ]
        return read.data.word_select(lane, width)
