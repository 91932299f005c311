"""The exact stage of UniCAIM's core: softmax of the selected rows' scores, sum of their values."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, wiring

from hw.arith.fixed_to_float import FixedToFloat, FixedToFloatParameters
from hw.arith.float_format import FP16
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.arith.streamed import Streamed
from hw.attention.weighted_rows import WeightedRows
from hw.component import Component
from hw.layout import FLAG, count
from hw.ports import Ports, stream_in, stream_out, wire_out
from hw.stream.combine import join
from hw.stream.queue import Queue, QueueParameters
from hw.unicaim.core_parameters import UnicaimCoreParameters


class ExactAttention(Component[UnicaimCoreParameters]):
    """o = sum over the selected rows of p v, with p the softmax of their scores.

    ::

        rows: K, then V ──→ array ─→ o
                            │   ↑
                  scores    └→ softmax     where exact is ``rows``
        codes ─→ FP16 ─→ * unit ─→ ↑       where it is ``cells``; then rows are of V only

    A score is the inner product of the query and the row's key, less the head's first finite one,
    or a code times the head's unit, rounded once. A head without rows gives zeros.
    """

    def ports(self) -> Ports:
        p = self.parameters
        row = data.StructLayout({"data": p.row_layout, "last": FLAG})
        codes = (
            {"codes": stream_in(p.code_layout, "Where exact is ``cells``.")}
            if p.exact == "cells"
            else {}
        )
        return {
            "heads": stream_in(
                head_layout(p),
                "Heads in order: whether any row is selected, and whether it is its step's last.",
            ),
            "q": stream_in(operand_shape(p), "Their queries, or units."),
            "rows": stream_in(row, "Rows read, `last` of a head's keys and of its values."),
            **codes,
            "o": stream_out(p.output_layout),
            "done": wire_out(1, "The last row of a step of `context` has been used in this cycle."),
            "context": wire_out(p.context),
        }

    def elaborate(self, platform):
        m = Module()
        p, head, o = self.parameters, self.heads.payload, self.o
        m.submodules.attention = attention = WeightedRows(p.attention)
        layout = data.StructLayout({"present": count(range(p.rows + 1)), "last": FLAG})
        m.submodules.flags = flags = Queue(QueueParameters(depth=4), shape=layout)
        wiring.connect(m, wiring.flipped(self.rows), attention.rows)

        # A head with rows goes to the attention. The query of a head without rows is dropped.
        # Outputs must be in the order of heads, but a head without rows never reaches the
        # attention: a flag for every head keeps the order, and its result is 0.
        some = Signal()
        is_value = Signal(init=p.exact == "cells")  # the row that is offered is of V
        absent = Signal()  # the head has none
        dropped = Signal()  # and its query goes
        present = Signal.like(o.payload.present, init=1)  # number of the head's next row of V
        m.d.comb += [
            some.eq(self.heads.valid & head.present),
            attention.run.valid.eq(some & flags.i.ready),
            attention.run.payload.value.eq(is_value),
            attention.run.payload.heads.eq(1),
            attention.run.payload.last.eq(head.last),
            absent.eq(self.heads.valid & ~head.present & flags.i.ready),
            self.heads.ready.eq((attention.run.ready & is_value) | dropped),
            flags.i.valid.eq(self.heads.ready),
            flags.i.payload.present.eq(Mux(some, present, 0)),
            flags.i.payload.last.eq(head.last),
            self.done.eq(self.heads.ready & head.last),
            self.context.eq(head.context),
        ]
        if p.exact == "rows":
            with m.If(attention.run.ready):
                m.d.sync += is_value.eq(~is_value)
            m.d.comb += [
                attention.q.valid.eq(self.q.valid & some),
                attention.q.payload.eq(self.q.payload),
                dropped.eq(absent & self.q.valid),
                self.q.ready.eq((attention.q.ready & some) | absent),
            ]
        else:
            m.d.comb += dropped.eq(absent)
            self._scale(m, attention.scores)
        with m.If(attention.used):
            m.d.sync += present.eq(Mux(attention.p.last, 1, present + 1))

        # Results in order, also of heads without rows.
        found = flags.o.payload
        waiting = Signal()  # for a result
        m.d.comb += [
            # Only a head with rows waits for a result; `flags` and results advance together.
            waiting.eq(found.present.any() & ~attention.o.valid),
            o.valid.eq(flags.o.valid & ~waiting),
            flags.o.ready.eq(o.ready & ~waiting),
            attention.o.ready.eq(o.ready & flags.o.valid & found.present.any()),
            o.payload.present.eq(found.present),
            o.payload.last.eq(found.last),
        ]
        with m.If(found.present.any()):
            m.d.comb += [
                o.payload.o.eq(attention.o.payload.o),
                o.payload.invalid.eq(attention.o.payload.invalid),
            ]
        return m

    def _scale(self, m: Module, scores) -> None:
        """Codes to FP16, times the unit of their head, into the softmax."""
        p, codes = self.parameters, self.codes
        m.submodules.to_float = to_float = FixedToFloat(
            FixedToFloatParameters(format="fp16", width=p.adc_bits, fraction=0)
        )
        multiply = FloatMultiply(FloatMultiplyParameters(format="fp16", stages=2))
        m.submodules.multiply = product = Streamed(multiply)
        m.submodules.lasts = lasts = Queue(QueueParameters(width=1, depth=4))
        present = codes.payload.present
        go = Signal()  # a code may go on; of a head without rows it only takes the unit along
        m.d.comb += [
            to_float.a.eq(Value.cast(codes.payload.code)),
            product.i.payload.a.eq(to_float.o),
            product.i.payload.b.eq(self.q.payload),
            go.eq(codes.valid & self.q.valid & ((product.i.ready & lasts.i.ready) | ~present)),
            codes.ready.eq(go),
            product.i.valid.eq(go & present),
            lasts.i.valid.eq(go & present),
            lasts.i.payload.eq(codes.payload.last),
            self.q.ready.eq(go & codes.payload.last),
            scores.payload.x.eq(product.o.payload.o),
            scores.payload.last.eq(lasts.o.payload),
        ]
        join(m, [product.o, lasts.o], [scores])


def head_layout(p: UnicaimCoreParameters) -> data.StructLayout:
    """``present``: rows are selected. ``last`` of a step. ``context``: the kv head."""
    return data.StructLayout({"present": FLAG, "last": FLAG, "context": p.context})


def operand_shape(p: UnicaimCoreParameters):
    """What the exact stage needs of a query: its elements, or the unit of its codes."""
    return p.row_layout if p.exact == "rows" else FP16
