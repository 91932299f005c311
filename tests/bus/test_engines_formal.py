"""The engines between memory and streams: the rules of AXI and of streams; unbounded proof.

The slave stalls and answers as it likes, in order. Runs follow one another, of any base and number
of beats, and `stop` may come at any time. One arbitrary beat is followed.
"""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import (
    Assert,
    Assume,
    Cover,
    Elaboratable,
    Fragment,
    Module,
    Mux,
    Signal,
    Value,
)

from hw.bus import read_engine, write_engine
from hw.bus.axi import Burst
from hw.bus.bursts import EngineParameters
from hw.bus.read_engine import ReadEngine
from hw.bus.write_engine import WriteEngine
from sim.checks.formal.specs import Internals, drive, reset_first, watch
from tests.support.bus.formal import Skid
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

# A beat is a transfer; bursts of two transfers, two under way, four transfers stored.
SIZE = EngineParameters(32, 32, bus_address=13, burst=2, outstanding=2)
SHIFT = 2  # bits of an address within a transfer
END = 1 << SIZE.bus_address - SHIFT  # transfers of the whole memory
DEPTH = SIZE.depth


class EngineSpec(Elaboratable):
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


class ReadEngineSpec(EngineSpec):
    """See the module: reads; r is always ready, as all transfers requested have room."""

    def _bus(self, m: Module) -> None:
        dut, first, r = self.dut, self.first, self.dut.r
        watch(m, first, dut.ar)
        self._address(m, dut.ar)
        # Transfers that the slave owes, at `answered` the next one.
        self.open = Signal(range(DEPTH + 2))
        self.answered = Signal(range(END + 1))
        m.d.comb += [
            r.valid.eq(AnySeq(1)),
            Value.cast(r.payload).eq(AnySeq(len(Value.cast(r.payload)))),
            Assume(~r.valid | (self.open != 0), None),
            dut.o.ready.eq(AnySeq(1)),
        ]
        m.d.sync += self.open.eq(self.open + Mux(self.issue, self.length, 0) - r.valid)
        with m.If(dut.start):
            m.d.sync += self.answered.eq(dut.base >> SHIFT)
        with m.Elif(r.valid):
            m.d.sync += self.answered.eq(self.answered + 1)
        self._report(m, r, self.answered)
        self._follow(m)

    def _follow(self, m: Module) -> None:
        """An arbitrary transfer, from r to the stream."""
        dut, r, o = self.dut, self.dut.r, self.dut.o
        self.held = Signal(range(DEPTH + 2))  # transfers inside
        self.following, self.ahead = Signal(), Signal(range(DEPTH + 1))
        self.value = Signal(32)
        self.sent = Signal(range(END + 1))
        pop = o.valid & o.ready & ~self.first
        drop = dut.stop & (self.held != 0) & ~self.first
        out = Mux(dut.stop, drop, pop)
        m.d.sync += self.held.eq(self.held + (r.valid & ~self.first) - out)
        with m.If(r.valid & AnySeq(1) & ~self.following & ~self.first):
            m.d.sync += [
                *(self.following.eq(1), self.value.eq(r.payload.data)),
                self.ahead.eq(self.held - out),
            ]
        with m.Elif(self.following & out):
            m.d.sync += [self.ahead.eq(self.ahead - 1), self.following.eq(self.ahead != 0)]
            with m.If(self.ahead == 0):
                m.d.comb += Assert(dut.stop | (o.payload == self.value), "wrong data")
                m.d.sync += self.ahead.eq(0)
        with m.If(dut.start):
            m.d.sync += self.sent.eq(0)
        with m.Elif(pop):
            m.d.sync += self.sent.eq(self.sent + 1)
        stalled, offered = Signal(), Signal(32)
        m.d.sync += [stalled.eq(o.valid & ~o.ready & ~self.first), offered.eq(o.payload)]
        with m.If(stalled & ~dut.stop & ~self.first):
            m.d.comb += Assert(o.valid & (o.payload == offered), "a stalled beat changed")
        done = dut.idle & ~self.first
        m.d.comb += [
            Cover(done & (self.sent == 5), "a run of five beats"),
            Cover(done & self.stopped & (self.owed != 0), "a run that ends early"),
        ]

    def _rules(self, m: Module) -> None:
        dut = self.dut
        m.d.comb += [
            Assert(dut.r.ready, "a response is held up"),
            Assert(~dut.o.valid | (self.held != 0), "a beat from nowhere"),
            Assert(self.held + self.open <= DEPTH, "more requested than there is room"),
            Assert(dut.moved == self.sent, "beats are miscounted"),
        ]
        with m.If(dut.idle):
            m.d.comb += [
                Assert((self.open == 0) & ~dut.ar.valid, "idle with a burst under way"),
                Assert(self.stopped | (self.sent == self.total), "idle with beats to come"),
            ]

    def _invariant(self, m: Module) -> None:
        internals = self.internals
        self._skid(m, "ar")
        room, left = internals.signal("room"), internals.signal("left")
        level = internals.signal("queue.fifo.level")
        produce, consume = (internals.signal(f"queue.fifo.{n}") for n in ("produce", "consume"))
        at = Signal(range(DEPTH))
        stored = internals.row(m, "queue.fifo.storage", at)
        requested = self.open + self.inside
        m.d.comb += [
            at.eq(consume + self.ahead),
            Assert((level == self.held) & (level <= DEPTH)),
            Assert((consume + level)[:2] == produce),
            Assert(room + level + requested == DEPTH),
            Assert(self.answered + self.open == self.place),
            Assert(Mux(self.stopped, left == 0, left == level + requested + self.left)),
            Assert(self.stopped | (self.sent + left == self.total)),
        ]
        arriving = internals.signal("arriving")
        m.d.comb += Assert(arriving == self.answered[: len(arriving)])
        with m.If(self.following):
            m.d.comb += Assert((self.ahead < level) & (stored == self.value))
        with m.Else():
            m.d.comb += Assert(self.ahead == 0)


class WriteEngineSpec(EngineSpec):
    """See the module: writes; a burst's data follows its address, and WLAST ends it."""

    def _bus(self, m: Module) -> None:
        dut, first, b = self.dut, self.first, self.dut.b
        for port in (dut.aw, dut.w):
            watch(m, first, port)
        drive(m, first, dut.i)
        m.d.comb += dut.discard.eq(AnySeq(1))
        self._address(m, dut.aw)
        # Bursts whose address is on the bus and whose response is not, and whose data is complete.
        self.announced = Signal(range(SIZE.outstanding + 3))
        self.complete = Signal(range(SIZE.outstanding + 3))
        w = dut.w
        self.word = Signal(range(END + 1))  # place of the next transfer on w
        self.answered = Signal(range(END + 1))  # of the next burst's response
        move = w.valid & w.ready & ~first
        m.d.comb += [
            b.valid.eq(AnySeq(1)),
            Value.cast(b.payload).eq(AnySeq(len(Value.cast(b.payload)))),
            Assume(~b.valid | ((self.announced != 0) & (self.complete != 0)), None),
        ]
        m.d.sync += [
            self.announced.eq(self.announced + self.issue - b.valid),
            self.complete.eq(self.complete + (move & w.payload.last) - b.valid),
        ]
        with m.If(dut.start):
            m.d.sync += [self.word.eq(dut.base >> SHIFT), self.answered.eq(dut.base >> SHIFT)]
        with m.Else():
            with m.If(move):
                m.d.sync += self.word.eq(self.word + 1)
            with m.If(b.valid):
                m.d.sync += self.answered.eq(self.answered[1:] + 1 << 1)
        self._report(m, b, self.answered)
        self._follow(m, move)

    def _follow(self, m: Module, move) -> None:
        """An arbitrary beat of the run, from the stream to w."""
        dut, i, w = self.dut, self.dut.i, self.dut.w
        self.following, self.value = Signal(), Signal(32)
        self.accepted = Signal(range(END + 1))  # beats of the run
        of_run = (self.accepted != self.total) & ~self.stopped
        accept = i.valid & i.ready & of_run & ~self.first
        self.begin = Signal(range(END + 1))  # place of the run
        place = self.begin + self.accepted
        with m.If(dut.start):
            m.d.sync += [self.accepted.eq(0), self.begin.eq(dut.base >> SHIFT)]
            m.d.sync += self.following.eq(0)
        with m.Elif(accept):
            m.d.sync += self.accepted.eq(self.accepted + 1)
        self.where = Signal(range(END + 1))  # place of the followed beat
        with m.If(accept & AnySeq(1) & ~self.following):
            m.d.sync += [
                *(self.following.eq(1), self.value.eq(i.payload), self.where.eq(place)),
            ]
        with m.If(self.following & move & (self.word == self.where)):
            m.d.comb += Assert(w.payload.data == self.value, "wrong data")
            m.d.comb += Assert(w.payload.strb.all(), "a byte is not written")
            with m.If(~dut.start):
                m.d.sync += self.following.eq(0)
        moved = self.word - self.begin
        done = dut.idle & ~self.first
        m.d.comb += [
            Cover(done & ~self.stopped & (moved == 5), "a run of five beats"),
            Cover(done & self.stopped & (self.owed != 0) & (moved != 0), "a run that ends early"),
        ]
        self.of_run = of_run

    def _rules(self, m: Module) -> None:
        dut, w, i = self.dut, self.dut.w, self.dut.i
        last = self.word[:1].all() | (self.word + 1 == self.end)
        # So a stream that is late never holds up another master.
        m.d.comb += Assert(w.valid | (self.word >= self.place), "data that the bus must wait for")
        m.d.comb += Assert(self.announced <= SIZE.outstanding, "too many bursts under way")
        with m.If(w.valid):
            m.d.comb += [
                Assert(w.payload.last == last, "WLAST at the wrong transfer"),
                Assert(self.word < self.begin + self.accepted, "data from nowhere"),
            ]
        m.d.comb += [
            Assert(dut.b.ready, "a response is held up"),
            Assert(dut.moved == self.accepted, "beats are miscounted"),
            Assert(~(i.valid & i.ready) | self.of_run | dut.discard, "a beat of no run"),
        ]
        with m.If(dut.idle):
            quiet = (self.announced == 0) & (self.complete == 0) & ~dut.aw.valid & ~w.valid
            m.d.comb += [
                Assert(quiet & (self.word == self.place), "idle with a burst under way"),
                Assert(self.stopped | (self.word == self.end), "idle with beats to come"),
            ]

    def _invariant(self, m: Module) -> None:
        internals, dut = self.internals, self.dut
        aw, w = self._skid(m, "aw"), Skid(internals, "w_skid", dut.w)
        left, free, sending, under_way = (
            internals.signal(name) for name in ("left", "free", "sending", "under_way")
        )
        level = internals.signal("queue.fifo.level")
        produce, consume = (internals.signal(f"queue.fifo.{n}") for n in ("produce", "consume"))
        # Places up to which data have left the queue, and up to which addresses have been made.
        sent, addressed = Signal(range(END + 3)), Signal(range(END + 5))
        lasts = (w.valid & w.first.last) + (w.full & w.second.last)
        m.d.comb += [
            sent.eq(self.word + w.count),
            addressed.eq(self.place + self.inside),
            Assert(w.valid | ~w.full),
            Assert(Mux(self.stopped, left == 0, left == self.total - self.accepted)),
            Assert((self.begin + self.total == self.end) & (self.accepted <= self.total)),
            Assert((level == free + sending) & (level <= DEPTH) & (sending <= SIZE.burst)),
            Assert((consume + level)[:2] == produce),
            Assert(sent + sending == addressed),
            Assert(~addressed[0] | (addressed == self.end) | (addressed == self.begin)),
            Assert((sending != SIZE.burst) | ~sent[0]),
            Assert(self.word >= self.begin),
            Assert(sent + level <= self.begin + self.accepted),
            Assert(self.stopped | (sent + level == self.begin + self.accepted)),
            Assert((under_way == self.announced + aw.count) & (under_way <= SIZE.outstanding)),
            Assert(self.complete + lasts + (sending != 0) == under_way),
            Assert(internals.signal("answered") == self.answered[: SIZE.bus_address - SHIFT]),
        ]
        for n, (valid, word) in enumerate(w.each()):
            place = self.word + n
            last = place[:1].all() | (place + 1 == self.end)
            with m.If(valid):
                m.d.comb += Assert((word.last == last) & (place < self.end))
        self._place_followed(m, w, sent, addressed, level, consume)

    def _place_followed(self, m: Module, w: Skid, sent, addressed, level, consume) -> None:
        """The followed beat is in the queue or in front of the bus, unless `stop` dropped it."""
        at = Signal(range(DEPTH))
        word = Signal(36)
        stored = self.internals.row(m, "queue.fifo.storage", at)
        m.d.comb += at.eq(consume + (self.where - sent))
        with m.If(self.following):
            with m.If(self.where >= sent):
                m.d.comb += word.eq(stored)
                kept = self.where - sent < level
                m.d.comb += Assert(kept | (self.stopped & (self.where >= addressed)))
            with m.Else():
                second = self.where != self.word
                m.d.comb += word.eq(Mux(second, Value.cast(w.second), Value.cast(w.first)))
                m.d.comb += Assert(self.where >= self.word)
            with m.If((self.where < addressed) | ~self.stopped):
                m.d.comb += Assert((word[:32] == self.value) & word[32:36].all())
            m.d.comb += Assert(self.where < self.begin + self.accepted)


ENGINES = {"read": (ReadEngineSpec, ReadEngine), "write": (WriteEngineSpec, WriteEngine)}


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ENGINES)
def test_proof(engine):
    spec, dut = ENGINES[engine]
    prove_block(spec(dut(SIZE)), f"{engine}_engine", depth=2, seconds=600)


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ENGINES)
def test_cover(engine):
    spec, dut = ENGINES[engine]
    prove_block(spec(dut(SIZE), invariant=False), f"{engine}_engine", "cover", depth=16)


READ_FAULTS = {
    "room": ("(room >= bursts.length)", "(room != 0)", "more requested than there is room"),
    "freed": ("room + pop - Mux", "room + r.valid - Mux", "more requested than there is room"),
    "beats": ("bursts.beats.eq(self.beats)", "bursts.beats.eq(self.beats + 1)", "a wrong length"),
    "abandoned": ("& (room == p.depth) ", "", "idle with a burst under way"),
    "withdrawn": ('buffered(m, "ar", self.ar)', "self.ar", "withdrawn"),
    "order": ("queue.i.payload.eq(r.payload.data)", "queue.i.payload.eq(0)", "wrong data"),
    "error": ("self.error.eq(self.r.valid & resp[1])", "self.error.eq(0)", "an error is lost"),
    "where": ("arriving.eq(arriving + 1)", "arriving.eq(arriving)", "an error at a wrong address"),
}
WRITE_FAULTS = {
    "last": ("word.payload.last.eq(sending == 1)", "word.payload.last.eq(1)", "WLAST"),
    "early": ("(free >= bursts.length)", "(free != 0)", "data that the bus must wait for"),
    "many": ("& (under_way != p.outstanding)", "", "too many bursts"),
    "abandoned": ("Mux(sending != 0, word.ready, self.stop)", "word.ready | self.stop", "wait for"),
    "idle": ("& (under_way == 0) ", "", "idle with a burst under way"),
    "strobes": ("push.payload.strb.eq(~0)", "push.payload.strb.eq(7)", "a byte is not written"),
    "beyond": ("running & final & (push", "final & (push", "wrong data"),
    "where": (
        "answered.eq((answered[low:] + 1) << low)",
        "answered.eq(answered + 1)",
        "wrong addr",
    ),
}


@pytest.mark.campaign
@pytest.mark.parametrize("fault", READ_FAULTS)
def test_injected_fault_in_reads_is_found(fault):
    line, instead, found_by = READ_FAULTS[fault]
    dut = with_fault(read_engine, line, instead).ReadEngine(SIZE)
    find_fault(ReadEngineSpec(dut, invariant=False), f"read_{fault}", found_by, depth=14)


@pytest.mark.campaign
@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_injected_fault_in_writes_is_found(fault):
    line, instead, found_by = WRITE_FAULTS[fault]
    dut = with_fault(write_engine, line, instead).WriteEngine(SIZE)
    find_fault(WriteEngineSpec(dut, invariant=False), f"write_{fault}", found_by, depth=14)
