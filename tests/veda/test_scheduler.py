"""The scheduler alone: its streams, by unbounded proof, and its limits.

The order of its actions is tested with the core, which runs whole sequences.
"""

import pytest
from amaranth.hdl import Assert, Assume, Cover, Elaboratable, Module, Signal
from amaranth.sim import Simulator

from hw.attention import head_order
from hw.veda import scheduler
from hw.veda.scheduler import Scheduler, SchedulerParameters
from sim.checks.formal.specs import surround
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

SMALL = SchedulerParameters(2, 4, 4, 4, 3, 2, contexts=2)
BLOCKS = SchedulerParameters(2, 4, 4, 4, 3, 2, contexts=2, block=3)


class SchedulerSpec(Elaboratable):
    """Each step is reported once, after all its reads: votes depend on them."""

    def __init__(self, dut):
        self.dut = dut

    def elaborate(self, platform):
        m = Module()
        dut = self.dut
        first, internals = surround(m, dut)
        for port in (dut.vote_command, dut.report, dut.run, dut.use, dut.request):
            m.d.comb += Cover(~first & port.valid & ~port.ready, "a stalled beat")
        own, asked = dut.vote_report.payload.context, dut.vote_command.payload.context
        voting = Signal(2)  # contexts whose step the voting engine has
        with m.If(dut.vote_command.valid & dut.vote_command.ready):
            m.d.sync += voting.bit_select(asked, 1).eq(1)
        with m.If(dut.vote_report.valid & dut.vote_report.ready & dut.vote_report.payload.last):
            m.d.sync += voting.bit_select(own, 1).eq(0)
        busy, waiting = internals.signal("busy"), Signal(2)
        with m.If(dut.vote_command.valid):
            m.d.comb += waiting.bit_select(asked, 1).eq(1)
        with m.If(~first):
            m.d.comb += Assert((voting & waiting) == 0, "a context with two steps")
            m.d.comb += Assert(busy == (voting | waiting), "a step that is not known")
        swapping = internals.signal("map.phase_state") != 0
        joining = internals.signal("joining")
        storing = internals.signal("sequence.phase_state") == 1  # numbered as the states are named
        m.d.comb += [
            Assert(first | ~joining.any() | storing, "a token without a slot while rows are read"),
            Assert(
                first | ~joining.any() | ~internals.signal("store__ready"),
                "a row is looked up before its token has a slot",
            ),
            Assume(~dut.vote_report.valid | voting.bit_select(own, 1)),
            *(
                Assume(~dut.vote_report.valid | ~row.valid | (region != own))
                for row in (dut.lookup, dut.request)
                for region in [row.payload.address[-1]]
            ),
            Assert(first | ~swapping | ~dut.request.valid, "a request while slots are swapped"),
        ]
        return m


@pytest.mark.campaign
@pytest.mark.parametrize("p", [SMALL, BLOCKS], ids=["token", "block"])
def test_proof(p):
    for mode, depth in (("prove", 2), ("cover", 16)):
        name = f"scheduler_rules_{p.block}"
        prove_block(SchedulerSpec(Scheduler(p)), name, mode, depth=depth)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        (
            "join(m, [rows.o], [self.request])",
            "join(m, [rows.o], [self.request], ~self.command.valid)",
        ),
        ("error | voted.valid", "error | (voted.valid & ~self.command.valid)"),
        ("free.eq(~(busy >> command.payload.context)[0])", "free.eq(1)"),
        ("m.If(reported & ended.last)", "m.If(self.vote_report.valid & ended.last)"),
        ("m.If(reported & ended.last)", "m.If(reported & ended.last & ~ended.evict)"),
    ],
    ids=["request", "report", "busy", "early", "late"],
)
def test_faults_are_found(line, instead, request):
    dut = with_fault(scheduler, line, instead).Scheduler(SMALL)
    name = f"scheduler_fault_{request.node.callspec.id}"  # a folder of its own, as they run at once
    find_fault(SchedulerSpec(dut), name, depth=16)


THREE = SchedulerParameters(3, 4, 4, 4, 3, 2)


def requests(dut: Scheduler, **fields: int) -> tuple[list[int], list[int]]:
    """Addresses that a command writes to, and the errors reported, within 30 cycles."""
    addresses, errors = [], []

    async def testbench(context):
        context.set(dut.command.payload, {"restart": 1, **fields})
        context.set(dut.command.valid, 1)
        for ready in (dut.vote_command.ready, dut.report.ready, dut.request.ready, dut.use.ready):
            context.set(ready, 1)
        for _ in range(30):
            if context.get(dut.command.ready):
                await context.tick()
                context.set(dut.command.valid, 0)
            if context.get(dut.request.valid):
                addresses.append(context.get(dut.request.payload.address))
            if context.get(dut.report.valid):
                errors.append(context.get(dut.report.payload.error))
            await context.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    return addresses, errors


@pytest.mark.parametrize(("heads", "group"), [(4, 1), (4, 0), (0, 1), (0, 0), (5, 2), (7, 7)])
def test_a_command_of_too_many_heads_is_refused(heads, group):
    """It makes no request and is reported."""
    assert requests(Scheduler(THREE), heads=heads, group=group) == ([], [1])


def test_other_commands_are_not_refused():
    for heads, group in ((4, 2), (3, 1), (4, 7)):
        addresses, errors = requests(Scheduler(THREE), heads=heads, group=group)
        assert len(addresses) == 2 * -(-heads // group) and not errors
        assert max(addresses) < 3 * 2 * 4


def test_without_refusal_rows_are_beyond_the_memory(monkeypatch):
    module = with_fault(head_order, "| (heads > group * self.kv_heads)", "")
    misfits = module.HeadOrderParameters.misfits
    monkeypatch.setattr(head_order.HeadOrderParameters, "misfits", misfits)
    addresses, errors = requests(Scheduler(THREE), heads=4, group=1)
    assert not errors and max(addresses) >= 3 * 2 * 4


def test_addresses():
    """Different for every row, within the address width of a request."""
    p = SchedulerParameters()
    found = {
        p.address(head, value, row)
        for head in range(p.kv_heads)
        for value in range(2)
        for row in range(p.capacity)
    }
    assert len(found) == 2 * 3 * 256 and max(found) < 1 << p.address_width
