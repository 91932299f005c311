"""What each command of UniCAIM's core asks of its parts, in order."""

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value
from amaranth.lib import data

from hw.component import Component
from hw.layout import FLAG
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.unicaim.command import CommandOp
from hw.unicaim.core_parameters import UnicaimCoreParameters
from hw.unicaim.exact_attention import operand_shape
from hw.unicaim.level_converter import RowKind
from hw.unicaim.row_accumulation import accumulation_layout
from hw.unicaim.row_manager import RowOp


class CommandSequence(Component[UnicaimCoreParameters]):
    """A command's row, its key and value into memory and array, then its queries in order.

    A command waits in `command` while one of the same kv head is in progress, so that it overwrites
    no row that is still to be read and finds the row to evict; commands of other kv heads overlap.

    Timing: 6 cycles and the converter's from a command to its first query; a query whenever the
    converter takes one.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "mean": stream_in(p.mean_layout, "Contents for each LOAD."),
            "command": stream_in(p.command_layout, "LOAD, PRESET, STEP and RESTART, in order."),
            "kv": stream_in(
                p.row_layout, "For each STEP and PRESET its row of K, then its row of V, FP16."
            ),
            "q": stream_in(p.q_layout, "Queries of a STEP, FP16."),
            "busy": wire_in(p.kv_heads, "Kv heads with a command in progress."),
            "started": wire_out(
                1,
                "A command of the kv head `context` begins in this cycle, with queries if `reads`.",
            ),
            "context": wire_out(p.context),
            "reads": wire_out(1),
            "take": stream_out(p.manager.input_layout),
            "row": stream_in(p.manager.output_layout),
            "records": stream_out(accumulation_layout(p)),
            "converter": stream_out(p.converter.input_layout),
            "write": stream_out(p.memory.request_layout),
            "heads": stream_out(query_layout(p), "One for each query."),
            "operands": stream_out(operand_shape(p), "With each of these, for the exact stage."),
        }

    def elaborate(self, platform):
        m = Module()
        p, job = self.parameters, self.command.payload
        r = _Job(p)
        context = Signal(p.context)
        accept = Signal()
        load = Signal()  # a mean goes to the converter
        querying = Signal()  # a query does
        m.d.comb += [
            context.eq(Mux(accept, job.kv_head, r.kv_head) if p.kv_heads > 1 else 0),
            self.context.eq(context),
            self.started.eq(accept & (job.op != CommandOp.LOAD)),
            self.reads.eq((job.op == CommandOp.STEP) & job.heads.any()),
        ]
        m.d.sync += r.kv_head.eq(context)
        self._describe(m, r)
        self._select_levels(m, r, load, querying)
        with m.FSM():
            self._begin(m, r, accept, load)
            self._name_row(m, r)
            self._store_row(m, r)
            self._send_queries(m, r, querying)
            self._clear(m)
        return m

    def _describe(self, m: Module, r: "_Job") -> None:
        """Payloads to row manager, accumulation, memory and exact stage.

        They do not depend on the state; only the valids do.
        """
        p, q, record = self.parameters, self.q.payload, self.records.payload
        write = self.write.payload
        m.d.comb += [
            record.op.eq(r.op),
            record.context.eq(r.kv_head),
            record.row.eq(self.row.payload.row),
            record.evicts.eq(self.row.payload.evicts),
            record.full.eq(self.row.payload.full),
            record.shares.eq(r.queries.any()),
            self.take.payload.op.eq(Mux(r.op == CommandOp.RESTART, RowOp.CLEAR, RowOp.TAKE)),
            write.write.eq(1),
            write.data.eq(self.kv.payload),
            write.address.eq(Cat(r.row, r.of_value, r.kv_head[: (p.kv_heads - 1).bit_length()])),
            self.heads.payload.context.eq(r.kv_head),
            self.heads.payload.last.eq(r.queries == 1),
            self.heads.payload.k.eq(r.k),
            self.operands.payload.eq(q.x if p.exact == "rows" else q.unit),
        ]
        if p.kv_heads > 1:
            m.d.comb += self.take.payload.context.eq(r.kv_head)

    def _select_levels(self, m: Module, r: "_Job", load: Signal, querying: Signal) -> None:
        """What the converter takes: a mean, a key, a query, or nothing but RESTART."""
        converter, q = self.converter.payload, self.q.payload
        written = Mux(r.op == CommandOp.RESTART, RowKind.CLEAR, RowKind.KEY)
        m.d.comb += [
            converter.row.eq(r.row),
            converter.kind.eq(Mux(load, RowKind.MEAN, Mux(querying, RowKind.QUERY, written))),
            converter.divisor.eq(Mux(load, self.mean.payload.divisor, q.divisor)),
            converter.x.eq(Mux(load, self.mean.payload.mean, Mux(querying, q.x, self.kv.payload))),
        ]
        if self.parameters.kv_heads > 1:
            m.d.comb += converter.context.eq(r.kv_head)

    def _begin(self, m: Module, r: "_Job", accept: Signal, load: Signal) -> None:
        """A command is accepted; LOAD needs the converter alone."""
        job, converter = self.command.payload, self.converter
        # A kv head whose last command is not reported, or whose rows are still being read, is busy.
        free = Signal()
        kv_head = job.kv_head if self.parameters.kv_heads > 1 else Const(0)
        m.d.comb += free.eq(~(self.busy >> kv_head)[0])
        with m.State("IDLE"):
            # A command's fields are copied, so that `command` can go on to the next one.
            m.d.comb += [
                self.command.ready.eq(self.command.valid & free),
                accept.eq(self.command.valid & self.command.ready),
            ]
            m.d.sync += [
                r.op.eq(job.op),
                r.k.eq(job.k),
                r.queries.eq(Mux(job.op == CommandOp.STEP, job.heads, 0)),
                r.of_value.eq(0),
            ]
            with m.If(accept):
                m.next = "TAKE"
                with m.If(job.op == CommandOp.LOAD):
                    m.next = "LOAD"
        with m.State("LOAD"):
            # LOAD passes the mean key and the divisor to the converter and has no row.
            m.d.comb += [
                load.eq(1),
                converter.valid.eq(self.mean.valid),
                self.mean.ready.eq(converter.ready),
            ]
            with m.If(self.mean.valid & converter.ready):
                m.next = "IDLE"

    def _name_row(self, m: Module, r: "_Job") -> None:
        """The command's row from the row manager, and its record."""
        record = self.records.payload
        with m.State("TAKE"):
            # The row manager names the row, which may take until the last search for a row to
            # evict has ended.
            m.d.comb += self.take.valid.eq(1)
            with m.If(self.take.ready):
                m.next = "RECORD"
                with m.If(r.op == CommandOp.RESTART):
                    m.next = "CLEAR"
        with m.State("RECORD"):
            # The record accompanies the command through the accumulation to its report.
            m.d.comb += [
                self.records.valid.eq(self.row.valid),
                self.row.ready.eq(self.records.ready),
            ]
            m.d.sync += r.row.eq(Value.cast(record.row))
            with m.If(self.row.valid & self.records.ready):
                m.next = "KEY"

    def _store_row(self, m: Module, r: "_Job") -> None:
        """K and V to the memory, and K to the array."""
        converter, write = self.converter, self.write
        with m.State("KEY"):
            # K goes to the memory and, as levels, to the array: in the same cycle, because `kv`
            # is not stored.
            m.d.comb += [
                write.valid.eq(self.kv.valid & converter.ready),
                converter.valid.eq(self.kv.valid & write.ready),
                self.kv.ready.eq(converter.ready & write.ready),
            ]
            with m.If(self.kv.valid & self.kv.ready):
                m.d.sync += r.of_value.eq(1)
                m.next = "VALUE"
        with m.State("VALUE"):
            # V goes to the memory alone. A PRESET ends here.
            m.d.comb += [write.valid.eq(self.kv.valid), self.kv.ready.eq(write.ready)]
            with m.If(self.kv.valid & write.ready):
                m.next = "IDLE"
                with m.If(r.queries.any()):
                    m.next = "QUERIES"

    def _send_queries(self, m: Module, r: "_Job", querying: Signal) -> None:
        """A step's queries, one after the other."""
        converter = self.converter
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
                m.d.sync += r.queries.eq(r.queries - 1)
                with m.If(r.queries == 1):
                    m.next = "IDLE"

    def _clear(self, m: Module) -> None:
        """A kv head is to be forgotten."""
        converter, record = self.converter, self.records.payload
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


class _Job:
    """Registers of the command in progress.

    op, kv_head, k
        What the command says.
    queries
        Number of queries still to come.
    of_value
        The row in `kv` is of V.
    row
        Row that the command writes.
    """

    def __init__(self, p: UnicaimCoreParameters):
        def width(layout: data.StructLayout, field: str) -> Shape:
            return Shape.cast(layout[field].shape)

        self.op = Signal(CommandOp, reset_less=True)
        self.kv_head = Signal(p.context, reset_less=True)
        self.k = Signal(width(p.command_layout, "k"), reset_less=True)
        self.queries = Signal(width(p.command_layout, "heads"), reset_less=True)
        self.of_value = Signal()
        self.row = Signal(width(accumulation_layout(p), "row"), reset_less=True)


def query_layout(p: UnicaimCoreParameters) -> data.StructLayout:
    """A query's kv head, whether it is its step's ``last``, and the rows to select."""
    k = p.command_layout["k"].shape
    return data.StructLayout({"context": p.context, "last": FLAG, "k": k})
