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
    Module,
    Mux,
    Signal,
    Value,
)

from hw.bus import read_engine, write_engine
from hw.bus.read_engine import ReadEngine
from hw.bus.write_engine import WriteEngine
from sim.checks.formal.specs import drive, watch
from tests.support.bus.engine_spec import DEPTH, END, SHIFT, SIZE, EngineSpec
from tests.support.bus.formal import Skid
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block


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
# Where two rules are broken in the same cycle, the solver names either.
WRITE_FAULTS = {
    "last": ("word.payload.last.eq(sending == 1)", "word.payload.last.eq(1)", "WLAST"),
    "early": ("(free >= bursts.length)", "(free != 0)", "data that the bus must wait for"),
    "many": ("& (under_way != p.outstanding)", "", "too many bursts"),
    "abandoned": (
        "Mux(sending != 0, word.ready, self.stop)",
        "word.ready | self.stop",
        "wait for|wrong data",
    ),
    "idle": ("& (under_way == 0) ", "", "idle with a burst under way"),
    "strobes": ("push.payload.strb.eq(~0)", "push.payload.strb.eq(7)", "a byte is not written"),
    "beyond": ("running & final & (push", "final & (push", "wrong data|miscounted"),
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
