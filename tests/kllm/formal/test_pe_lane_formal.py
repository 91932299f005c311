"""Columns through the KLLM lane: none is lost, doubled or early; unbounded proof.

Properties of columns, not of their values, which simulation compares: arithmetic is left out.
Steps, lengths of columns, products, vector scales and stalls are arbitrary. Registers power up with
any value; reset is high in the first cycle. Each of the lane's paths is a queue, so columns keep
their order if all paths hold the same number of them.
"""

import dataclasses

import pytest
from amaranth.hdl import Array, Assert, Assume, Cover, Elaboratable, Module, Mux, Signal

from hw.kllm import pe_lane
from hw.kllm.pe_lane import PeLane, PeLaneParameters
from sim.checks.formal.proof import prove
from sim.checks.formal.specs import surround
from tests.support.campaign import suite_takes
from tests.support.faults import with_fault
from tests.support.formal import prove_block
from tests.support.kllm.column_invariants import columns_in, level_of
from tests.support.kllm.no_arithmetic import leave_out_arithmetic

ONE_GROUP = PeLaneParameters(1, 1, 1, 1, macs=4, entries=1, columns=2, counter_stages=0)
TWO_GROUPS = PeLaneParameters(1, 1, 1, 1, macs=2, entries=1, columns=2, counter_stages=1)
SIZES = {"one_group": ONE_GROUP, "two_groups": TWO_GROUPS}


class LaneSpec(Elaboratable):
    """For each column's last step its groups of products, its scales and a result, in this order.

    Each column has any number of groups, as it says with its last step.
    """

    def __init__(self, dut: PeLane):
        self._dut = dut

    def elaborate(self, platform):
        m = Module()
        dut, p = self._dut, self._dut.parameters
        first, internals = surround(m, dut)
        step = dut.i.payload
        fits = (step.groups != 0) & (step.groups <= p.groups)
        m.d.comb += Assume((step.advance & fits) | ~step.last)

        def moves(name: str, port, only=1) -> Signal:
            moving = Signal(name=name)
            m.d.comb += moving.eq(port.valid & port.ready & ~first & only)
            return moving

        def columns(name: str, enter: Signal, leave: Signal) -> Signal:
            number = Signal(5, name=name)
            m.d.sync += number.eq(number + enter - leave)
            with m.If(~first):
                m.d.comb += [
                    Assert(number <= p.waiting + p.column_scale.STAGES, f"too many {name}"),
                    Assert(~leave | (number != 0), f"more leave than {name}"),
                ]
            return number

        group = Signal(range(p.groups))
        most = p.counter_stages + 1
        ended = moves("ended", dut.i, dut.i.payload.last)
        grouped = moves("grouped", dut.products)
        joined = moves("joined", dut.vector_scale)
        taken = moves("taken", dut.o)
        final = Signal()
        # Groups of the columns that are counted, oldest first; there is one in each stage of the
        # counter, and one in its buffer.
        groups = [Signal(range(p.groups + 1), name=f"groups_of_{n}") for n in range(most)]
        m.d.comb += final.eq(grouped & (group == groups[0] - 1))
        with m.If(grouped):
            m.d.sync += group.eq(Mux(final, 0, group + 1))
        counted = columns("counted", ended, final)
        for n, own in enumerate(groups):
            with m.If(ended & (counted - final == n)):
                m.d.sync += own.eq(step.groups)
            with m.Elif(final & (n + 1 < most)):
                m.d.sync += own.eq(groups[min(n + 1, most - 1)])
        reduced = columns("reduced", final, joined)
        scaled = columns("scaled", joined, taken)
        inside = Signal(6)
        m.d.comb += inside.eq(counted + reduced + scaled)
        with m.If(~first):
            self._invariant(m, internals, group, groups, counted, reduced, scaled)
        m.d.comb += [
            Cover((counted != 0) & (reduced > 1) & (scaled != 0) & ~first, "columns everywhere"),
            Cover(taken & (inside == 1), "the last one leaves"),
            Cover(final & ((groups[0] < p.groups) | (p.groups == 1)), "fewer groups"),
        ]
        return m

    def _invariant(self, m, internals, group, groups, counted, reduced, scaled):
        p = self._dut.parameters
        busy = internals.signal("counter.busy")
        ends = [busy]
        if p.counter_stages:
            valid, last = internals.signal("counter.valid"), internals.signal("counter.ends")
            ends += [valid[n] & last[n] for n in range(p.counter_stages)]
        m.d.comb += Assert(counted == sum(ends))
        if p.groups > 1:
            m.d.comb += Assert(internals.signal("counter.group") == group)
        m.d.comb += Assert(busy | (group == 0))
        # The number of groups of each column, where the counter holds it.
        before = busy
        for stage in reversed(range(p.counter_stages)):
            with m.If(ends[1 + stage]):
                of_stage = internals.signal(f"counter.groups_{stage}")
                m.d.comb += Assert(Array(groups)[before] == of_stage)
            before = before + ends[1 + stage]
        with m.If(busy):
            at = internals.signal("counter.final")
            m.d.comb += [Assert(groups[0] - 1 == at), Assert(group < groups[0])]
        for n, own in enumerate(groups):
            with m.If(counted > n):
                m.d.comb += Assert((own != 0) & (own <= p.groups))

        most = [part.fixed_sum.columns for part in (p.reduction, p.sparse_path)]
        stages = ["valid_0", "valid_1"], ["last_0", "last_1"]
        reducing = columns_in(m, internals, "reduction", most[0], ["valid_0"], ["last_0"])
        outlying = columns_in(m, internals, "sparse", most[1], *stages)
        waiting = counted + reduced
        m.d.comb += [
            Assert(reducing == reduced),
            Assert(outlying + level_of(m, internals, "sparse_sums", p.waiting) == waiting),
            Assert(level_of(m, internals, "scales", p.waiting) == waiting),
            Assert(sum(internals.signal("scale.valid")) == scaled),
        ]


@pytest.fixture(autouse=True)
def no_arithmetic(monkeypatch):
    leave_out_arithmetic(monkeypatch)


@pytest.mark.parametrize("size", suite_takes(["one_group"], SIZES))
def test_proof(size):
    prove_block(LaneSpec(PeLane(SIZES[size])), f"pe_lane_{size}", depth=2, seconds=300)


@pytest.mark.campaign
def test_cover():
    prove_block(LaneSpec(PeLane(ONE_GROUP)), "pe_lane", "cover", depth=15, solver="yices")


NEXT = "\n        m.d.comb += "

FAULTS = {
    "lost": ("step.last & sparse.i.ready & counter.i.ready", "step.last & sparse.i.ready"),
    "doubled": ("self.i.valid & counter.i.ready & scales.i.ready", "self.i.valid & scales.i.ready"),
    "alone": (
        "join(m, [counter.o, self.products], [reduction.i])",
        f"join(m, [counter.o], [reduction.i]){NEXT}self.products.ready.eq(counter.o.valid)",
    ),
    "all_groups": (
        '"integer", "last", "groups")',
        '"integer", "last")',
    ),
    "apart": (
        "scales.o, self.vector_scale)",
        "scales.o, self.vector_scale)\n        m.d.comb += sparse_sums.o.ready.eq(scale.i.ready)",
    ),
}


@pytest.mark.campaign
@pytest.mark.parametrize("fault", FAULTS)
def test_injected_fault_is_found(fault):
    line, instead = FAULTS[fault]
    module = with_fault(pe_lane, line, instead)
    dut = module.PeLane(module.PeLaneParameters(**dataclasses.asdict(ONE_GROUP)))
    result = prove(LaneSpec(dut), f"pe_lane_{fault}", "prove", depth=2, seconds=300)
    assert result.status in ("FAIL", "UNKNOWN") and result.failures, result
