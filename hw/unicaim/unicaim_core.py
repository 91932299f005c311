"""A layer's attention with static and dynamic pruning of its cache (UniCAIM, Figs. 3 and 4)."""

from collections.abc import Callable

from amaranth.hdl import Array, Cat, Const, Module, Signal, Value
from amaranth.lib import data, wiring

from hw.component import Component
from hw.layout import FLAG
from hw.ports import Ports, stream_in, stream_out
from hw.stream.arbiter import Arbiter, ArbiterParameters
from hw.stream.combine import copy, join
from hw.stream.queue import Queue, QueueParameters
from hw.stream.reorder_buffer import ReorderBuffer
from hw.unicaim.adc_bank import AdcBank
from hw.unicaim.array import ArrayOp, UnicaimArray
from hw.unicaim.cell_array import CellArray
from hw.unicaim.command_sequence import CommandSequence, query_layout
from hw.unicaim.core_parameters import UnicaimCoreParameters as UnicaimCoreParameters
from hw.unicaim.digital_array import DigitalArray
from hw.unicaim.exact_attention import ExactAttention, head_layout, operand_shape
from hw.unicaim.level_converter import LevelConverter
from hw.unicaim.row_accumulation import RowAccumulation, accumulation_layout
from hw.unicaim.row_fetch import RowFetch
from hw.unicaim.row_manager import RowManager
from hw.unicaim.serial_accumulation import SerialAccumulation
from hw.unicaim.serial_array import SerialArray
from hw.unicaim.topk_sense import TopkSense

ARRAYS: dict[str, Callable[..., UnicaimArray]] = {
    "digital": DigitalArray,
    "serial": SerialArray,
    "cell": CellArray,
}
QUERIES = 4
"""Queries that the converter has taken and the exact stage has not."""


class UnicaimCore(Component[UnicaimCoreParameters]):
    """o_h = sum over the selected rows j of p_hj v_j,   p_h = softmax over these of q_h k_j.

    ::

        command ─→ row manager ←────────────────────────────── row to evict
        kv ─┬→ memory ─→ reorder buffer ─→ exact stage ─→ o   ↑
            └→ level ──→ array ─→ top-k ─→ rows ─┘            │
        q ───→ converter   └─→ scores, summed over heads ─→ accumulators

    A STEP is one token of one kv head. Its row of K and V, then its query heads, one after the
    other, pass through: (1) the row manager names the lowest free row or, with all rows in use, the
    row with the smallest accumulation; K and V are written to the memory, K's levels to the array;
    (2) for each query the array scores all rows, a search finds the k largest scores; (3) the exact
    stage reads these rows of K, takes softmax of their exact scores, and sums up their rows of V;
    (4) the scores, summed over the heads, are shared with the accumulators, and if all rows are in
    use, a search downwards finds the row that the kv head's next command overwrites. With
    `accumulators` they are in a memory, and take a query's scores in rows / accumulators cycles.

    With `exact` of ``cells`` the scores of (3) are the array's, converted: code times unit.
    A code is 2^adc_shift scores. A PRESET writes a row of the prompt and starts its accumulation
    from 0; RESTART empties the rows of a kv head; LOAD takes its mean key and divisor from `mean`,
    before its rows (:class:`hw.unicaim.level_converter.LevelConverter`). The prompt's attention,
    and the choice of the tokens to keep, are the host's, as in the paper.

    Stages overlap: a head's search with the exact stage of the head before, a command's with the
    last command's, unless it is of the same kv head; a command of the same kv head waits. With k =
    0, or without `fill` and with too many ties, no row is selected: o is 0 and ``present`` 0. A k
    above `rows` selects all rows in use.

    Errors: a head's o is ``invalid`` if one of its scores was NaN or plus infinity (o is then NaN).
    Infinities in keys and queries saturate in the array and NaNs count as 0 there. A STEP without
    queries only writes its row. A STEP may have more heads than `group`, as many as its field can
    say: their outputs are right, but the sum of their scores and the report's counts wrap around.

    Latency: `latency` cycles from a query to the first address of its rows, ``head_cycles`` of
    their number to its result. Throughput: a query in ``head_interval`` cycles, which is what the
    slower one of exact stage and selection takes; so 2 k + 40 for k rows, 16 or more, at d = 128
    where exact is ``rows``, and 2 k + 10 where it is ``cells``. Requests run ahead, so that a
    memory's latency of up to about `depth` cycles is hidden from the second query on.

    Handshake: all outputs but ``kv.ready`` and ``q.ready`` depend on registers only, except that
    ``o.valid`` and ``o.payload`` follow the array's registers; ``response.ready`` is always high.

    Examples
    --------
    >>> from hw.unicaim.unicaim_core import UnicaimCoreParameters
    >>> parameters = UnicaimCoreParameters.preset("serial")
    >>> parameters.latency, parameters.head_cycles(64), parameters.head_interval(64)
    (98, 273, 166)
    """

    summary = "A layer's decode step: top-k rows, their exact attention, which row is evicted"
    source = "UniCAIM, section III and Figs. 3 and 4"

    def ports(self) -> Ports:
        p = self.parameters
        selected = (
            {
                "selected": stream_out(
                    p.sense.output_layout,
                    "With `observe`, the addresses of selected rows, for each query.",
                )
            }
            if p.observe
            else {}
        )
        return {
            "mean": stream_in(p.mean_layout, "One for each LOAD."),
            "command": stream_in(p.command_layout, "LOAD, PRESET and STEP, see above."),
            "kv": stream_in(
                p.row_layout, "For each STEP and PRESET its row of K, then its row of V, FP16."
            ),
            "q": stream_in(p.q_layout, "Queries of a STEP."),
            **p.memory.ports(),
            "o": stream_out(p.output_layout, "Results, one for each query."),
            "report": stream_out(p.report_layout, "One for each command but LOAD."),
            **selected,
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.sequence = sequence = CommandSequence(p)
        m.submodules.manager = manager = RowManager(p.manager)
        m.submodules.converter = converter = LevelConverter(p.converter)
        m.submodules.array = array = ARRAYS[p.array](p.cells)
        m.submodules.sense = sense = TopkSense(p.sense)
        accumulate = SerialAccumulation if p.accumulators else RowAccumulation
        m.submodules.accumulation = accumulation = accumulate(p)
        m.submodules.fetch = fetch = RowFetch(p)
        m.submodules.exact = exact = ExactAttention(p)
        for name in ("mean", "command", "kv", "q"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(sequence, name))
        wiring.connect(m, sequence.take, manager.i)
        wiring.connect(m, manager.o, sequence.row)
        wiring.connect(m, sequence.converter, converter.i)
        wiring.connect(m, accumulation.evict, manager.evict)
        wiring.connect(m, array.lines, sense.i)
        wiring.connect(m, sense.too_many, array.too_many)
        wiring.connect(m, exact.o, wiring.flipped(self.o))

        # Each query is known in four places: how many rows it wants, whose they are, whether its
        # scores end a sum, and what the exact stage needs.
        k, heads, sums, operands = self._queues(m, sequence)
        wiring.connect(m, k, sense.k)
        wiring.connect(m, operands, exact.q)
        # A head waits in front of the exact stage until its last row.
        m.submodules.begun = begun = Queue(QueueParameters(depth=2), shape=head_layout(p))
        wiring.connect(m, fetch.heads, begun.i)
        wiring.connect(m, begun.o, exact.heads)
        watched = self._watch(m, sense.o, fetch.i) if p.observe else Const(1)
        m.d.comb += [
            # The array's scores of a query go to the accumulation with the flag that ends a group's
            # sum. Both come once for each query, in the same order, so that joining them needs no
            # tag.
            accumulation.values.payload.values.eq(array.values.payload),
            accumulation.values.payload.last.eq(sums.payload),
            # A selected row and its head's context become the addresses of its rows of K and V.
            fetch.i.valid.eq(sense.o.valid & heads.valid & watched),
            fetch.i.payload.eq(sense.o.payload),
            fetch.context.eq(heads.payload.context),
            fetch.last.eq(heads.payload.last),
            sense.o.ready.eq(fetch.i.ready & heads.valid & watched),
        ]
        join(m, [array.values, sums], [accumulation.values])
        # A head leaves its queue with the last row selected for it.
        taken = fetch.i.valid & fetch.i.ready
        m.d.comb += heads.ready.eq(taken & fetch.i.payload.last)

        hold = self._cells(m, array, fetch, exact, taken) if p.exact == "cells" else Const(0)
        m.d.comb += [
            # Where the cells' own scores are read, the next query must not overwrite them in the
            # lines.
            array.i.valid.eq(converter.o.valid & ~hold),
            array.i.payload.eq(converter.o.payload),
            converter.o.ready.eq(array.i.ready & ~hold),
        ]
        self._memory(m, sequence.write, fetch.o, exact.rows)
        self._reports(m, sequence, accumulation, exact, sense, heads, taken)
        return m

    def _watch(self, m: Module, rows, taken) -> Value:
        """Copies of the addresses that are taken; whether there is room for one."""
        shape = self.parameters.sense.output_layout
        m.submodules.selected = queue = Queue(QueueParameters(depth=2), shape=shape)
        m.d.comb += [
            queue.i.valid.eq(taken.valid & taken.ready),
            queue.i.payload.eq(rows.payload),
        ]
        wiring.connect(m, queue.o, wiring.flipped(self.selected))
        return queue.i.ready

    def _queues(self, m: Module, sequence: CommandSequence) -> tuple:
        """The queries, by place."""
        p = self.parameters
        layout = query_layout(p)
        shapes = {"k": layout["k"].shape, "heads": layout, "sums": 1}
        queues = []
        for name, shape in shapes.items():
            m.submodules[f"{name}_queue"] = queue = Queue(
                QueueParameters(depth=QUERIES), shape=shape
            )
            queues.append(queue)
        k, heads, sums = queues
        # A query enters all queues in the same cycle or none of them.
        m.d.comb += [
            k.i.payload.eq(sequence.heads.payload.k),
            heads.i.payload.eq(sequence.heads.payload),
            sums.i.payload.eq(sequence.heads.payload.last),
        ]
        join(m, [sequence.heads], [queue.i for queue in queues])
        m.submodules.operand_queue = operands = Queue(
            QueueParameters(depth=QUERIES), shape=operand_shape(p)
        )
        wiring.connect(m, sequence.operands, operands.i)
        return k.o, heads.o, sums.o, operands.o

    def _cells(self, m: Module, array, fetch, exact, taken: Value) -> Signal:
        """Scores of selected rows through the converters; high while the array must keep them."""
        p = self.parameters
        m.submodules.bank = bank = AdcBank(p.bank)
        shape = data.StructLayout({"present": FLAG, "last": FLAG})
        m.submodules.flags = flags = Queue(QueueParameters(depth=2 * p.converters), shape=shape)
        samples, codes = fetch.samples, exact.codes
        scores = Array(array.values.payload[row] for row in range(p.rows))
        score = Signal(p.cells.score)
        # A code's unit is 2^adc_shift scores, a sample's 2^-fraction of a code's.
        shift = p.bank.fraction - p.adc_shift
        m.d.comb += [
            score.eq(scores[samples.payload.row]),
            # The sample has `fraction` more bits than a code, so the converter's rounding shows.
            bank.i.payload.eq(score << shift),
            flags.i.payload.present.eq(samples.payload.present),
            flags.i.payload.last.eq(samples.payload.last),
            codes.payload.code.eq(bank.o.payload),
            codes.payload.present.eq(flags.o.payload.present),
            codes.payload.last.eq(flags.o.payload.last),
        ]
        join(m, [samples], [bank.i, flags.i])
        join(m, [bank.o, flags.o], [codes])
        hold = Signal()
        beat = array.i.payload
        # All rows of the head have been sampled.
        with m.If(taken & fetch.i.payload.last):
            m.d.sync += hold.eq(0)
        with m.If(array.i.valid & array.i.ready & (beat.op == ArrayOp.QUERY) & beat.last):
            m.d.sync += hold.eq(1)
        return hold

    def _memory(self, m: Module, write, reads, rows) -> None:
        """Rows written and rows read share the port."""
        p = self.parameters
        m.submodules.reorder = reorder = ReorderBuffer(p.depth, p.address_width, p.row_layout)
        m.submodules.port = port = Arbiter(
            ArbiterParameters(inputs=2), shape=p.memory.request_layout
        )
        # Writes of new rows are rare and short, so sharing the port in turn costs a cycle or two.
        wiring.connect(m, write, port.i[0])
        wiring.connect(m, reads, reorder.i)
        wiring.connect(m, wiring.flipped(self.response), reorder.response)
        wiring.connect(m, reorder.o, rows)
        m.d.comb += [
            *copy(port.i[1].payload, reorder.request.payload),
            self.request.payload.eq(port.o.payload.data),
        ]
        join(m, [reorder.request], [port.i[1]])
        join(m, [port.o], [self.request])

    def _reports(self, m: Module, sequence, accumulation, exact, sense, heads, taken) -> None:
        """A report when a command's accumulations are done and its rows have been selected.

        And which kv heads have a command in progress.
        """
        p = self.parameters
        report, layout = self.report.payload, accumulation_layout(p)
        m.submodules.records = records = Queue(QueueParameters(depth=2), shape=layout)
        counts = {name: p.report_layout[name].shape for name in ("conversions", "steps")}
        counted_layout = data.StructLayout(counts)
        m.submodules.counted = counted = Queue(QueueParameters(depth=2), shape=counted_layout)
        wiring.connect(m, sequence.records, records.i)

        # Counts of the step whose heads are being selected.
        # Counts run ahead of the report: selection of the next step may begin before this one's job
        # is done, which is why they pass a queue.
        totals = Signal(counted_layout)
        sums = Signal(counted_layout)
        m.d.comb += [
            sums.conversions.eq(totals.conversions + (taken & sense.o.payload.present)),
            sums.steps.eq(totals.steps + (sense.i.valid & sense.i.ready)),
            counted.i.payload.eq(sums),
            counted.i.valid.eq(heads.ready & heads.payload.last),
        ]
        m.d.sync += totals.eq(sums)
        # The last row of a step ends its counts; the next step's begin at 0.
        with m.If(counted.i.valid):
            m.d.sync += totals.eq(0)

        done = Signal()  # with the accumulations
        record = records.o.payload
        reported = Signal()
        m.d.comb += [
            accumulation.jobs.valid.eq(records.o.valid & ~done),
            accumulation.jobs.payload.eq(record),
            self.report.valid.eq(done & (counted.o.valid | ~record.shares)),
            report.row.eq(record.row),
            report.evicts.eq(record.evicts),
            reported.eq(self.report.valid & self.report.ready),
            records.o.ready.eq(reported),
            counted.o.ready.eq(reported & record.shares),
        ]
        # A command without queries has nothing to count and reports zeros.
        with m.If(record.shares):
            m.d.comb += [
                report.conversions.eq(counted.o.payload.conversions),
                report.steps.eq(counted.o.payload.steps),
            ]
        m.d.sync += done.eq((done | accumulation.jobs.ready) & ~reported)

        # A kv head is busy until its command is reported and its rows have been read.
        unreported = Signal(p.kv_heads)
        unread = Signal(p.kv_heads)

        def of(context, happens) -> Value:
            """A bit for each kv head: it happens to that one."""
            return Cat(happens & (context == number) for number in range(p.kv_heads))

        # A command of the same kv head must wait for both, because it may overwrite a row still
        # being read.
        begun = of(sequence.context, sequence.started)
        reads = sequence.reads.replicate(p.kv_heads)
        m.d.sync += [
            unreported.eq((unreported | begun) & ~of(record.context, reported)),
            unread.eq((unread | (begun & reads)) & ~of(exact.context, exact.done)),
        ]
        m.d.comb += sequence.busy.eq(unreported | unread)
