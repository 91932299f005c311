"""The packing queue: entries in order, none lost, doubled or misplaced; unbounded proof.

Pushes within `room`, ends of runs and stalls are arbitrary. Registers and memories power up with
any value; reset is high in the first cycle. One arbitrary entry is followed from its push to its
group. Also the streams of the active position identification around the queue.
"""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import (
    Assert,
    Assume,
    Cat,
    Cover,
    Elaboratable,
    Module,
    Mux,
    Signal,
    Value,
)
from amaranth.lib import data

from hw.lad import apid, packing_queue
from hw.lad.apid_parameters import ApidParameters
from hw.lad.packing_queue import PackingQueueParameters
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

SIZES = [PackingQueueParameters(2, 2, 8), PackingQueueParameters(3, 2, 8)]


class PackingSpec(Elaboratable):
    """The model counts used places: entries, and places left empty at the end of a run.

    A run that ends with a half full group leaves the other place of that group empty.
    """

    def __init__(self, dut, invariant=True):
        self._dut, self._invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut, p = self._dut, self._dut.parameters
        first, internals = surround(m, dut)
        m.d.comb += [
            dut.push.eq(AnySeq(1)),
            dut.end.eq(AnySeq(1)),
            dut.mask.eq(AnySeq(p.lanes)),
            dut.common.eq(AnySeq(1)),
            Assume(~dut.push | dut.room | first),
            Assume(~dut.end | dut.mask.any()),
        ]
        m.d.comb += [Value.cast(entry).eq(AnySeq(1)) for entry in dut.entries]
        pushed = Signal()
        m.d.comb += pushed.eq(dut.push & ~first)

        # Used places: those in the banks and those of the group at the output.
        places = Signal(range(p.depth + p.outputs + 1))
        new, count = Signal(range(p.lanes + p.outputs)), sum(dut.mask)
        odd = Signal()  # with two places in a group, whether the last one is half full
        m.d.comb += new.eq(Mux(dut.end, count + (odd ^ count[0]), count))
        issued = Signal()
        m.d.comb += issued.eq(dut.o.valid & dut.o.ready & ~first)
        m.d.sync += places.eq(places + Mux(pushed, new, 0) - Mux(issued, 2, 0))
        with m.If(pushed):
            m.d.sync += odd.eq(odd ^ new[0])

        # One entry is followed: an arbitrary lane of an arbitrary push. `ahead` counts the places
        # that leave before it.
        lane = Signal(range(p.lanes))
        follow, following, done = Signal(), Signal(), Signal()
        ahead = Signal.like(places)
        value = Signal(2)
        is_last = Signal()
        before = Signal(range(p.lanes + 1))
        higher = Signal()
        m.d.comb += [
            lane.eq(AnySeq(len(lane))),
            Assume(lane < p.lanes),
            follow.eq(pushed & AnySeq(1) & dut.mask.bit_select(lane, 1) & ~following & ~done),
        ]
        with m.Switch(lane):
            for number in range(p.lanes):
                with m.Case(number):
                    m.d.comb += before.eq(sum(dut.mask[:number]) if number else 0)
                    m.d.comb += higher.eq(dut.mask[number + 1 :].any())
                    with m.If(follow):
                        m.d.sync += value.eq(Cat(Value.cast(dut.entries[number]), dut.common))
        with m.If(follow):
            m.d.sync += [
                following.eq(1),
                is_last.eq(dut.end & ~higher),
                ahead.eq(places + before - Mux(issued, 2, 0)),
            ]
        with m.Elif(following & issued):
            m.d.sync += ahead.eq(ahead - 2)
            with m.If(ahead < 2):
                m.d.sync += [following.eq(0), done.eq(1)]

        o = dut.o.payload
        at_output = Signal()
        m.d.comb += at_output.eq(following & dut.o.valid & (ahead < 2))
        got = Mux(ahead[0], Cat(o.entries[1], o.common[1]), Cat(o.entries[0], o.common[0]))
        kept = Mux(ahead[0], o.keep[1], o.keep[0])
        empty = Signal()  # behind the followed entry, which ends a run
        m.d.comb += empty.eq(at_output & ~ahead[0] & is_last)
        hidden = Signal(range(3))
        with m.If((places < 2) | dut.o.valid):
            m.d.sync += hidden.eq(0)
        with m.Else():
            m.d.sync += hidden.eq(hidden + 1)
        with m.If(~first):
            m.d.comb += [
                Assert(places <= p.depth + p.outputs, "more places than there are"),
                Assert(~issued | (places >= 2), "a group from nowhere"),
                Assert(~at_output | kept, "an entry is not kept"),
                Assert(~at_output | (got == value), "wrong data or order"),
                Assert(~at_output | ~is_last | o.last, "a run's end is lost"),
                Assert(~empty | ~o.keep[1], "an entry too many"),
                Assert(hidden <= 1, "a group is stuck"),
                Assert(dut.room | (places > p.room_limit), "refused with room"),
            ]
            if self._invariant:
                self._invariants(m, internals, places, odd, following, ahead, value, is_last)
        m.d.comb += [
            Cover(
                done & is_last & (places == 0),
                "the followed entry ended a run, and the queue is empty",
            ),
            Cover(~dut.room & ~first, "full"),
        ]
        return m

    def _invariants(self, m, internals, places, odd, following, ahead, value, is_last):
        dut, p = self._dut, self._dut.parameters
        tail, head, used = (internals.signal(name) for name in ("tail", "front", "used"))
        at_output = Mux(dut.o.valid, 2, 0)
        m.d.comb += [
            Assert(places == used + at_output),
            Assert(used <= p.depth),
            Assert(tail == (head + used)[: len(tail)]),
            Assert(~head[0]),
            Assert(odd == tail[0]),
            Assert(~following | (ahead < places)),
        ]
        # The banks hold the followed entry at its place, and the entry before it in its group, if
        # there is one, ends no run.
        bits = (p.banks - 1).bit_length()
        in_banks = Signal()
        place, partner = Signal.like(tail), Signal.like(tail)
        m.d.comb += [
            in_banks.eq(following & (ahead >= at_output)),
            place.eq(head + ahead - at_output),
            partner.eq(Cat(~place[0], place[1:])),
        ]
        for bank in range(p.banks):
            row = internals.row(m, f"bank_{bank}", place[bits:])
            other = internals.row(m, f"bank_{bank}", partner[bits:])
            entry, last, common = row[0], row[1], row[2]
            with m.If(in_banks & (place[:bits] == bank)):
                m.d.comb += [
                    Assert(Cat(entry, common) == value),
                    Assert(last == is_last),
                ]
            with m.If(in_banks & place[0] & (partner[:bits] == bank)):
                m.d.comb += Assert(~other[1])
        # The end of a run closes its group, so the entry of a half full group ends no run.
        half = Signal.like(tail)
        m.d.comb += half.eq(tail - 1)
        for bank in range(p.banks):
            row = internals.row(m, f"bank_{bank}", half[bits:])
            with m.If(odd & (half[:bits] == bank)):
                m.d.comb += Assert(~row[1])
        with m.If(following & is_last & ~ahead[0]):
            m.d.comb += Assert(places >= ahead + 2)


def build(parameters, module=packing_queue):
    return module.PackingQueue(parameters, 1, 1)


@pytest.mark.parametrize(
    "parameters",
    [SIZES[1], pytest.param(SIZES[0], marks=pytest.mark.campaign)],
    ids=lambda p: p.slug(),
)
def test_proof(parameters):
    prove_block(PackingSpec(build(parameters)), f"packing_{parameters.slug()}", depth=2)


@pytest.mark.campaign
def test_cover():
    prove_block(PackingSpec(build(SIZES[0]), False), "packing", "cover", depth=10)


FAULTS = {
    "wrong_row": ("(bank < tail[:bits] if bank + 1 < p.banks else 0)", "0", "wrong data or order"),
    "open_run": ("ones + Mux(self.end, left_open, 0)", "ones", "is stuck"),
    "lost_end": ("last = self.end & ~self.mask[lane + 1 :].any()", "last = self.end & 0", "end is"),
    "never_full": ("self.room.eq(used <= p.room_limit)", "self.room.eq(1)", "wrong data or|places"),
}


test_injected_fault_is_found = fault_test(
    packing_queue, FAULTS, lambda m: PackingSpec(build(SIZES[0], m), invariant=False), depth=12
)


class ApidSpec(Elaboratable):
    """Any commands and beats: outputs keep the rules of streams, each beat has its counters.

    The queue's rule holds: a step's last beat has an entry. No position is lost: each of a full
    beat is written to the counters or enters the queue.
    """

    def __init__(self, dut, invariant=True):
        self._dut, self._invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut, p = self._dut, self._dut.parameters
        first, internals = surround(m, dut)
        m.d.comb += Assume(~dut.command.valid | (dut.command.payload.n != 0))
        taken, given = (port.valid & port.ready & ~first for port in (dut.i, dut.counters))
        inside = Signal(range(p.latency + 2))
        m.d.sync += inside.eq(inside + taken - given)
        used = internals.signal("queue.used")
        entries, write = internals.signal("mask"), dut.counters.payload.write
        last = dut.counters.payload.last
        with m.If(~first):
            m.d.comb += [
                Assert(inside <= p.latency, "more beats than pipeline stages"),
                Assert(~dut.counters.valid | (inside != 0), "counters from nowhere"),
                Assert(used <= p.depth, "more active positions than the queue holds"),
                Assert(inside == sum(internals.signal("valid"))),
                Assert(~(given & last) | entries.any(), "a step ends without an entry"),
                Assert(~given | last | (entries | write).all(), "a position is lost"),
            ]
            if self._invariant:
                self._invariants(m, internals)
        m.d.comb += [
            Cover(inside == p.latency),
            Cover(dut.o.valid & ~dut.o.ready & dut.counters.valid & ~dut.counters.ready),
            Cover(given & (entries & write).any(), "a counter is halved"),
        ]
        return m

    def _invariants(self, m, internals):
        """Of a full beat all positions are present; the last one has a position in the window."""
        p = self._dut.parameters
        valid, active = internals.signal("valid"), internals.signal("was_active")
        m.d.comb += Assert(~internals.signal("busy") | (internals.signal("left") != 0))
        for number in range(p.latency):
            record = data.View(p.record_layout, internals.signal(f"stage_{number}"))
            latest = (record.present & ~record.older).any()
            present = Mux(record.last, latest, record.present.all())
            m.d.comb += Assert(~valid[number] | present)
        inactive = internals.signal("was_inactive")
        m.d.comb += Assert(~valid[-1] | Mux(record.last, active.any(), (active | inactive).all()))


APID = ApidParameters(
    lanes=2, positions=6, depth=8, outputs=2, window=1, bounds="1", counter_bits=2
)


@pytest.mark.parametrize("mode", ["prove", pytest.param("cover", marks=pytest.mark.campaign)])
def test_apid_streams(mode):
    depth = {"prove": 2, "cover": 12}[mode]
    prove_block(ApidSpec(apid.Apid(APID)), "apid_streams", mode, depth=depth)


APID_FAULTS = {
    "no_window": ("left > lane + p.window", "left > lane", "ends without an entry"),
    "lost": ("compared.present[lane] & ~inactive[lane]", "inactive[lane]", "position is lost"),
    "early_end": ("final.eq(left <= p.lanes)", "final.eq(left < p.lanes)", "without an entry|lost"),
}


test_injected_fault_in_apid_is_found = fault_test(
    apid, APID_FAULTS, lambda m: ApidSpec(m.Apid(APID), invariant=False), depth=12
)
