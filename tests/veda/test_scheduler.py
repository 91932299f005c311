"""The scheduler alone: its streams, proved for all time, and its limits.

What it does in which order is tested with the core, which plays whole sequences.
"""

import dataclasses

import pytest
from amaranth.hdl import Assert, Assume, Cover, Elaboratable, Fragment, Module

from hw.parameters import ParameterError
from hw.veda import scheduler
from hw.veda.scheduler import Scheduler, SchedulerParameters
from sim.formal import prove
from sim.formal_specs import Internals, drive, reset_first, watch
from tests.seeded import with_fault

SMALL = SchedulerParameters(2, 4, 4, 4, 3, 2)


class SchedulerSpec(Elaboratable):
    """All reads are done when the votes are decided, as they are made of them."""

    def __init__(self, dut):
        self.dut = dut

    def elaborate(self, platform):
        m = Module()
        dut = self.dut
        m.submodules.dut = fragment = Fragment.get(dut, None)
        first = reset_first(m)
        for port in (dut.job, dut.decided, dut.asked):
            drive(m, first, port)
        for port in (dut.votes, dut.report, dut.command, dut.request):
            watch(m, first, port)
            m.d.comb += Cover(~first & port.valid & ~port.ready, "a stalled beat")
        swapping = Internals(fragment).signal("map.phase_state") != 0
        m.d.comb += [
            Assume(~dut.decided.valid | (~dut.asked.valid & ~dut.request.valid)),
            Assert(first | ~swapping | ~dut.request.valid, "a request while slots are swapped"),
        ]
        return m


def test_proof():
    for mode, depth in (("prove", 2), ("cover", 16)):
        result = prove(SchedulerSpec(Scheduler(SMALL)), "scheduler_rules", mode, depth=depth)
        assert result.status == "PASS", result


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("request.valid.eq(rows.o.valid)", "request.valid.eq(rows.o.valid & ~self.job.valid)"),
        ("report.valid.eq(decided.valid & free)", "report.valid.eq(decided.valid & ~job.valid)"),
    ],
    ids=["request", "report"],
)
def test_faults_are_found(line, instead, request):
    dut = with_fault(scheduler, line, instead).Scheduler(SMALL)
    name = f"scheduler_fault_{request.node.callspec.id}"  # a folder of its own, as they run at once
    result = prove(SchedulerSpec(dut), name, "bmc", depth=16)
    assert result.status == "FAIL", result


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kv_heads": 0}, "kv_heads must be 1 to heads, not 0"),
        ({"kv_heads": 10}, "kv_heads must be 1 to heads, not 10"),
        ({"depth": 6}, "depth must be a power of two from 4, not 6"),
    ],
)
def test_parameter_messages(changes, sentence):
    with pytest.raises(ParameterError) as caught:
        dataclasses.replace(SchedulerParameters(), **changes)
    assert str(caught.value) == sentence


def test_addresses():
    """Of every row another one, as wide as the request says."""
    p = SchedulerParameters()
    found = {
        p.address(head, value, row)
        for head in range(p.kv_heads)
        for value in range(2)
        for row in range(p.capacity)
    }
    assert len(found) == 2 * 3 * 256 and max(found) < 1 << p.address_width
