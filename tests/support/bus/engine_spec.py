"""What the proofs of both engines between memory and streams have in common."""

from abc import ABC, abstractmethod

from amaranth.asserts import AnySeq  # type: ignore[attr-defined]  # stubs lack it
from amaranth.hdl import (
    Assert,
    Assume,
    Elaboratable,
    Fragment,
    Module,
    Mux,
    Signal,
    Value,
)

from hw.bus.axi import Burst
from hw.bus.bursts import EngineParameters
from sim.checks.formal.specs import Internals, reset_first
from tests.support.bus.formal import Skid

# A beat is a transfer; bursts of two transfers, two under way, four transfers stored.
SIZE = EngineParameters(32, 32, bus_address=13, burst=2, outstanding=2)
SHIFT = 2  # bits of an address within a transfer
END = 1 << SIZE.bus_address - SHIFT  # transfers of the whole memory
DEPTH = SIZE.depth


class EngineSpec(Elaboratable, ABC):
    """What both engines have in common; without `invariant` only ports are looked at.

    place
        Number of the transfer whose burst is the next address on the bus.
    owed
        Transfers of the run behind it.
    total, end
        Beats of the run, and the transfer behind its last one.
    """

    def __init__(self, dut, invariant: bool = True):
        self.dut, self.invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut = self.dut
        m.submodules.dut = fragment = Fragment.get(dut, None)
        self.first = first = reset_first(m)
        self.internals = Internals(fragment)
        self._runs(m)
        self._bus(m)
        with m.If(~first):
            self._rules(m)
            if self.invariant:
                self._invariant(m)
        return m

    @abstractmethod
    def _bus(self, m: Module) -> None:
        """What the bus does."""

    @abstractmethod
    def _rules(self, m: Module) -> None:
        """What the engine must do."""

    @abstractmethod
    def _invariant(self, m: Module) -> None:
        """What ties its registers, for an induction."""

    def _runs(self, m: Module) -> None:
        """Runs that fit the memory; `stop` is held until the engine is idle."""
        dut, first = self.dut, self.first
        base, beats = AnySeq(SIZE.bus_address - SHIFT), AnySeq(32)
        self.stopped = stopped = Signal()  # the run has been ended early
        stopping = Signal()
        m.d.comb += [
            dut.start.eq(AnySeq(1)),
            dut.base.eq(base << SHIFT),
            dut.beats.eq(beats),
            dut.stop.eq(AnySeq(1)),
            Assume(~dut.start | (dut.idle & ~dut.stop & ~first), None),
            Assume(~dut.start | ((beats <= END) & (base + beats <= END)), None),
            Assume(~stopping | dut.stop, None),
        ]
        m.d.sync += stopping.eq(dut.stop & ~dut.idle & ~first)
        if self.invariant:
            with m.If(~first):
                m.d.comb += Assert(~stopped | dut.idle | stopping)
        self.place = Signal(range(END + 1))
        self.owed = Signal(range(END + 1))
        self.total = Signal(range(END + 1))
        self.end = Signal(range(END + 1))
        with m.If(dut.start):
            m.d.sync += [stopped.eq(0), self.end.eq(base + beats), self.total.eq(beats)]
        with m.Elif(dut.stop):
            m.d.sync += stopped.eq(1)
        with m.If(dut.start):
            m.d.sync += [self.place.eq(base), self.owed.eq(beats)]

    def _address(self, m: Module, channel) -> None:
        """Bursts one behind the other, each up to a multiple of `burst` or to the end."""
        beat = channel.payload
        self.length = length = Signal(range(SIZE.burst + 1))
        room = SIZE.burst - self.place[:1]
        m.d.comb += length.eq(Mux(self.owed < room, self.owed, room))
        self.issue = Signal()
        m.d.comb += self.issue.eq(channel.valid & channel.ready & ~self.first)
        with m.If(self.issue):
            m.d.sync += [self.place.eq(self.place + length), self.owed.eq(self.owed - length)]
        with m.If(channel.valid & ~self.first):
            m.d.comb += [
                Assert(self.owed != 0, "an address that no beat needs"),
                Assert(beat.addr == self.place << SHIFT, "a wrong address"),
                Assert(beat.len + 1 == length, "a wrong length"),
                Assert((beat.burst == Burst.INCR) & (beat.size == SHIFT), "a wrong kind"),
                Assert((beat.addr[:12] + ((beat.len + 1) << SHIFT)) <= 4096, "crosses 4 KiB"),
            ]

    def _report(self, m: Module, channel, place) -> None:
        """An answer with an error is reported in the next cycle, with its address."""
        dut, resp = self.dut, Value.cast(channel.payload.resp)
        wrong, decode, where = Signal(), Signal(), Signal(SIZE.bus_address)
        m.d.sync += [
            wrong.eq(channel.valid & resp[1] & ~self.first),
            decode.eq(resp[0]),
            where.eq(place << SHIFT),
        ]
        with m.If(~self.first):
            m.d.comb += Assert(dut.error == wrong, "an error is lost or invented")
            with m.If(wrong):
                m.d.comb += [
                    Assert(dut.error_decode == decode, "a wrong kind of error"),
                    Assert(dut.error_address == where, "an error at a wrong address"),
                ]

    def _skid(self, m: Module, name: str) -> Skid:
        """The addresses in a channel's skid buffer; `later` is the place behind them."""
        skid = Skid(self.internals, f"{name}_skid", getattr(self.dut, name))
        lengths = [beat.len + 1 for _, beat in skid.each()]
        self.inside = Signal(range(2 * SIZE.burst + 1))
        first = Mux(skid.valid, lengths[0], 0)
        m.d.comb += [
            self.inside.eq(first + Mux(skid.full, lengths[1], 0)),
            Assert(skid.valid | ~skid.full),
        ]
        place = self.place
        for valid, beat in skid.each():
            with m.If(valid):
                m.d.comb += [
                    Assert((beat.addr == place << SHIFT) & (beat.size == SHIFT)),
                    Assert((beat.len < SIZE.burst) & (beat.burst == Burst.INCR)),
                    Assert((place[:1] + beat.len + 1 == 2) | (place + beat.len + 1 == self.end)),
                    Assert(place + beat.len < self.end),
                ]
            place = place + lengths[0]
        m.d.comb += Assert(self.dut.error_address[:SHIFT] == 0)
        left, word = self.internals.signal("bursts.left"), self.internals.signal("bursts.word")
        m.d.comb += [
            Assert(self.place + self.owed == self.end),
            Assert((self.end <= END) & (self.total <= END)),
            Assert(left <= self.owed),
            Assert(Mux(self.stopped, left == 0, left == self.owed - self.inside)),
            Assert((left == 0) | (word == self.place + self.inside)),
        ]
        self.left = left
        return skid
