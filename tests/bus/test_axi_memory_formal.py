"""A memory port behind AXI4: the rules of AXI, one right response to each read; unbounded proof.

The slave answers in any order of IDs, interleaves, and stalls as it likes. One arbitrary read and
one arbitrary write are followed.
"""

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import (
    Array,
    Assert,
    Assume,
    Cat,
    Cover,
    Elaboratable,
    Fragment,
    Module,
    Mux,
    Signal,
    Value,
)
from amaranth.lib import data

from hw.bus import axi_memory
from hw.bus.axi_memory import AxiMemory, AxiMemoryParameters
from sim.checks.formal.specs import Internals, drive, reset_first, watch
from tests.support.bus.formal import Skid
from tests.support.formal import fault_test, prove_block

# Two transfers a row, two reads and two writes under way.
SIZE = AxiMemoryParameters(64, 2, 1, 2, 2, data=32, bus_address=16)
LOW = 3  # bits of an address within a row


class AxiMemorySpec(Elaboratable):
    """See the module; without `invariant` the assertions on registers are left out."""

    def __init__(self, dut, invariant: bool = True):
        self.dut, self.invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut = self.dut
        m.submodules.dut = fragment = Fragment.get(dut, None)
        self.first = first = reset_first(m)
        bus = dut.bus
        base = AnyConst(16)
        m.d.comb += [Assume(base[:LOW] == 0, None), dut.base.eq(base), dut.stop.eq(0)]
        drive(m, first, dut.request)
        for port in (bus.ar, bus.aw, bus.w, dut.response):
            watch(m, first, port)
        self.base = base
        self._reads(m)
        self._writes(m)
        self._follow_read(m)
        self._follow_write(m)
        if self.invariant:
            with m.If(~first):
                self._invariant(m, Internals(fragment))
        return m

    def _reads(self, m: Module) -> None:
        """The slave of ar and r, and the rules of an address."""
        ar, r = self.dut.bus.ar, self.dut.bus.r
        self.open = Signal(2)  # IDs with a read under way on the bus
        self.half = Signal(2)  # IDs with one of two transfers done
        m.d.comb += [
            r.valid.eq(AnySeq(1)),
            Value.cast(r.payload).eq(AnySeq(len(Value.cast(r.payload)))),
        ]
        for n in range(2):
            mine = r.valid & (r.payload.id == n)
            m.d.comb += Assume(~mine | (self.open[n] & (r.payload.last == self.half[n])), None)
            with m.If(ar.valid & ar.ready & (ar.payload.id == n)):
                m.d.sync += self.open[n].eq(1)
            with m.If(mine):
                m.d.sync += [self.half[n].eq(~self.half[n]), self.open[n].eq(~self.half[n])]
            with m.If(~self.first & ar.valid & (ar.payload.id == n)):
                m.d.comb += Assert(~self.open[n], "an ID is used again")
        with m.If(~self.first):
            m.d.comb += Assert(r.ready, "a response is held up")
            self._address(m, ar)
        # Reads accepted that have no response.
        request, response = self.dut.request, self.dut.response
        self.read = Signal()
        self.answer = Signal()
        self.held = Signal(3)
        m.d.comb += [
            self.read.eq(request.valid & request.ready & ~request.payload.write & ~self.first),
            self.answer.eq(response.valid & response.ready & ~self.first),
        ]
        m.d.sync += self.held.eq(self.held + self.read - self.answer)
        with m.If(~self.first):
            m.d.comb += [
                Assert(~response.valid | (self.held != 0), "a response from nowhere"),
                Assert(self.held <= 2, "more reads than slots"),
            ]
        m.d.comb += Cover(self.held == 2, "two reads under way")

    @staticmethod
    def _address(m: Module, channel) -> None:
        """A burst of a row, which no multiple of 4 KiB divides."""
        beat = channel.payload
        end = beat.addr[:12] + ((beat.len + 1) << 2)
        with m.If(channel.valid):
            m.d.comb += [
                Assert(end <= 4096, "a burst crosses 4 KiB"),
                Assert(beat.len == 1, "wrong length"),
            ]

    def _writes(self, m: Module) -> None:
        """The slave of aw, w and b; data ends with WLAST and is no more than was announced."""
        aw, w, b = self.dut.bus.aw, self.dut.bus.w, self.dut.bus.b
        self.announced = Signal(3)  # addresses without a response
        self.sent = Signal(3)  # bursts sent without a response
        self.part = Signal()  # transfers of the burst on w
        last = w.valid & w.ready & w.payload.last
        m.d.comb += [
            b.valid.eq(AnySeq(1)),
            Value.cast(b.payload).eq(AnySeq(len(Value.cast(b.payload)))),
            Assume(~b.valid | ((self.announced != 0) & (self.sent != 0)), None),
        ]
        m.d.sync += [
            self.announced.eq(self.announced + (aw.valid & aw.ready) - b.valid),
            self.sent.eq(self.sent + last - b.valid),
            self.part.eq(self.part ^ (w.valid & w.ready)),
        ]
        with m.If(~self.first):
            self._address(m, aw)
            with m.If(w.valid):
                m.d.comb += Assert(w.payload.last == self.part, "WLAST at the wrong transfer")
            m.d.comb += Assert(b.ready, "a response is held up")
        m.d.comb += Cover(self.sent == 2, "two writes sent")

    def _follow_read(self, m: Module) -> None:
        """An arbitrary read: its address, its data, its tag, and no write to its row before."""
        dut, ar, r = self.dut, self.dut.bus.ar, self.dut.bus.r
        request, response = dut.request.payload, dut.response.payload
        # Its place: in front of the bus, on the bus, complete, done.
        self.inside, self.asked, self.complete = Signal(), Signal(), Signal()
        self.row, self.tag, self.data = Signal(2), Signal(1), Signal(64)
        self.slot, self.ahead = Signal(), Signal(2)
        waiting = Signal(2)  # reads in front of the bus
        completed = Signal(2)  # complete rows without a response
        issue = ar.valid & ar.ready & ~self.first
        mine = self.asked & r.valid & (r.payload.id == self.slot)
        last = r.valid & r.payload.last & ~self.first
        self.followed = followed = Signal()
        m.d.sync += [
            waiting.eq(waiting + self.read - issue),
            completed.eq(completed + last - self.answer),
        ]
        self.waiting, self.completed = waiting, completed
        with m.If(self.read & AnySeq(1) & ~followed):
            m.d.sync += [
                *(followed.eq(1), self.inside.eq(1)),
                *(self.row.eq(request.address), self.tag.eq(request.tag)),
                self.ahead.eq(waiting - issue),
            ]
        with m.Elif(self.inside & issue):
            m.d.sync += self.ahead.eq(self.ahead - 1)
            with m.If(self.ahead == 0):
                where = (self.base + (self.row << LOW))[:16]
                m.d.comb += Assert(ar.payload.addr == where, "a wrong address")
                m.d.sync += [
                    *(self.inside.eq(0), self.asked.eq(1), self.slot.eq(ar.payload.id)),
                    self.ahead.eq(0),
                ]
        with m.Elif(mine):
            word = r.payload.data
            half = Array([self.half[0], self.half[1]])[self.slot]
            m.d.sync += self.data.eq(
                Mux(half, Cat(self.data[:32], word), Cat(word, self.data[32:]))
            )
            with m.If(r.payload.last):
                m.d.sync += [self.asked.eq(0), self.complete.eq(1)]
                m.d.sync += self.ahead.eq(completed - self.answer)
        with m.Elif(self.complete & self.answer):
            m.d.sync += self.ahead.eq(self.ahead - 1)
            with m.If(self.ahead == 0):
                m.d.comb += [
                    Assert(response.tag == self.tag, "a wrong tag"),
                    Assert(response.data == self.data, "a wrong row"),
                ]
                m.d.sync += [self.complete.eq(0), self.ahead.eq(0)]
        writes = dut.request.valid & dut.request.ready & request.write
        with m.If(~self.first & (self.inside | self.asked)):
            m.d.comb += Assert(~(writes & (request.address == self.row)), "a write overtakes")
        m.d.comb += Cover(followed & ~self.inside & ~self.asked & ~self.complete, "done")

    def _follow_write(self, m: Module) -> None:
        """An arbitrary write: no read of its row is accepted before its response."""
        request, b = self.dut.request, self.dut.bus.b
        self.under_way = Signal()
        self.written, self.before = Signal(2), Signal(2)
        stored = Signal(2)
        self.stored = stored
        accept = request.valid & request.ready & request.payload.write & ~self.first
        m.d.sync += stored.eq(stored + accept - b.valid)
        with m.If(accept & AnySeq(1) & ~self.under_way):
            m.d.sync += [
                *(self.under_way.eq(1), self.written.eq(request.payload.address)),
                self.before.eq(stored - b.valid),
            ]
        with m.Elif(self.under_way & b.valid):
            m.d.sync += self.before.eq(self.before - 1)
            with m.If(self.before == 0):
                m.d.sync += [self.under_way.eq(0), self.before.eq(0)]
        same = request.payload.address == self.written
        with m.If(~self.first & self.under_way & self.read):
            m.d.comb += Assert(~same, "a read overtakes")

    def _invariant(self, m: Module, internals: Internals) -> None:
        bus = self.dut.bus
        skids = {name: Skid(internals, f"{name}_skid", getattr(bus, name)) for name in CHANNELS}
        for skid in skids.values():
            m.d.comb += Assert(skid.valid | ~skid.full)
        for skid in (skids["ar"], skids["aw"]):
            for valid, beat in skid.each():
                with m.If(valid):
                    m.d.comb += Assert((beat.addr[:LOW] == 0) & (beat.len == 1))
        self._slots(m, internals, skids["ar"])
        self._followed(m, internals, skids["ar"])
        self._stores(m, internals, skids["aw"], skids["w"])

    def _slots(self, m: Module, internals: Internals, ar: Skid) -> None:
        """Each slot with a read is in front of the bus, on it, or in the queue of the complete."""
        busy, pending = internals.signal("busy"), internals.signal("pending")
        level = internals.signal("complete.fifo.level")
        take, put = (internals.signal(f"complete.fifo.{name}") for name in ("consume", "produce"))
        entries = [internals.row(m, "complete.fifo.storage", Value.cast(n)) for n in (0, 1)]
        complete = busy & ~pending
        self.head = Array(entries)[take]
        m.d.comb += [
            Assert((pending & ~busy) == 0),
            Assert(self.held == busy[0] + busy[1]),
            Assert(self.waiting == ar.count),
            Assert((level == complete[0] + complete[1]) & (self.completed == level)),
            Assert((take ^ level[0]) == put),
            Assert((level != 1) | complete.bit_select(self.head, 1)),
            Assert((level != 2) | (entries[0] != entries[1])),
        ]
        for n in range(2):
            inside = [valid & (beat.id == n) for valid, beat in ar.each()]
            count = internals.signal(f"count_{n}")
            m.d.comb += [
                Assert(pending[n] == inside[0] + inside[1] + self.open[n]),
                Assert((count == self.half[n]) & (self.open[n] | ~self.half[n])),
            ]

    def _followed(self, m: Module, internals: Internals, ar: Skid) -> None:
        """The followed read is in one of its three places, and its slot knows it."""
        rows = Array([internals.signal(f"row_{n}") for n in range(2)])
        where = (self.base + (self.row << LOW))[:16]
        slot = Signal()
        tag = internals.row(m, "tags", slot)
        stored = Value.cast(internals.row(m, "row_store", slot))
        complete = internals.signal("busy") & ~internals.signal("pending")
        m.d.comb += slot.eq(self.slot)
        m.d.comb += Assert(self.inside + self.asked + self.complete <= self.followed)
        with m.If(self.inside):
            beat = Mux(self.ahead == 0, Value.cast(ar.first), Value.cast(ar.second))
            beat = data.View(ar.layout, beat)
            m.d.comb += [
                slot.eq(beat.id),
                Assert((self.ahead < self.waiting) & (beat.addr == where)),
                Assert((rows[slot] == self.row) & (tag == self.tag)),
            ]
        with m.If(self.asked):
            half = self.half.bit_select(slot, 1)
            m.d.comb += [
                Assert(self.open.bit_select(slot, 1) & (rows[slot] == self.row)),
                Assert((tag == self.tag) & (~half | (stored[:32] == self.data[:32]))),
            ]
        with m.If(self.complete):
            m.d.comb += [
                Assert((tag == self.tag) & (stored == self.data)),
                Assert(complete.bit_select(slot, 1) & (self.ahead < self.completed)),
                Assert((self.ahead == 0) == (self.head == slot)),
            ]

    def _stores(self, m: Module, internals: Internals, aw: Skid, w: Skid) -> None:
        """Writes from the oldest without a response to the newest, sent behind their addresses."""
        newest, addressed, sent, oldest = (
            internals.signal(name) for name in ("newest", "addressed", "sent", "oldest")
        )
        writing = internals.signal("writing")
        kept, told, done = (Signal(2, name=f"{name}_places") for name in ("kept", "told", "done"))
        inside = (w.valid & w.first.last) + (w.full & w.second.last)
        part = internals.signal("transfer")
        m.d.comb += [
            *(kept.eq(newest - oldest), told.eq(addressed - oldest), done.eq(sent - oldest)),
            Assert((kept <= 2) & (told <= kept) & (done <= told) & (kept == self.stored)),
            Assert(writing == Array([0, Mux(oldest[0], 2, 1), 3, 0])[kept]),
            Assert(told == aw.count + self.announced),
            Assert(done == inside + self.sent),
            Assert(part == self.part ^ (w.count[0])),
            Assert(~w.valid | (w.first.last == self.part)),
            Assert(~w.full | (w.second.last == ~self.part)),
            Assert((part == 0) | (done < told)),
        ]
        place = Signal()
        numbers = Array([internals.signal(f"written_{n}") for n in range(2)])
        m.d.comb += place.eq(oldest + self.before)
        with m.If(self.under_way):
            m.d.comb += Assert((self.before < kept) & (numbers[place] == self.written))


CHANNELS = ("ar", "aw", "w")


def test_proof():
    prove_block(AxiMemorySpec(AxiMemory(SIZE)), "axi_memory", depth=2, seconds=600)


def test_cover():
    prove_block(AxiMemorySpec(AxiMemory(SIZE), invariant=False), "axi_memory", "cover", depth=10)


FAULTS = {
    "overtaken_write": (
        "free.eq(~taken & ~behind_write)",
        "free.eq(~taken)",
        "a read overtakes",
    ),
    "overtaken_read": ("& ~behind_read),", "),", "a write overtakes"),
    "used_id": ("free.eq(~taken & ~behind_write)", "free.eq(~behind_write)", "used again"),
    "last": (
        "word.payload.last.eq(part == p.transfers - 1)",
        "word.payload.last.eq(1)",
        "WLAST",
    ),
}


test_injected_fault_is_found = fault_test(
    axi_memory, FAULTS, lambda m: AxiMemorySpec(m.AxiMemory(SIZE), invariant=False), depth=9
)
