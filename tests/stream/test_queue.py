"""Unbounded proof of the queue at five depths, and tests of its specification.

Every assertion of the stream specification must catch an injected fault: a small buffer with the
fault must fail with that assertion's message.
"""

import pytest
from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.stream.queue import Queue, QueueParameters
from sim.checks.formal.specs import StreamSpec
from tests.support.campaign import suite_takes
from tests.support.formal import find_fault, prove_block

DEPTHS = [1, 2, 3, 4, 5]


def invariant(m, spec, internals):
    """Where the queue keeps the followed beat, and how its pointers and its level agree."""
    depth = spec.dut.parameters.depth
    m.d.comb += [
        Assert(internals.signal("fifo.level") == spec.held),
        Assert(~spec.following | (spec.ahead < spec.held)),
    ]
    if depth == 1:
        row = spec.dut.o.payload
    else:
        produce, consume = internals.signal("fifo.produce"), internals.signal("fifo.consume")
        place = Signal(range(2 * depth + 2))
        m.d.comb += [
            place.eq(consume + spec.ahead),
            Assert(produce < depth),
            Assert(consume < depth),
            Assert((consume + spec.held) % depth == produce),
        ]
        row = internals.row(m, "fifo.storage", Mux(place < depth, place, place - depth))
    with m.If(spec.following):
        m.d.comb += Assert(row == spec.value)


def specification(depth, invariant=invariant):
    return StreamSpec(Queue(QueueParameters(width=2, depth=depth)), depth, invariant=invariant)


@pytest.mark.parametrize("depth", suite_takes([1, 3], DEPTHS))
def test_proof(depth):
    prove_block(specification(depth), f"queue_depth{depth}", depth=3)


@pytest.mark.parametrize("depth", suite_takes([3], DEPTHS))
def test_cover(depth):
    prove_block(specification(depth), f"queue_depth{depth}", "cover", depth=2 * depth + 4)


class FaultyBuffer(wiring.Component):
    """A two-entry queue, with one injected fault or without."""

    i: In(stream.Signature(2))
    o: Out(stream.Signature(2))

    def __init__(self, fault):
        super().__init__()
        self._fault = fault

    def elaborate(self, platform):
        m = Module()
        fault = self._fault
        head, tail, held, blink = Signal(2), Signal(2), Signal(range(4)), Signal()
        i, o = self.i, self.o
        m.d.sync += blink.eq(~blink)
        m.d.comb += [
            i.ready.eq(held < {"refuses": 1, "overfills": 3}.get(fault, 2)),
            o.valid.eq(held != 0),
            o.payload.eq(head),
        ]
        match fault:
            case "withdraws":
                m.d.comb += o.valid.eq((held != 0) & blink)
            case "changes":
                m.d.comb += o.payload.eq(head ^ (held == 2))
            case "invents":
                m.d.comb += o.valid.eq((held != 0) | blink)
            case "reorders":
                m.d.comb += o.payload.eq(Mux(held == 2, tail, head))
            case "corrupts":
                m.d.comb += o.payload.eq(head | (head == 2))

        push, pop = i.valid & i.ready, o.valid & o.ready & (held != 0)
        with m.If(push & pop):
            m.d.sync += [head.eq(Mux(held == 1, i.payload, tail)), tail.eq(i.payload)]
            if fault == "loses":
                m.d.sync += held.eq(held - 1)
        with m.Elif(push):
            m.d.sync += held.eq(held + 1)
            with m.If(held == 0):
                m.d.sync += head.eq(i.payload)
            with m.Else():
                m.d.sync += tail.eq(i.payload)
        with m.Elif(pop):
            m.d.sync += held.eq(held - (0 if fault == "repeats" else 1))
            m.d.sync += head.eq(tail)
        return m


@pytest.mark.parametrize(
    "fault, found_by",
    suite_takes(
        ["reorders"],
        [
            ("withdraws", "a stalled beat was withdrawn"),
            ("changes", "a stalled payload changed"),
            ("overfills", "more beats than capacity"),
            ("invents", "a beat from nowhere"),
            ("repeats", "a beat from nowhere"),
            ("refuses", "refused with room"),
            ("loses", "a beat is stuck"),
            ("reorders", "wrong data or order"),
            ("corrupts", "wrong data or order"),
        ],
    ),
)
def test_specification_catches(fault, found_by):
    find_fault(StreamSpec(FaultyBuffer(fault), 2), f"buffer_{fault}", found_by, depth=10)


@pytest.mark.campaign
def test_specification_accepts_the_buffer_without_a_fault():
    prove_block(StreamSpec(FaultyBuffer(None), 2), "buffer_sound", "bmc", depth=10)


def test_capacity_is_exact():
    queue = Queue(QueueParameters(width=2, depth=4))
    find_fault(StreamSpec(queue, 3), "queue_depth4_as3", "more beats than capacity", depth=8)
