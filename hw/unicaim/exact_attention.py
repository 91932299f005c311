"""The exact stage of UniCAIM's core: softmax of the selected rows' scores, sum of their values."""

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data

from hw.arith.fixed_to_float import FixedToFloat, FixedToFloatParameters
from hw.arith.float_format import FP16
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.arith.streamed import Streamed
from hw.attention.pe_array import PeArray
from hw.attention.special_function_unit import Operation, SpecialFunctionUnit
from hw.component import Component
from hw.layout import FLAG, count
from hw.ports import Ports, stream_in, stream_out, wire_out
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
        p, rows, head = self.parameters, self.rows, self.heads.payload
        m.submodules.pe_array = array = PeArray(p.pe_array)
        m.submodules.special_function_unit = softmax = SpecialFunctionUnit(p.softmax)
        flag_layout = data.StructLayout(
            {"present": count(range(p.rows + 1)), "invalid": FLAG, "last": 1}
        )
        m.submodules.flags = flags = Queue(QueueParameters(depth=4), shape=flag_layout)
        m.d.comb += [
            softmax.command.valid.eq(1),
            softmax.command.payload.op.eq(Operation.SOFTMAX),
        ]
        without = Signal()  # the head's query is dropped
        if p.exact == "rows":
            m.d.comb += [
                array.q.valid.eq(self.q.valid & ~without),
                array.q.payload.eq(self.q.payload),
                self.q.ready.eq(array.q.ready | without),
                softmax.i.valid.eq(array.s.valid),
                softmax.i.payload.x.eq(array.s.payload.s),
                softmax.i.payload.last.eq(array.s.payload.last),
                array.s.ready.eq(softmax.i.ready),
            ]
        else:
            self._scale(m, softmax.i)

        # Keys as they arrive, values each with its probability.
        keys, values = Signal(), Signal()
        taken = Signal()  # a row of V and its probability
        used = Signal.like(self.o.payload.present, reset_less=True)
        ended = Signal()
        probability = softmax.o
        m.d.comb += [
            array.i.valid.eq(rows.valid & (keys | (values & probability.valid & flags.i.ready))),
            array.i.payload.w.eq(rows.payload.data),
            array.i.payload.x.eq(probability.payload.y),
            array.i.payload.outer.eq(values),
            array.i.payload.relative.eq(1),
            array.i.payload.last.eq(rows.payload.last),
            rows.ready.eq(array.i.ready & (keys | (values & probability.valid & flags.i.ready))),
            taken.eq(array.i.valid & array.i.ready & values),
            probability.ready.eq(taken),
            ended.eq(taken & rows.payload.last),
            flags.i.payload.last.eq(head.last),
            self.context.eq(head.context),
        ]
        first = "KEYS" if p.exact == "rows" else "VALUES"
        with m.FSM():
            with m.State("HEAD"):
                m.d.sync += used.eq(1)
                with m.If(self.heads.valid):
                    m.next = first
                    with m.If(~head.present):
                        m.next = "NONE"
            if p.exact == "rows":
                with m.State("KEYS"):
                    m.d.comb += keys.eq(1)
                    with m.If(rows.valid & rows.ready & rows.payload.last):
                        m.next = "VALUES"
            with m.State("VALUES"):
                m.d.comb += [
                    values.eq(1),
                    flags.i.payload.present.eq(used),
                    flags.i.payload.invalid.eq(probability.payload.invalid),
                    flags.i.valid.eq(ended),
                    self.heads.ready.eq(ended),
                    self.done.eq(ended & head.last),
                ]
                with m.If(taken):
                    m.d.sync += used.eq(used + 1)
                with m.If(ended):
                    m.next = "HEAD"
            with m.State("NONE"):
                drop = self.q.valid if p.exact == "rows" else 1
                m.d.comb += [
                    without.eq(flags.i.ready),
                    flags.i.valid.eq(drop),
                    self.heads.ready.eq(drop & flags.i.ready),
                    self.done.eq(self.heads.ready & head.last),
                ]
                with m.If(self.heads.ready):
                    m.next = "HEAD"

        # Results in order, those without rows among them.
        some = Signal()
        result, found = array.o, flags.o.payload
        m.d.comb += [
            some.eq(found.present.any()),
            self.o.valid.eq(flags.o.valid & (result.valid | ~some)),
            self.o.payload.present.eq(found.present),
            self.o.payload.invalid.eq(found.invalid),
            self.o.payload.last.eq(found.last),
            flags.o.ready.eq(self.o.ready & (result.valid | ~some)),
            result.ready.eq(self.o.ready & flags.o.valid & some),
        ]
        with m.If(some):
            m.d.comb += self.o.payload.o.eq(result.payload)
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
            scores.valid.eq(product.o.valid & lasts.o.valid),
            scores.payload.x.eq(product.o.payload.o),
            scores.payload.last.eq(lasts.o.payload),
            product.o.ready.eq(scores.ready & lasts.o.valid),
            lasts.o.ready.eq(scores.ready & product.o.valid),
        ]


def head_layout(p: UnicaimCoreParameters) -> data.StructLayout:
    """``present``: rows are selected. ``last`` of a step. ``context``: the kv head."""
    return data.StructLayout({"present": FLAG, "last": FLAG, "context": p.context})


def operand_shape(p: UnicaimCoreParameters):
    """What the exact stage needs of a query: its elements, or the unit of its codes."""
    return p.row_layout if p.exact == "rows" else FP16
