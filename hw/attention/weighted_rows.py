"""Scores of a query and the keys, their softmax, and the sum of V's rows with these weights."""

import dataclasses
from functools import cached_property
from typing import TypeVar

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring

from hw.attention.pe_array import PeArray
from hw.attention.product_array import PeArrayParameters
from hw.attention.special_function_unit import (
    Operation,
    SpecialFunctionUnit,
    SpecialFunctionUnitParameters,
)
from hw.component import Component
from hw.layout import FLAG
from hw.parameters import Parameters
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.stream.combine import join
from hw.stream.queue import Queue, QueueParameters

RESULTS = 4
"""Number of heads whose flags may wait for their result."""


@dataclasses.dataclass(frozen=True)
class WeightedRowsParameters(Parameters):
    """
    array
        Parameters of the array of products.
    softmax
        Parameters of the softmax; its `length` is the largest number of rows of a head.
    keys
        Whether scores are inner products with rows of K; else they are an input.
    """

    array: PeArrayParameters = PeArrayParameters()
    softmax: SpecialFunctionUnitParameters = SpecialFunctionUnitParameters()
    keys: bool = True

    @cached_property
    def row_layout(self) -> data.ArrayLayout:
        return self.array.query_layout

    @cached_property
    def rows_layout(self) -> data.StructLayout:
        """``data`` of a row, ``last`` of a head's K or V."""
        return data.StructLayout({"data": self.row_layout, "last": FLAG})

    @cached_property
    def output_layout(self) -> data.StructLayout:
        """``o`` of a head, ``invalid`` if its softmax was, ``last`` of a step."""
        return data.StructLayout({"o": self.row_layout, "invalid": FLAG, "last": FLAG})

    def softmax_cycles(self, rows: int) -> int:
        """Cycles from a head's last score to its first probability."""
        return self.softmax.first_result_cycles(rows, Operation.SOFTMAX)

    def value_cycles(self, rows: int) -> int:
        """Cycles from a head's first key, accepted, to its first row of V, accepted."""
        return rows - 1 + self.array.latency + self.softmax_cycles(rows)

    def head_cycles(self, rows: int) -> int:
        """Cycles from a head's first key offered to its result accepted, without stalls."""
        return self.value_cycles(rows) + self.array.outer_product(rows).result + 2


W = TypeVar("W", bound=WeightedRowsParameters)


class WeightedRows(Component[W]):
    """o = sum over j of p_j v_j,   p = softmax over j of q k_j.

    ::

        rows: K, then V ─→ array ─→ o
                           │   ↑
                    scores └→ softmax ─→ p

    A score is the inner product of the query and a key, less the head's first finite one
    (:class:`hw.attention.pe_array.PeArray`). The rows of a head's K come first, then as many rows
    of its V; the last row of each has ``last``. Without `keys`, scores are an input and all rows
    are of V. The rows of the next head's K may follow at once.

    A core that decides by probabilities watches `p`. It does not stall the softmax but the row of V
    that has this probability, so that nothing happens before the row has been read.

    Errors: a head is ``invalid`` as its softmax is
    (:class:`hw.attention.special_function_unit.SpecialFunctionUnit`). Rows of V are not checked.

    Handshake: ``q.ready`` depends on ``rows.valid``: a query is accepted when its first key is
    there. A beat of `head` is accepted with the head's last row of V. ``rows.ready`` depends
    combinationally on ``rows.valid``, ``rows.payload``, `hold` and ``o.ready``.
    """

    def ports(self) -> Ports:
        p = self.parameters
        q = {"q": stream_in(p.row_layout, "Queries, FP16, times the scale; only with `keys`.")}
        scores = {"scores": stream_in(p.softmax.input_layout, "Scores; only without `keys`.")}
        return {
            **(q if p.keys else scores),
            "rows": stream_in(p.rows_layout, "Rows of K and V."),
            "head": stream_in(1, "For each head, whether it is the step's last."),
            "p": wire_out(
                p.softmax.output_layout,
                "Probability of the row of V that is accepted in this cycle, if `used`.",
            ),
            "used": wire_out(1, "A row of V is accepted in this cycle."),
            "hold": wire_in(1, "No row of V is to be accepted in this cycle."),
            "o": stream_out(p.output_layout, "Results, one for each head."),
        }

    def make_array(self):
        """The array; a core that compares arrays has another one."""
        return PeArray(self.parameters.array)

    def collected(self, m: Module, name: str, beats):
        """Scores before the softmax, or probabilities after it: as they come."""
        return beats

    def elaborate(self, platform):
        m = Module()
        rows, head, o = self.rows, self.head, self.o
        m.submodules.pe_array = array = self.make_array()
        m.submodules.special_function_unit = softmax = SpecialFunctionUnit(self.parameters.softmax)
        layout = data.StructLayout({"invalid": FLAG, "last": FLAG})
        m.submodules.flags = flags = Queue(QueueParameters(depth=RESULTS), shape=layout)
        weights = self.collected(m, "probabilities", softmax.o)
        m.d.comb += [softmax.command.valid.eq(1), softmax.command.payload.op.eq(Operation.SOFTMAX)]
        is_value = self._score(m, array, softmax)

        # A key goes into the array as it comes, a row of V with its probability. The head's last
        # row of V also needs a place for the head's flags.
        last = rows.payload.last
        weighted = Signal()  # a row of V may go
        may_go = Signal()
        ended = Signal()  # the head's last row of V goes
        m.d.comb += [
            weighted.eq(weights.valid & ~self.hold & (~last | (head.valid & flags.i.ready))),
            may_go.eq(~is_value | weighted),
            array.i.valid.eq(rows.valid & may_go),
            rows.ready.eq(array.i.ready & may_go),
            array.i.payload.w.eq(rows.payload.data),
            array.i.payload.x.eq(weights.payload.y),
            array.i.payload.outer.eq(is_value),
            # Scores are relative to the head's first finite one, which FP16 rounds with less error;
            # a softmax of differences is the same.
            array.i.payload.relative.eq(1),
            array.i.payload.last.eq(last),
            self.used.eq(array.i.valid & array.i.ready & is_value),
            self.p.eq(weights.payload),
            weights.ready.eq(self.used),
            ended.eq(self.used & last),
            head.ready.eq(ended),
        ]

        # The flags wait for their result, because the next head may end before it leaves.
        join(m, [array.o, flags.o], [o])
        m.d.comb += [
            flags.i.valid.eq(ended),
            flags.i.payload.invalid.eq(weights.payload.invalid),
            flags.i.payload.last.eq(head.payload),
            o.payload.o.eq(array.o.payload),
            o.payload.invalid.eq(flags.o.payload.invalid),
            o.payload.last.eq(flags.o.payload.last),
        ]
        return m

    def _score(self, m: Module, array, softmax) -> Signal:
        """Scores into the softmax. Returns whether the row that is offered is of V."""
        rows = self.rows
        # Rows come as a run of K, then a run of V, for each head: the last row of a run turns the
        # array from inner to outer products. The softmax between them runs concurrently (VEDA, Fig.
        # 6).
        is_value = Signal(init=not self.parameters.keys)
        if not self.parameters.keys:
            wiring.connect(m, wiring.flipped(self.scores), softmax.i)
            return is_value
        wiring.connect(m, wiring.flipped(self.q), array.q)
        # The softmax collects all of a head's scores before it outputs probabilities, so the array
        # can go through all keys without waiting for it, and only then needs the probabilities.
        scores = self.collected(m, "scores", array.s)
        join(m, [scores], [softmax.i])
        m.d.comb += [
            softmax.i.payload.x.eq(scores.payload.s),
            softmax.i.payload.last.eq(scores.payload.last),
        ]
        # K and V alternate.
        with m.If(rows.valid & rows.ready & rows.payload.last):
            m.d.sync += is_value.eq(~is_value)
        return is_value
