"""Unbounded proof of the arbiter: no beat lost, stream rules kept, fair, work-conserving."""

import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import (
    Array,
    Assert,
    Assume,
    Cat,
    Cover,
    Elaboratable,
    Module,
    Mux,
    Signal,
)

from hw.stream.arbiter import Arbiter, ArbiterParameters
from sim.checks.formal.specs import surround
from tests.support.campaign import suite_takes
from tests.support.formal import find_fault, prove_block

INPUTS = [1, 2, 3, 4, 5]


class ArbiterSpec(Elaboratable):
    """The output is the last beat accepted; acceptance is round-robin and as early as possible.

    `invariant` relates the turn kept here, from observation, to the arbiter's own register. Without
    `turns` only the bound on waiting is asserted, which the round-robin order implies.
    """

    def __init__(self, dut, invariant=True, turns=True):
        self._dut, self._invariant, self._turns = dut, invariant, turns

    def elaborate(self, platform):
        m = Module()
        dut, inputs = self._dut, self._dut.parameters.inputs
        first, internals = surround(m, self._dut)

        offers = Signal(inputs)
        accepted = Signal(inputs)
        m.d.comb += [
            offers.eq(Cat(port.valid for port in dut.i)),
            accepted.eq(Cat(port.valid & port.ready & ~first for port in dut.i)),
        ]
        turn = Signal(range(max(2, inputs)), init=inputs - 1)
        held, held_data = Signal(), Signal(2)
        held_source = Signal.like(turn, init=0)
        with m.If(dut.o.ready):
            m.d.sync += held.eq(0)
        for s, port in enumerate(dut.i):
            with m.If(accepted[s]):
                m.d.sync += [held.eq(1), held_data.eq(port.payload), held_source.eq(s), turn.eq(s)]

        passed = self._fairness(m, first, offers, accepted, turn)
        with m.If(~first):
            m.d.comb += [
                Assert((accepted & (accepted - 1)[:inputs]) == 0, "two beats accepted at once"),
                Assert(dut.o.valid == held, "a beat lost or invented"),
                Assert(~held | (dut.o.payload.data == held_data), "wrong data"),
                Assert(~held | (dut.o.payload.source == held_source), "wrong source"),
                Assert((accepted == 0) | ~held | dut.o.ready, "a beat overwritten"),
                Assert((accepted != 0) | (offers == 0) | (held & ~dut.o.ready), "idle"),
            ]
            if self._invariant:
                m.d.comb += Assert(internals.signal("last") == turn)

        every = Signal(inputs)
        m.d.sync += every.eq(every | accepted)
        m.d.comb += [
            Cover(every.all(), "every input was served"),
            Cover(passed == inputs - 1, "the bound is reached"),
            Cover(~first & held & ~dut.o.ready & (offers != 0), "stalled"),
        ]
        return m

    def _fairness(self, m, first, offers, accepted, turn):
        """Count the beats that go past one arbitrary input while it waits."""
        inputs = self._dut.parameters.inputs
        watched = AnyConst(len(turn))
        m.d.comb += Assume(watched < inputs)
        waits, served, other = Signal(), Signal(), Signal.like(turn)
        m.d.comb += [
            waits.eq(Array(offers)[watched]),
            served.eq(Array(accepted)[watched]),
        ]
        for s in range(inputs):
            with m.If(accepted[s]):
                m.d.comb += other.eq(s)

        def distance(source):
            """Inputs whose turn comes before that of `source`."""
            return Mux(source > turn, source - turn - 1, source + inputs - turn - 1)

        passed = Signal(range(inputs + 1))
        with m.If(served | ~waits):
            m.d.sync += passed.eq(0)
        with m.Elif(accepted.any()):
            m.d.sync += passed.eq(passed + 1)
        with m.If(~first):
            m.d.comb += Assert(passed < inputs, "unfair")
            with m.If(waits & ~served & accepted.any() & self._turns):
                m.d.comb += Assert(distance(other) < distance(watched), "out of turn")
            if self._invariant:
                m.d.comb += [Assert(turn < inputs), Assert(passed + distance(watched) < inputs)]
        return passed


def arbiter(inputs):
    return Arbiter(ArbiterParameters(width=2, inputs=inputs))


@pytest.mark.parametrize("inputs", suite_takes([1, 3], INPUTS))
def test_proof(inputs):
    prove_block(ArbiterSpec(arbiter(inputs)), f"arbiter{inputs}", depth=2)


@pytest.mark.parametrize("inputs", suite_takes([3], INPUTS))
def test_cover(inputs):
    prove_block(ArbiterSpec(arbiter(inputs)), f"arbiter{inputs}", "cover", depth=inputs + 5)


class FaultyArbiter(Arbiter):
    """Three inputs merged, with one injected fault or without."""

    fault: str = ""

    def elaborate(self, platform):
        m = Module()
        fault, o = self.fault, self.o
        last, granted, free = Signal(2, init=2), Signal(2), Signal()
        m.d.comb += free.eq(~o.valid | o.ready)
        if fault == "overwrites":
            m.d.comb += free.eq(1)
        if fault == "idles":
            m.d.comb += free.eq(~o.valid)
        for after in (False, True):
            for s in reversed(range(3)):
                with m.If(self.i[s].valid & ((last < s) if after else 1)):
                    m.d.comb += granted.eq(s)
        with m.If(free):
            m.d.sync += o.valid.eq(0)
        for s, port in enumerate(self.i):
            m.d.comb += port.ready.eq(free & (granted == s))
            if fault == "accepts two" and s == 0:
                m.d.comb += port.ready.eq(free)
            with m.If(port.valid & port.ready):
                m.d.sync += [
                    o.valid.eq(0 if fault == "loses" and s == 1 else 1),
                    o.payload.data.eq(port.payload),
                    o.payload.source.eq(0 if fault == "mislabels" and s == 2 else s),
                ]
                if fault == "corrupts":
                    m.d.sync += o.payload.data.eq(port.payload | (port.payload == 2))
                # Where `last` is not updated, the lowest input always has priority.
                if fault != "starves" and not (fault == "skips a turn" and s == 1):
                    m.d.sync += last.eq(s)
        return m


@pytest.mark.parametrize(
    "fault, found_by",
    suite_takes(
        ["starves"],
        [
            ("overwrites", "a beat overwritten"),
            ("accepts two", "two beats accepted at once"),
            ("loses", "a beat lost or invented"),
            ("corrupts", "wrong data"),
            ("mislabels", "wrong source"),
            ("idles", "idle"),
            ("starves", "unfair"),
            ("skips a turn", "out of turn"),
        ],
    ),
)
def test_injected_fault_is_found(fault, found_by):
    dut = FaultyArbiter(ArbiterParameters(width=2, inputs=3))
    dut.fault = fault
    name = f"arbiter_{fault.replace(' ', '_')}"
    spec = ArbiterSpec(dut, invariant=False, turns=found_by != "unfair")
    find_fault(spec, name, found_by, depth=10)


@pytest.mark.campaign
def test_specification_accepts_the_arbiter_without_a_fault():
    dut = FaultyArbiter(ArbiterParameters(width=2, inputs=3))
    prove_block(ArbiterSpec(dut, invariant=False), "arbiter_sound", "bmc", depth=8)


def test_a_single_input_still_has_a_source_field():
    layout = ArbiterParameters(width=8, inputs=1).output_layout()
    assert {name: field.width for name, field in layout} == {"data": 8, "source": 1}
