"""Scores of a query and the keys, their softmax, and the sum of V's rows with these weights."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, wiring

from hw.arith.float_format import FP16
from hw.attention.pe_array import PeArray
from hw.attention.product_array import PeArrayParameters
from hw.attention.special_function_unit import (
    Operation,
    SpecialFunctionUnit,
    SpecialFunctionUnitParameters,
)
from hw.component import Component
from hw.layout import FLAG, count
from hw.parameters import Parameters
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.stream.combine import join
from hw.stream.queue import Queue, QueueParameters

RESULTS = 4
"""Number of heads whose flags may wait for their result."""


class TurnTimes(NamedTuple):
    """Cycles in which the array does what in a turn of several heads.

    last_row, result
        The last row of V is accepted; its result is offered.
    next_key
        The first key of the next turn may be accepted.
    """

    last_row: int
    result: int
    next_key: int


@dataclasses.dataclass(frozen=True)
class WeightedRowsParameters(Parameters):
    """
    array
        Parameters of the array of products.
    softmax
        Parameters of the softmax; its `length` is the largest number of rows of a head.
    keys
        Whether scores are inner products with rows of K; else they are an input.
    products
        Number of vectors that share the rows of a matrix product, at most; 0: only attention.
    """

    array: PeArrayParameters = PeArrayParameters()
    softmax: SpecialFunctionUnitParameters = SpecialFunctionUnitParameters()
    keys: bool = True
    products: int = 0

    @cached_property
    def row_layout(self) -> data.ArrayLayout:
        return self.array.query_layout

    @cached_property
    def rows_layout(self) -> data.StructLayout:
        """``data`` of a row, ``last`` of a head's K or V."""
        return data.StructLayout({"data": self.row_layout, "last": FLAG})

    @cached_property
    def run_layout(self) -> data.StructLayout:
        """A run of rows, of V if ``value``, that comes once for each of its ``heads``.

        ``last`` if the step's last head is among them. With `products`, a run of ``value`` may be a
        ``product``'s, of a matrix for as many vectors.
        """
        heads = count(range(max(self.softmax.vectors, self.products) + 1))
        fields = {"value": FLAG, "heads": heads, "last": FLAG}
        return data.StructLayout(fields | ({"product": FLAG} if self.products else {}))

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

    def turn(self, key: int, lengths: Sequence[int], hold: int = 0) -> TurnTimes:
        """When the array does what in a turn that begins in cycle `key`.

        `lengths` are the numbers of rows of its heads, of a block's tokens one after the other. No
        row of V is accepted before the cycle `hold`.

        Rows come without stalls. A row counts as accepted `multiply_stages` cycles before its
        products enter the adders.
        """
        array = self.array
        timing = array.outer_product(lengths[-1])
        if len(lengths) == 1:
            value = max(hold, key + self.value_cycles(lengths[0]))
            last = value + timing.last_row
            return TurnTimes(last, value + timing.result, value + timing.next_row)
        last_key = key + sum(rows + 1 for rows in lengths) - 2  # a query takes a cycle
        free = last_key + array.tree_cycles  # the tree is empty
        stages = array.multiply_stages
        # Rows: at the end of the multipliers, and in the adders.
        inside = [(last_key + stages, last_key + stages)]
        accepted = last_key
        for rows in lengths:
            probability = max(hold, key + self.value_cycles(rows))
            key += rows + 1
            value = max(free, probability)
            free = value + rows - 1 + array.outer_end_cycles
            # A few rows go into the multipliers before the adders are free.
            for row in range(rows) if rows <= stages else ():
                accepted = max(probability + row, accepted + 1)
                for at_end, added in inside[-stages:]:
                    if at_end <= accepted < added:  # it waits there, and those behind it
                        accepted = added
                at_end = max(accepted + stages, inside[-1][1] + 1)
                inside.append((at_end, value + row + stages))
        last = accepted if lengths[-1] <= stages else value + timing.last_row
        return TurnTimes(last, value + timing.result, value + timing.next_row)

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
    (:class:`hw.attention.pe_array.PeArray`). The rows of K come first, then as many rows of V: of
    one head, or of as many as the softmax holds ``vectors``. A run of rows that several heads share
    comes once for each of them; its last row has ``last`` each time. Without `keys`, scores are an
    input and all rows are of V. The rows of the next heads' K may follow at once.

    With `products`, a run may be of a matrix: its rows are added times factors that are an input.

    A core that decides by probabilities watches `p`. It does not stall the softmax but the row of V
    that has this probability, so that nothing happens before the row has been read.

    Errors: a head is ``invalid`` as its softmax is
    (:class:`hw.attention.special_function_unit.SpecialFunctionUnit`). Rows of V are not checked.

    Handshake: ``q.ready`` depends on ``rows.valid``: a query is accepted when its first key is
    there. A beat of `run` is accepted with its last row, the last time. ``rows.ready`` depends
    combinationally on ``rows.valid``, ``rows.payload``, `run`, `hold` and ``o.ready``.
    """

    def ports(self) -> Ports:
        p = self.parameters
        q = {"q": stream_in(p.row_layout, "Queries, FP16, times the scale; only with `keys`.")}
        scores = {"scores": stream_in(p.softmax.input_layout, "Scores; only without `keys`.")}
        return {
            **(q if p.keys else scores),
            **({"factors": stream_in(FP16, "Factors of a product's rows.")} if p.products else {}),
            "rows": stream_in(p.rows_layout, "Rows of K and V."),
            "run": stream_in(p.run_layout, "What each run of rows is, in their order."),
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

    def make_softmax(self, m: Module):
        """The softmax; a core that shares it with others has another one."""
        softmax = SpecialFunctionUnit(self.parameters.softmax)
        m.submodules.special_function_unit = softmax
        m.d.comb += [softmax.command.valid.eq(1), softmax.command.payload.op.eq(Operation.SOFTMAX)]
        return softmax

    def collected(self, m: Module, name: str, beats):
        """Scores before the softmax, or probabilities after it: as they come."""
        return beats

    def elaborate(self, platform):
        m = Module()
        rows, run, o = self.rows, self.run, self.o
        m.submodules.pe_array = array = self.make_array()
        softmax = self.make_softmax(m)
        layout = data.StructLayout({"invalid": FLAG, "last": FLAG})
        m.submodules.flags = flags = Queue(QueueParameters(depth=RESULTS), shape=layout)
        weights = self.collected(m, "probabilities", softmax.o)
        self._score(m, array, softmax)

        # A key goes into the array as it comes, a row of V with its probability. The head's last
        # row of V also needs a place for the head's flags.
        last, is_value = rows.payload.last, run.payload.value
        weighted = Signal()  # a row of V may go
        may_go = Signal()
        taken = Signal()  # it goes
        ended = Signal()  # and is the head's last
        most = max(self.parameters.softmax.vectors, self.parameters.products)
        number = Signal(range(1, most + 1), init=1)  # of the run's head
        last_head = Signal()
        run_ends = Signal()
        has_factor, factor, of_product = self._factor(m, run, weights, taken)
        m.d.comb += [
            weighted.eq(has_factor & (of_product | ~self.hold) & (~last | flags.i.ready)),
            may_go.eq(run.valid & (~is_value | weighted)),
            array.i.valid.eq(rows.valid & may_go),
            rows.ready.eq(array.i.ready & may_go),
            array.i.payload.w.eq(rows.payload.data),
            array.i.payload.x.eq(factor),
            array.i.payload.outer.eq(is_value),
            # Scores are relative to the head's first finite one, which FP16 rounds with less error;
            # a softmax of differences is the same.
            array.i.payload.relative.eq(1),
            array.i.payload.last.eq(last),
            taken.eq(array.i.valid & array.i.ready & is_value),
            self.used.eq(taken & ~of_product),
            self.p.eq(weights.payload),
            weights.ready.eq(self.used),
            ended.eq(taken & last),
            last_head.eq(number == run.payload.heads),
            run_ends.eq(rows.valid & rows.ready & last),
            run.ready.eq(run_ends & last_head),
        ]
        with m.If(run_ends):
            m.d.sync += number.eq(Mux(last_head, 1, number + 1))

        # The flags wait for their result, because the next head may end before it leaves.
        join(m, [array.o, flags.o], [o])
        m.d.comb += [
            flags.i.valid.eq(ended),
            flags.i.payload.invalid.eq(weights.payload.invalid & ~of_product),
            flags.i.payload.last.eq(run.payload.last & last_head),
            o.payload.o.eq(array.o.payload),
            o.payload.invalid.eq(flags.o.payload.invalid),
            o.payload.last.eq(flags.o.payload.last),
        ]
        return m

    def _factor(self, m: Module, run, weights, taken: Signal):
        """What a row of V or of a matrix is multiplied by, and whether the row is of a matrix."""
        if not self.parameters.products:
            return weights.valid, weights.payload.y, Const(0)
        factors, of_product = self.factors, run.payload.product
        m.d.comb += factors.ready.eq(taken & of_product)
        valid = Mux(of_product, factors.valid, weights.valid)
        return valid, Mux(of_product, factors.payload, weights.payload.y), of_product

    def _score(self, m: Module, array, softmax) -> None:
        """Scores into the softmax."""
        if not self.parameters.keys:
            wiring.connect(m, wiring.flipped(self.scores), softmax.i)
            return
        wiring.connect(m, wiring.flipped(self.q), array.q)
        # The softmax collects all of a head's scores before it outputs probabilities, so the array
        # can go through all keys without waiting for it, and only then needs the probabilities. It
        # runs concurrently with the array (VEDA, Fig. 6), which goes on with other heads' keys.
        scores = self.collected(m, "scores", array.s)
        join(m, [scores], [softmax.i])
        m.d.comb += [
            softmax.i.payload.x.eq(scores.payload.s),
            softmax.i.payload.last.eq(scores.payload.last),
        ]
