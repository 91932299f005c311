"""The scoreboard: rules of streams, and one arbitrary slot as a mailbox; unbounded proof."""

import dataclasses

import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import Assert, Assume, Cover, Elaboratable, Module, Mux, Signal

from hw.topick import scoreboard
from hw.topick.scoreboard import Scoreboard, ScoreboardParameters
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

SIZE = ScoreboardParameters(entries=3, score_bits=2, shift_bits=1, precision=1)
ALONE = dataclasses.replace(SIZE, waits=False)


class MailboxSpec(Elaboratable):
    """A slot as a mailbox: its next read gets the entry written last, once. A free slot is issued,
    and none is issued twice, if only its holder returns it."""

    def __init__(self, dut: Scoreboard, inductive: bool = True):
        self.dut, self._inductive = dut, inductive

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        first, internals = surround(m, dut)
        live = ~first
        slot = Signal(range(p.entries))
        parked, taken = Signal(), Signal()
        value, answer = Signal(p.entry_layout), Signal(p.entry_layout)
        coming = Signal()  # the entry at the output is the slot's
        reads, writes, gives = Signal(), Signal(), Signal()
        write = dut.write.payload
        m.d.comb += [
            slot.eq(AnyConst(len(slot))),
            Assume(slot < p.entries),
            Assume(dut.read.payload < p.entries),
            Assume(write.slot < p.entries),
            reads.eq(dut.read.valid & dut.read.ready & live),
            writes.eq(dut.write.valid & dut.write.ready & live),
            gives.eq(dut.free.valid & dut.free.ready & live),
        ]
        with m.If(reads):
            m.d.sync += coming.eq(dut.read.payload == slot)
            with m.If(dut.read.payload == slot):
                m.d.comb += Assert(parked, "a read of nothing")
                m.d.sync += [parked.eq(0), answer.eq(value)]
        with m.If(writes & (write.slot == slot)):
            with m.If(write.park):
                m.d.comb += Assert(~parked, "parked twice")
                m.d.sync += [parked.eq(1), value.eq(write.entry)]
        with m.If(live & dut.entry.valid & coming):
            m.d.comb += Assert(dut.entry.payload == answer, "wrong entry")

        if not p.waits:
            parks = dut.write.valid & write.park & (write.slot == slot)
            m.d.comb += [
                Assume(~(parks & parked)),
                Assume(~(dut.read.valid & dut.entry.valid) | dut.entry.ready),
            ]

        # Slots that are held, whoever holds them.
        held = Signal(range(p.entries + 2))
        back = writes & ~write.park
        m.d.sync += held.eq(held + gives - back)
        m.d.comb += Assume(~(dut.write.valid & ~write.park) | (held != 0))
        with m.If(gives & (dut.free.payload == slot)):
            m.d.sync += taken.eq(1)
        with m.If(back & (write.slot == slot)):
            m.d.sync += taken.eq(0)
        m.d.comb += Assume(~(dut.write.valid & ~write.park & (write.slot == slot)) | taken)
        with m.If(live):
            m.d.comb += [
                Assert(dut.free.valid == (held != p.entries), "a free slot is not offered"),
                Assert(~(dut.write.valid & ~write.park) | dut.write.ready, "refused a slot"),
                Assert(~(dut.free.valid & taken & (dut.free.payload == slot)), "issued twice"),
            ]
        m.d.comb += [
            Cover(dut.entry.valid & coming & (answer.score == 1) & parked, "read and parked again"),
            Cover(gives & (dut.free.payload == slot) & (held == 2) & ~taken, "the last slot"),
        ]
        if self._inductive:
            with m.If(live):
                self._tie(m, internals, slot, parked, value, taken, held)
        return m

    def _tie(self, m, internals, slot, parked, value, taken, held):
        p = self.dut.parameters
        fresh = internals.signal("fresh")
        level = internals.signal("returned.fifo.level")
        consume = internals.signal("returned.fifo.consume")
        end = Signal(range(2 * p.entries))
        m.d.comb += end.eq(consume + level)
        row = Signal.like(value, name="row_of_slot")
        m.d.comb += [
            row.as_value().eq(internals.row(m, "rows", slot)),
            Assert(internals.signal("full").bit_select(slot, 1) == parked),
            Assert(~parked | (row == value)),
            Assert(held == fresh - level),
            Assert(fresh <= p.entries),
            Assert(held <= p.entries),
            Assert(consume < p.entries),
            Assert(
                internals.signal("returned.fifo.produce")
                == Mux(end < p.entries, end, end - p.entries)
            ),
            Assert(level <= fresh),
        ]
        # The slot is new, or held, or once among those that came back.
        copies = 0
        for number in range(p.entries):
            place = Signal(range(2 * p.entries), name=f"place_{number}")
            there = Signal(name=f"there_{number}")
            m.d.comb += [
                place.eq(consume + number - ((consume + number) >= p.entries) * p.entries),
                there.eq(
                    (number < level) & (internals.row(m, "returned.fifo.storage", place) == slot)
                ),
            ]
            copies = copies + there
        m.d.comb += Assert(copies + taken + (fresh <= slot) == 1)


@pytest.mark.parametrize("size", [SIZE, ALONE], ids=["waits", "alone"])
def test_proof(size):
    prove_block(MailboxSpec(Scoreboard(size)), "scoreboard", depth=2)


def test_cover():
    spec = MailboxSpec(Scoreboard(SIZE), inductive=False)
    prove_block(spec, "scoreboard", "cover", depth=10)


FAULTS = {
    "reads_nothing": ("(full & read_slot).any()", "1", "a read of nothing"),
    "overwrites": ("~(full & write_slot).any()", "1", "parked twice"),
    "gives_twice": ("fresh.eq(fresh + 1)", "fresh.eq(fresh)", "issued twice"),
    "never_back": ("self.write.valid & ~self.write.payload.park", "0", "is not offered"),
}


test_injected_fault_is_found = fault_test(
    scoreboard, FAULTS, lambda m: MailboxSpec(m.Scoreboard(SIZE), inductive=False), depth=8
)
