"""The PE array's control: results, queries and their order; unbounded proof.

For any rows, queries, bubbles and stalls, also if a row that was offered is withdrawn: results keep
the rules of streams. Each row of an inner product makes one result, in order and with its ``last``;
each outer product makes one. One query is accepted for each product, and nothing waits longer than
the adders are busy.
"""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import (
    Assert,
    Assume,
    Cat,
    Const,
    Cover,
    Elaboratable,
    Module,
    Mux,
    Signal,
    Value,
)

from hw.attention import pe_array
from hw.attention.pe_array import PeArray, PeArrayParameters
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

SIZES = [
    PeArrayParameters(2, 1, 1, "fp16", add_stages=2),
    PeArrayParameters(4, 1, 1, "fp16", add_stages=1),
    PeArrayParameters(2, 1, 1, "fp16", multiply_stages=2, add_stages=4),
]


class ControlSpec(Elaboratable):
    def __init__(self, dut, invariant=True):
        self.dut, self._invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        first, internals = surround(m, dut, leave={"i"})
        live = ~first
        # A row may be withdrawn, because a lane holds rows of V that it has offered.
        m.d.comb += [
            dut.i.valid.eq(AnySeq(1)),
            Value.cast(dut.i.payload).eq(AnySeq(len(Value.cast(dut.i.payload)))),
        ]
        row = dut.i.payload
        row_accepted = Signal()
        query_accepted = Signal()
        score_issued = Signal()
        sums_issued = Signal()
        m.d.comb += [
            row_accepted.eq(dut.i.valid & dut.i.ready & live),
            query_accepted.eq(dut.q.valid & dut.q.ready & live),
            score_issued.eq(dut.s.valid & dut.s.ready & live),
            sums_issued.eq(dut.o.valid & dut.o.ready & live),
        ]

        # Assumption: a product ends before the next begins.
        within, within_outer = Signal(), Signal()
        with m.If(row_accepted):
            m.d.sync += [within.eq(~row.last), within_outer.eq(row.outer)]
        m.d.comb += Assume(~dut.i.valid | ~within | (row.outer == within_outer))

        # Inner rows and outer products inside. One inner row is followed: `ahead` counts the rows
        # whose scores leave before its score.
        most = p.tree_cycles + p.multiply_stages + 3
        rows, sums = Signal(range(most + 1)), Signal(range(most + 1))
        ahead, value = Signal(range(most + 1)), Signal()
        following, chosen = Signal(), Signal()
        inner_accepted = Signal()
        outer_ended = Signal()
        loaded = Signal()
        m.d.comb += [
            inner_accepted.eq(row_accepted & ~row.outer),
            outer_ended.eq(row_accepted & row.outer & row.last),
        ]
        m.d.sync += [
            rows.eq(rows + inner_accepted - score_issued),
            sums.eq(sums + outer_ended - sums_issued),
        ]
        pick = Signal()
        m.d.comb += pick.eq(inner_accepted & ~chosen & AnySeq(1))
        with m.If(pick):
            m.d.sync += [
                chosen.eq(1),
                following.eq(1),
                value.eq(row.last),
                ahead.eq(rows - score_issued),
            ]
        with m.Elif(following & score_issued):
            with m.If(ahead == 0):
                m.d.sync += following.eq(0)
            with m.Else():
                m.d.sync += ahead.eq(ahead - 1)
        with m.If(query_accepted):
            m.d.sync += loaded.eq(1)
        with m.Elif(inner_accepted & row.last):
            m.d.sync += loaded.eq(0)

        waits = Signal(range(p.tree_cycles + p.outer_end_cycles + 2))
        open_ = (~dut.s.valid | dut.s.ready) & (~dut.o.valid | dut.o.ready)
        waiting = Signal()
        m.d.comb += waiting.eq(dut.i.valid & open_ & ~dut.i.ready & (row.outer | loaded) & live)
        with m.If(open_ | row_accepted):
            m.d.sync += waits.eq(Mux(waiting, waits + 1, 0))
        with m.If(live):
            m.d.comb += [
                Assert(~dut.s.valid | (rows != 0), "a score from nowhere"),
                Assert(~dut.o.valid | (sums != 0), "sums from nowhere"),
                Assert(~(dut.s.valid & dut.o.valid), "two results at once"),
                Assert(
                    ~(following & dut.s.valid & (ahead == 0)) | (dut.s.payload.last == value),
                    "a score out of order",
                ),
                Assert(~inner_accepted | loaded, "a row without its query"),
                Assert(~query_accepted | (~loaded & dut.i.valid & ~row.outer), "a query too early"),
                Assert(~(query_accepted & row_accepted), "a query and a row at once"),
                Assert(waits <= max(p.tree_cycles, p.outer_end_cycles), "a row is stuck"),
                Assert(rows <= p.tree_cycles + p.multiply_stages + 2, "too many rows inside"),
            ]
            if self._invariant:
                self._invariants(m, internals, rows, sums, ahead, value, following)
                signal = internals.signal
                flight, fold = signal("flight"), signal("fold")
                head = p.multiply_stages - 1
                outer = signal(f"outer_{head}")
                m.d.comb += [
                    Assert(signal("loaded") == loaded),
                    Assert(~within | within_outer | loaded),
                    Assert((waits == 0) | signal(f"valid_{head}")),
                ]
                # Cycles waited plus cycles left until the adders are free are never more than one
                # product takes.
                left = Signal(range(p.tree_cycles + p.outer_end_cycles + 2))
                with m.If(outer):
                    until = Const(0)
                    for place in reversed(range(p.tree_cycles - 1)):
                        until = Mux(flight[place], p.tree_cycles - 1 - place, until)
                    busy = Mux(
                        (fold != 0) & (fold < p.outer_end_cycles), p.outer_end_cycles - fold, 0
                    )
                    m.d.comb += left.eq(Mux(until > busy, until, busy))
                with m.Elif((fold != 0) & (fold <= p.fold_cycles)):
                    m.d.comb += left.eq(p.fold_cycles + 1 - fold)
                m.d.comb += Assert(waits + left <= max(p.tree_cycles, p.outer_end_cycles))
        m.d.comb += [
            Cover(dut.s.valid & ~dut.s.ready & (rows > 2), "scores wait"),
            Cover(dut.o.valid & ~dut.o.ready & (rows != 0), "sums wait, the next product is in"),
            Cover(following & dut.s.valid & (ahead == 0) & value, "the score of the followed row"),
        ]
        return m

    def _invariants(self, m, internals, rows, sums, ahead, value, following):
        """Registers agree with the rows and sums inside, stage by stage."""
        p, signal = self.dut.parameters, internals.signal
        s, o = self.dut.s, self.dut.o
        flight, lasts = signal("flight"), signal("lasts")
        stages = [(s.valid, s.payload.last), (signal("scored"), signal("scored_last"))]
        stages += [(flight[n], lasts[n]) for n in reversed(range(p.tree_cycles))]
        ending = []
        for stage in reversed(range(p.multiply_stages)):
            valid, outer, last = (signal(f"{n}_{stage}") for n in ("valid", "outer", "last"))
            stages.append((valid & ~outer, last))
            ending.append(valid & outer & last)
        fold = signal("fold")
        ending += [fold != 0, signal("summed"), o.valid]
        m.d.comb += [
            Assert(rows == sum(valid for valid, _ in stages)),
            Assert(sums == sum(ending)),
            Assert(fold <= p.outer_end_cycles),
            Assert(~signal("summed") | ~signal("scored")),
        ]
        # While an outer product folds, inner rows in the adders entered after its last row.
        for place in range(p.tree_cycles):
            m.d.comb += Assert(~flight[place] | (fold == 0) | (fold >= p.fold_cycles + place + 2))
        before, found = Const(0), []
        for valid, last in stages:
            found.append(valid & (ahead == before) & (last == value))
            before = before + valid
        m.d.comb += Assert(~following | Cat(found).any())


@pytest.mark.parametrize("parameters", SIZES, ids=lambda p: p.slug())
def test_proof(parameters):
    spec = ControlSpec(PeArray(parameters))
    prove_block(spec, f"pe_array_{parameters.slug()}", depth=2, seconds=300)


@pytest.mark.campaign
def test_cover():
    spec = ControlSpec(PeArray(SIZES[0]), invariant=False)
    prove_block(spec, "pe_array_control", "cover", depth=16, seconds=300)


FAULTS = {
    "row_without_query": ("front & (row.outer | loaded)", "front", "a row without its query"),
    "loses_the_last": ("lasts.eq(Cat(flags.last, lasts[:-1]))", "lasts.eq(0)", "out of order"),
    "never_ends": ("m.d.sync += fold.eq(0)", "m.d.sync += fold.eq(fold)", "from nowhere"),
    "waits_for_ever": ("flags.valid & free", "0 & free", "is stuck"),
}


test_injected_fault_is_found = fault_test(
    pe_array,
    FAULTS,
    lambda m: ControlSpec(m.PeArray(SIZES[0]), invariant=False),
    depth=14,
    seconds=300,
)
