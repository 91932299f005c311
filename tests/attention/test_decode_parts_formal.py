"""The parts of a decode core: rules of their streams, the order of heads, the memory port."""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Module
from amaranth.sim import Simulator

from hw.attention import head_order, row_port, step_sequence
from hw.attention.head_order import HeadOrder, HeadOrderParameters
from hw.attention.row_port import RowPort
from hw.attention.step_sequence import StepSequence
from hw.layout import index
from hw.stream.memory_port import MemoryPort
from sim.checks.formal.specs import StreamRulesSpec, surround
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block, prove_stream_rules

SIZES = HeadOrderParameters(heads=5, kv_heads=3, parallel=2)
AHEAD = HeadOrderParameters(heads=5, kv_heads=3, parallel=2, ahead=3)
BLOCKS = HeadOrderParameters(heads=3, kv_heads=2, parallel=2, tokens=3)
PORT = MemoryPort(index(range(2)), 3, 2)


def test_rules_of_the_head_order():
    prove_stream_rules(HeadOrder(SIZES), "head_order", "o", ["i"])


class SequenceSpec(StreamRulesSpec):
    """Commands are refused, and steps are reported, at any time."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += [self._dut.refuse.eq(AnySeq(1)), self._dut.reported.eq(AnySeq(1))]
        return m


@pytest.mark.campaign
@pytest.mark.parametrize("p", [SIZES, BLOCKS, AHEAD], ids=["token", "block", "ahead"])
def test_rules_of_the_step_sequence(p):
    for mode, depth in (("prove", 2), ("cover", 12)):
        spec = SequenceSpec(StepSequence(p), ["store", "run"], ["command"])
        prove_block(spec, f"step_sequence_rules_{p.ahead}_{p.tokens}", mode, depth=depth)


class PortSpec(StreamRulesSpec):
    """Writes go with their rows of kv, and reads are not lost."""

    def __init__(self, dut: RowPort):
        super().__init__(dut, ["request"], ["write", "kv", "read"])

    def elaborate(self, platform):
        m = Module()
        dut = self._dut
        first, _ = surround(m, dut)
        write, kv, read, request = (
            port.valid & port.ready for port in (dut.write, dut.kv, dut.read, dut.request)
        )
        with m.If(~first):
            m.d.comb += [
                Assert(write == kv, "a write without its row"),
                Assert((write | read) == request, "a request lost"),
                Assert(~(write & read), "two requests at once"),
                Assert(~write | (dut.request.payload.data == dut.kv.payload), "another row"),
            ]
        return m


def test_memory_port():
    prove_block(PortSpec(RowPort(PORT)), "row_port", depth=2)


@pytest.mark.parametrize(
    ("line", "instead", "found_by"),
    [
        ("writing.eq(write.valid & ~waiting)", "writing.eq(write.valid)", "payload changed"),
        ("kv.ready.eq(writing & request.ready)", "kv.ready.eq(request.ready)", "without its row"),
    ],
    ids=["waiting", "kv"],
)
def test_faults_of_the_memory_port_are_found(line, instead, found_by, request):
    dut = with_fault(row_port, line, instead).RowPort(PORT)
    find_fault(PortSpec(dut), f"row_port_{request.node.callspec.id}", found_by, depth=5)


def batches_of(dut: HeadOrder, steps: list[dict]) -> list[tuple]:
    """What leaves, a beat a cycle, of steps that are always offered."""
    found = []

    async def testbench(context):
        context.set(dut.o.ready, 1)
        for step in steps:
            context.set(dut.i.payload, step)
            context.set(dut.i.valid, 1)
            for _ in range(10):
                taken = context.get(dut.i.ready)
                if context.get(dut.o.valid):
                    beat = context.get(dut.o.payload)
                    found.append((beat.kv_head, beat.heads, beat.final, beat.last))
                await context.tick()
                if taken:
                    break

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    return found


def expected(p: HeadOrderParameters, heads: int, group: int) -> list[tuple]:
    found = []
    for kv_head, first in enumerate(range(0, heads, group)):
        remaining = min(group, heads - first)
        for n in range(0, remaining, p.parallel):
            batch = min(p.parallel, remaining - n)
            found.append((kv_head, batch, n + batch == remaining, first + n + batch == heads))
    return found


def test_every_order_of_heads():
    """Of every step that fits, without a gap between two steps."""
    p = SIZES
    pairs = [(h, g) for h in range(8) for g in range(8) if p.fits(h, g)]
    steps = [{"heads": h, "group": g, "whole": 0} for h, g in (*pairs, pairs[0])]
    found = batches_of(HeadOrder(p), steps)
    assert found == [beat for pair in pairs for beat in expected(p, *pair)]
    assert len(pairs) == 33 and [p.batches(5, 3), p.batches(4, 7)] == [[2, 1, 2], [2, 2]]


def test_a_fault_of_the_order_is_seen():
    module = with_fault(head_order, "of_group.eq(group), ", "")
    step = {"heads": 5, "group": 2, "whole": 0}
    assert batches_of(module.HeadOrder(SIZES), [step, step]) != expected(SIZES, 5, 2)


def runs_of(dut: StepSequence, heads: int, group: int) -> list[tuple]:
    """Runs of a step, each of V or of K, with its kv head and the number of its heads."""
    found = []

    async def testbench(context):
        context.set(dut.command.payload, {"heads": heads, "group": group})
        for port in (dut.command.valid, dut.store.ready, dut.run.ready):
            context.set(port, 1)
        for _ in range(40):
            if context.get(dut.run.valid):
                beat = context.get(dut.run.payload)
                found.append((beat.value, beat.batch.kv_head, beat.batch.heads, beat.batch.last))
            await context.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    return found


def expected_runs(p: HeadOrderParameters, heads: int, group: int) -> list[tuple]:
    found, remaining = [], expected(p, heads, group)
    for turn in p.turns(heads, group):
        batches = []
        while turn:
            batches.append(remaining.pop(0))
            turn -= batches[-1][1]
        for value in (0, 1):
            found += [(value, kv_head, size, last) for kv_head, size, _, last in batches]
    return found


def test_every_order_of_runs():
    """K and V of each batch in turn, or K of several heads before their V."""
    for p in (SIZES, AHEAD):
        pairs = [(h, g) for h in range(8) for g in range(8) if p.fits(h, g)]
        for pair in pairs:
            assert runs_of(StepSequence(p), *pair) == expected_runs(p, *pair)
    assert AHEAD.turns(5, 2) == [2, 3] and AHEAD.turns(3, 1) == [3]
    assert SIZES.turns(5, 2) == SIZES.batches(5, 2) == [2, 2, 1]


def test_a_fault_of_the_turns_is_seen():
    module = with_fault(step_sequence, "value.eq(waiting != values.payload.heads)", "value.eq(0)")
    assert runs_of(module.StepSequence(AHEAD), 5, 3) != expected_runs(AHEAD, 5, 3)
