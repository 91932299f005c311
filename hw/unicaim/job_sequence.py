"""What each job of UniCAIM's core asks of its parts, in order."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.component import Component
from hw.layout import FLAG
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.unicaim.core_parameters import JobOp, UnicaimCoreParameters
from hw.unicaim.exact_attention import operand_shape
from hw.unicaim.level_converter import RowKind
from hw.unicaim.row_accumulation import accumulation_layout
from hw.unicaim.row_manager import RowOp


class JobSequence(Component[UnicaimCoreParameters]):
    """A job's row, its key and value into memory and array, then its queries, one after the other.

    A job waits in `job` while one of the same kv head is in progress, so that it overwrites no row
    that is still to be read and finds the row to evict; jobs of other kv heads overlap.

    Timing: 6 cycles and the converter's from a job to its first query; a query whenever the
    converter takes one.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "load": stream_in(
                p.load_layout, "As :class:`hw.unicaim.unicaim_core.UnicaimCore` has them."
            ),
            "job": stream_in(p.job_layout, "See `load`."),
            "kv": stream_in(p.row_layout, "See `load`."),
            "q": stream_in(p.q_layout, "See `load`."),
            "busy": wire_in(p.kv_heads, "Kv heads with a job in progress."),
            "started": wire_out(
                1, "A job begins in this cycle, of the kv head `context`; with queries if `reads`."
            ),
            "context": wire_out(p.context),
            "reads": wire_out(1),
            "take": stream_out(p.manager.input_layout),
            "row": stream_in(p.manager.output_layout),
            "records": stream_out(accumulation_layout(p)),
            "converter": stream_out(p.converter.input_layout),
            "write": stream_out(p.request_layout),
            "heads": stream_out(query_layout(p), "One for each query."),
            "operands": stream_out(operand_shape(p), "With each of these, for the exact stage."),
        }

    def elaborate(self, platform):
        m = Module()
        p, job, q = self.parameters, self.job.payload, self.q.payload
        converter, write, record = self.converter, self.write, self.records.payload
        several = p.kv_heads > 1
        op = Signal(JobOp, reset_less=True)
        context, held = Signal(p.context), Signal(p.context, reset_less=True)
        k = Signal.like(Value.cast(job.k), reset_less=True)
        left = Signal.like(Value.cast(job.heads), reset_less=True)  # queries still to come
        value = Signal()  # the row in `kv` is of V
        accept, load = Signal(), Signal()
        m.d.comb += [
            context.eq(Mux(accept, job.kv_head, held) if several else 0),
            self.context.eq(context),
            self.started.eq(accept & (job.op != JobOp.LOAD)),
            self.reads.eq((job.op == JobOp.STEP) & job.heads.any()),
            # The payloads of the parts do not depend on the state; only the valids do.
            record.op.eq(op),
            record.context.eq(held),
            record.row.eq(self.row.payload.row),
            record.evicts.eq(self.row.payload.evicts),
            record.full.eq(self.row.payload.full),
            record.shares.eq(left.any()),
            self.take.payload.op.eq(Mux(op == JobOp.CLEAR, RowOp.CLEAR, RowOp.TAKE)),
            converter.payload.row.eq(record_row := Signal.like(Value.cast(record.row))),
            write.payload.write.eq(1),
            write.payload.data.eq(self.kv.payload),
            write.payload.address.eq(Cat(record_row, value, held[: (p.kv_heads - 1).bit_length()])),
            self.heads.payload.context.eq(held),
            self.heads.payload.last.eq(left == 1),
            self.heads.payload.k.eq(k),
            self.operands.payload.eq(q.x if p.exact == "rows" else q.unit),
        ]
        if several:
            m.d.comb += [
                self.take.payload.context.eq(held),
                converter.payload.context.eq(held),
            ]
        row = Signal.like(record_row, reset_less=True)
        m.d.comb += record_row.eq(row)

        # What the converter takes: a mean, a key, a query, or nothing but CLEAR.
        querying = Signal()
        written = Mux(op == JobOp.CLEAR, RowKind.CLEAR, RowKind.KEY)
        m.d.comb += [
            converter.payload.kind.eq(
                Mux(load, RowKind.MEAN, Mux(querying, RowKind.QUERY, written))
            ),
            converter.payload.divisor.eq(Mux(load, self.load.payload.divisor, q.divisor)),
            converter.payload.x.eq(
                Mux(load, self.load.payload.mean, Mux(querying, q.x, self.kv.payload))
            ),
        ]
        # A kv head whose last job is not reported, or whose rows are still being read, is busy.
        free = Signal()
        m.d.comb += free.eq(~(self.busy >> (job.kv_head if several else Const(0)))[0])
        m.d.sync += held.eq(context)
        with m.FSM():
            with m.State("IDLE"):
                # A job's fields are copied, so that `job` can go on to the next one.
                m.d.comb += [
                    self.job.ready.eq(self.job.valid & free),
                    accept.eq(self.job.valid & self.job.ready),
                ]
                m.d.sync += [
                    op.eq(job.op),
                    k.eq(job.k),
                    left.eq(Mux(job.op == JobOp.STEP, job.heads, 0)),
                    value.eq(0),
                ]
                with m.If(accept):
                    m.next = "TAKE"
                    with m.If(job.op == JobOp.LOAD):
                        m.next = "LOAD"
            with m.State("LOAD"):
                # LOAD passes the mean key and the divisor to the converter and has no row.
                m.d.comb += [
                    load.eq(1),
                    converter.valid.eq(self.load.valid),
                    self.load.ready.eq(converter.ready),
                ]
                with m.If(self.load.valid & converter.ready):
                    m.next = "IDLE"
            with m.State("TAKE"):
                # The row manager names the row, which may take until the last search for a row to
                # evict has ended.
                m.d.comb += self.take.valid.eq(1)
                with m.If(self.take.ready):
                    m.next = "RECORD"
                    with m.If(op == JobOp.CLEAR):
                        m.next = "CLEAR"
            with m.State("RECORD"):
                # The record accompanies the job through the accumulation to its report.
                m.d.comb += [
                    self.records.valid.eq(self.row.valid),
                    self.row.ready.eq(self.records.ready),
                ]
                m.d.sync += row.eq(Value.cast(record.row))
                with m.If(self.row.valid & self.records.ready):
                    m.next = "KEY"
            with m.State("KEY"):
                # K goes to the memory and, as levels, to the array: in the same cycle, because `kv`
                # is not stored.
                m.d.comb += [
                    write.valid.eq(self.kv.valid & converter.ready),
                    converter.valid.eq(self.kv.valid & write.ready),
                    self.kv.ready.eq(converter.ready & write.ready),
                ]
                with m.If(self.kv.valid & self.kv.ready):
                    m.d.sync += value.eq(1)
                    m.next = "VALUE"
            with m.State("VALUE"):
                # V goes to the memory alone. A PRESET ends here.
                m.d.comb += [write.valid.eq(self.kv.valid), self.kv.ready.eq(write.ready)]
                with m.If(self.kv.valid & write.ready):
                    m.next = "IDLE"
                    with m.If(left.any()):
                        m.next = "QUERIES"
            with m.State("QUERIES"):
                # Each query is offered to converter, queue of heads and operands; a sink sees valid
                # only when the others are ready, so that all take the query in the same cycle.
                sinks = (converter, self.heads, self.operands)
                m.d.comb += [
                    querying.eq(1),
                    self.q.ready.eq(converter.ready & self.heads.ready & self.operands.ready),
                ]
                for sink in sinks:
                    others = Cat(other.ready for other in sinks if other is not sink)
                    m.d.comb += sink.valid.eq(self.q.valid & others.all())
                with m.If(self.q.valid & self.q.ready):
                    m.d.sync += left.eq(left - 1)
                    with m.If(left == 1):
                        m.next = "IDLE"
            with m.State("CLEAR"):
                # CLEAR also reaches the converter, in order with the levels before it.
                m.d.comb += [
                    converter.valid.eq(self.records.ready),
                    self.records.valid.eq(converter.ready),
                    record.row.eq(0),
                    record.evicts.eq(0),
                    record.full.eq(0),
                ]
                with m.If(converter.ready & self.records.ready):
                    m.next = "IDLE"
        return m


def query_layout(p: UnicaimCoreParameters) -> data.StructLayout:
    """A query's kv head, whether it is its step's ``last``, and the rows to select."""
    k = p.job_layout["k"].shape
    return data.StructLayout({"context": p.context, "last": FLAG, "k": k})
