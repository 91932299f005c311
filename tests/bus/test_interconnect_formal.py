"""Masters on one bus: each address once, data in the order of addresses; unbounded proof.

Masters and slave do what they like within the rules of streams. One arbitrary write is followed.
"""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Array, Assert, Cat, Cover, Elaboratable, Fragment, Module, Signal, Value

from hw.bus import interconnect
from hw.bus.interconnect import Interconnect, InterconnectParameters
from sim.checks.formal.specs import Internals, drive, reset_first, watch
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

SIZE = InterconnectParameters(readers=2, writers=2, data=32, bus_address=13, id=1, bursts=2)
FIELDS = ("addr", "len", "size", "burst", "cache", "prot")


class InterconnectSpec(Elaboratable):
    """See the module; without `invariant` the assertions on registers are left out."""

    def __init__(self, dut, invariant: bool = True):
        self.dut, self.invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut = self.dut
        m.submodules.dut = fragment = Fragment.get(dut, None)
        self.first = first = reset_first(m)
        for port in (*dut.ar, *dut.aw, *dut.w):
            drive(m, first, port)
        for port in (dut.bus.ar, dut.bus.aw, dut.bus.w):
            watch(m, first, port)
        read, _ = self._addresses(m, dut.ar, dut.bus.ar)
        write, begins = self._addresses(m, dut.aw, dut.bus.aw)
        self._data(m, begins)
        for channel, masters in ((dut.bus.r, dut.r), (dut.bus.b, dut.b)):
            self._responses(m, channel, masters)
        if self.invariant:
            with m.If(~first):
                self._invariant(m, Internals(fragment), read, write)
        return m

    def _addresses(self, m: Module, masters, bus) -> tuple[Signal, Signal]:
        """Each accepted address is offered once, with its master's number above its ID."""
        full = Signal()
        kept, source = Signal.like(masters[0].payload), Signal()
        accepts = [port.valid & port.ready & ~self.first for port in masters]
        with m.If(bus.ready):
            m.d.sync += full.eq(0)
        for n, (accept, port) in enumerate(zip(accepts, masters, strict=True)):
            with m.If(accept):
                m.d.sync += [full.eq(1), kept.eq(port.payload), source.eq(n)]
        same = Cat(*(Value.cast(kept[f]) == Value.cast(bus.payload[f]) for f in FIELDS)).all()
        with m.If(~self.first):
            m.d.comb += [
                Assert(~(accepts[0] & accepts[1]), "two addresses at once"),
                Assert(~Cat(accepts).any() | ~full | bus.ready, "an address is lost"),
                Assert(bus.valid == full, "an address comes twice or never"),
                Assert(~full | same, "an address is changed"),
                Assert(~full | (bus.payload.id == Cat(kept.id, source)), "a wrong ID"),
            ]
        m.d.comb += Cover(full & source & ~self.first, "the second master")
        begins = Signal()
        self.begin_source = Signal()
        m.d.comb += [begins.eq(Cat(accepts).any()), self.begin_source.eq(accepts[1])]
        return full, begins

    def _data(self, m: Module, begins) -> None:
        """A burst's data are those of its master, before any other burst's."""
        dut, bus = self.dut, self.dut.bus
        move = bus.w.valid & bus.w.ready & ~self.first
        takes = Cat(*(port.valid & port.ready for port in dut.w))
        self.owed = owed = Signal(4)  # bursts whose address is accepted and whose data are not sent
        last = Signal()
        m.d.comb += last.eq(move & bus.w.payload.last)
        m.d.sync += owed.eq(owed + begins - last)
        self.following, self.ahead, self.source = Signal(), Signal(4), Signal()
        with m.If(begins & AnySeq(1) & ~self.following):
            m.d.sync += [
                *(self.following.eq(1), self.source.eq(self.begin_source)),
                self.ahead.eq(owed - last),
            ]
        with m.Elif(self.following & last):
            m.d.sync += [self.ahead.eq(self.ahead - 1), self.following.eq(self.ahead != 0)]
            with m.If(self.ahead == 0):
                m.d.sync += self.ahead.eq(0)
        whose = Array(Value.cast(port.payload) for port in dut.w)[takes[1]]
        with m.If(~self.first):
            m.d.comb += [
                Assert(~bus.w.valid | (owed != 0), "data without an address"),
                Assert(takes.any() == move, "data are lost or invented"),
                Assert(~takes.all(), "two masters at once"),
                Assert(~move | (Value.cast(bus.w.payload) == whose), "data are changed"),
            ]
            with m.If(self.following & (self.ahead == 0) & move):
                m.d.comb += Assert(takes[1] == self.source, "another burst's data")
        m.d.comb += Cover(~self.first & (owed == 3), "three bursts without their data")

    def _responses(self, m: Module, channel, masters) -> None:
        """A response goes to the master that its ID names, and to no other."""
        m.d.comb += [
            channel.valid.eq(AnySeq(1)),
            Value.cast(channel.payload).eq(AnySeq(len(Value.cast(channel.payload)))),
        ]
        with m.If(~self.first):
            m.d.comb += Assert(channel.ready, "a response is held up")
            for n, master in enumerate(masters):
                mine = channel.valid & (channel.payload.id[SIZE.id :] == n)
                m.d.comb += Assert(master.valid == mine, "a response to a wrong master")
                for name, _ in master.payload.shape():
                    got, sent = Value.cast(master.payload[name]), channel.payload[name]
                    with m.If(mine):
                        same = got == Value.cast(sent)[: len(got)]
                        m.d.comb += Assert(same, "a response is changed")

    def _invariant(self, m: Module, internals: Internals, read, write) -> None:
        level = internals.signal("order.fifo.level")
        produce, consume = (internals.signal(f"order.fifo.{n}") for n in ("produce", "consume"))
        on_bus, in_order = (internals.signal(f"address_delivered_{n}") for n in range(2))
        asked, source = (
            internals.signal("writing.o__valid"),
            internals.signal("writing.o__payload")[-1],
        )
        place = Signal(range(SIZE.bursts))
        stored = internals.row(m, "order.fifo.storage", place)
        waiting = asked & ~in_order
        m.d.comb += [
            place.eq(consume + self.ahead),
            Assert((level <= SIZE.bursts) & ((consume + level)[: len(produce)] == produce)),
            Assert(read == internals.signal("reading.o__valid")),
            Assert(write == (asked & ~on_bus)),
            Assert(~(on_bus & in_order) & (asked | ~(on_bus | in_order))),
            Assert(self.owed == level + waiting),
        ]
        with m.If(self.following):
            m.d.comb += Assert(self.ahead < self.owed)
            with m.If(self.ahead < level):
                m.d.comb += Assert(stored == self.source)
            with m.Else():
                m.d.comb += Assert(source == self.source)
        with m.Else():
            m.d.comb += Assert(self.ahead == 0)


def test_proof():
    prove_block(InterconnectSpec(Interconnect(SIZE)), "interconnect", depth=2)


@pytest.mark.campaign
def test_cover():
    spec = InterconnectSpec(Interconnect(SIZE), invariant=False)
    prove_block(spec, "interconnect", "cover", depth=12)


FAULTS = {
    "order": (
        "order.i.payload.eq(writing.o.payload.source)",
        "order.i.payload.eq(0)",
        "another burst's data",
    ),
    "interleaved": (
        "m.d.comb += order.o.ready.eq(last)",
        "m.d.comb += order.o.ready.eq(bus.w.valid & bus.w.ready)",
        "another burst's data|data without an address",
    ),
    "early_data": ("bus.w.valid.eq(0)", "bus.w.valid.eq(self.w[0].valid)", "without an address"),
    "id": ("Cat(asked.data.id, asked.source)", "asked.data.id", "a wrong ID"),
    "response": ("channel.payload.id[p.id :] == n", "channel.payload.id[0] == n", "a wrong master"),
    "twice": (
        'fork(m, "address", writing.o, [bus.aw, order.i])',
        "fork(m, 'address', writing.o, [bus.aw]); m.d.comb += order.i.valid.eq(bus.aw.valid)",
        "data without an address",
    ),
}


@pytest.mark.campaign
@pytest.mark.parametrize("fault", FAULTS)
def test_injected_fault_is_found(fault):
    line, instead, found_by = FAULTS[fault]
    dut = with_fault(interconnect, line, instead).Interconnect(SIZE)
    find_fault(InterconnectSpec(dut, invariant=False), f"interconnect_{fault}", found_by, depth=9)
