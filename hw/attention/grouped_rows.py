"""Several query heads of a kv head at once, on rows that are read once."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream

from hw.attention.weighted_rows import WeightedRows, WeightedRowsParameters
from hw.component import Component
from hw.layout import FLAG, count
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out, wire_out
from hw.stream.combine import collect, fork, join, route
from hw.stream.queue import Queue, QueueParameters


class LaneTimes(NamedTuple):
    """Cycles in which a lane did what in a batch.

    last
        Its last row of V was accepted.
    offered, left
        Its result was offered, and left. The lane stalls from the one to the other.
    """

    last: int
    offered: int
    left: int

    def moving(self, cycle: int) -> int:
        """The first cycle from `cycle` on in which the lane does not stall."""
        return self.left if self.offered <= cycle < self.left else cycle

    def delay(self, cycle: int) -> int:
        """Number of cycles from `cycle` on in which the lane stalls."""
        return max(0, self.left - max(self.offered, cycle))


@dataclasses.dataclass(frozen=True)
class GroupedRowsParameters(Parameters):
    """
    lane
        Parameters of a lane, which computes one head.
    lanes
        Number of query heads that share a run of rows, at most.
    """

    lane: WeightedRowsParameters = WeightedRowsParameters()
    lanes: int = 1

    def __post_init__(self):
        require(self.lanes >= 1, "lanes must be at least 1", self.lanes)

    @cached_property
    def batch_layout(self) -> data.StructLayout:
        """``heads`` that share the next rows of K and V, ``last`` of the step."""
        return data.StructLayout({"heads": count(range(self.lanes + 1)), "last": FLAG})

    def batch(
        self, before: Sequence[LaneTimes], first: int, heads: int, rows: int
    ) -> list[LaneTimes]:
        """What the lanes do in a batch of `heads` heads of `rows` rows, without stalls.

        before
            What they did in the batch before; empty before the first batch.
        first
            Cycle from which on the batch's first key is there, if the batch before has ended.
        """
        timing = self.lane.array.outer_product(rows)
        idle = LaneTimes(*[-timing.next_row] * 3)
        old = [*before, *[idle] * (heads - len(before))][:heads]
        # The queries, one after the other; then each lane's first key.
        query = max(first - 1, *(lane.last for lane in [idle, *before]))
        keys = []
        for lane in old:
            query = lane.moving(query + 1)
            folded = lane.last + timing.next_row - timing.last_row
            keys.append(max(lane.moving(query + 1), folded))
        if rows > 1:  # the other rows come to all lanes in the same cycle
            keys = [max(keys)] * heads
        delays = [lane.delay(key + 1) for lane, key in zip(old, keys, strict=True)]
        if rows > 1:
            delays = [max(delays)] * heads
        waits = self.lane.value_cycles(rows)
        values = [key + waits + delay for key, delay in zip(keys, delays, strict=True)]
        # Results leave one after the other, when the whole batch has ended.
        left = max([max(values) + timing.last_row, *(lane.left for lane in before)])
        times = []
        for value in values:
            offered = value + timing.result
            left = max(left + 1, offered)
            times.append(LaneTimes(value + timing.last_row, offered, left))
        return times


class GroupedRows(Component[GroupedRowsParameters]):
    """A :class:`WeightedRows` for each head of a batch, all on the same rows.

    ::

        rows ─┬→ lane 0: query register, array, softmax ─┐
              ├→ lane 1: …                               ├→ o, one after the other
              └→ lane g-1: …                             ┘

    Rows are read once for the batch, and there are `lanes` times the multipliers, adders, query
    registers and softmax units. A lane accepts its query when the batch's first key is there, a
    lane a cycle; results leave in the same order, a lane a cycle.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "batch": stream_in(
                p.batch_layout,
                "A beat for each pair of runs of K and V; accepted with the last row of V.",
            ),
            "q": stream_in(p.lane.row_layout, "Queries, in order of heads."),
            "rows": stream_in(p.lane.rows_layout, "Rows, K and V of a batch in turn."),
            "p": wire_out(
                data.ArrayLayout(p.lane.softmax.output_layout, p.lanes),
                "Probability of the row of V that each lane accepts in this cycle, if `used`.",
            ),
            "used": wire_out(p.lanes, "Whether each lane accepts a row of V in this cycle."),
            "o": stream_out(p.lane.output_layout, "Results, in order of heads."),
        }

    def make_lane(self, number: int) -> WeightedRows:
        """A lane; a core whose lanes do more has others."""
        return WeightedRows(self.parameters.lane)

    def elaborate(self, platform):
        m = Module()
        p, batch, rows = self.parameters, self.batch, self.rows
        lanes = [self.make_lane(n) for n in range(p.lanes)]
        # Number of heads of each batch whose results are to leave.
        layout = data.StructLayout({"heads": count(range(p.lanes + 1))})
        m.submodules.results = results = Queue(QueueParameters(depth=2), shape=layout)

        # A row goes to all lanes that have a head, and is accepted when all of them have it.
        is_value = Signal()
        ended = Signal()  # the row that is offered is the batch's last
        accepted = Signal()
        # Lanes read K and V once for all heads of a group (grouped-query attention). A fork, not a
        # join of readies: each lane takes its copy when it can, so no lane waits for another one's
        # valid.
        given = stream.Signature(p.lane.rows_layout).create()
        join(m, [rows], [given], batch.valid & (~ended | results.i.ready))
        fork(
            m,
            "rows",
            given,
            [x.rows for x in lanes],
            [batch.payload.heads > n for n in range(p.lanes)],
        )
        m.d.comb += [
            given.payload.eq(rows.payload),
            ended.eq(is_value & rows.payload.last),
            accepted.eq(rows.valid & rows.ready),
            batch.ready.eq(accepted & ended),
            results.i.valid.eq(batch.ready),
            results.i.payload.heads.eq(batch.payload.heads),
        ]
        with m.If(accepted & rows.payload.last):
            m.d.sync += is_value.eq(~is_value)
        for n, lane in enumerate(lanes):
            m.submodules[f"lane_{n}"] = lane
            m.d.comb += [
                # A lane's run needs no handshake: what it says is constant while its rows are
                # offered.
                lane.run.valid.eq(1),
                lane.run.payload.value.eq(is_value),
                lane.run.payload.heads.eq(1),
                lane.run.payload.last.eq(batch.payload.last & (batch.payload.heads == n + 1)),
                self.p[n].eq(lane.p),
                self.used[n].eq(lane.used),
            ]

        # Queries go to the lanes in turn, one without a row accepts none; results leave in turn.
        loading = Signal(range(p.lanes + 1))
        leaving = Signal(range(p.lanes + 1))
        result = stream.Signature(p.lane.output_layout).create()
        route(m, self.q, loading, [lane.q for lane in lanes])
        collect(m, [lane.o for lane in lanes], leaving, result)
        leaves = join(m, [result], [self.o], results.o.valid)
        final = leaving + 1 == results.o.payload.heads
        m.d.comb += [self.o.payload.eq(result.payload), results.o.ready.eq(leaves & final)]
        with m.If(self.q.valid & self.q.ready):
            m.d.sync += loading.eq(loading + 1)
        # No query of the next batch comes before this one's last row, as a lane without keys takes
        # none.
        with m.If(batch.ready):
            m.d.sync += loading.eq(0)
        with m.If(leaves):
            m.d.sync += leaving.eq(Mux(final, 0, leaving + 1))
        return m
