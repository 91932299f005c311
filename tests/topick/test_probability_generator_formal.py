"""The probability generator: rules of streams, and one arbitrary entry; unbounded proof."""

import dataclasses

import numpy as np
import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import (
    Array,
    Assert,
    Assume,
    Const,
    Cover,
    Elaboratable,
    Module,
    Mux,
    Signal,
    Value,
)

from golden.topick.probability_generator import probability
from hw.topick import probability_generator
from hw.topick.probability_generator import ProbabilityGenerator, ProbabilityGeneratorParameters
from sim.checks.formal.specs import Internals, surround
from tests.support.formal import fault_test, prove_block

SIZE = ProbabilityGeneratorParameters(4, 1, bits=3, chunk_bits=1, d=1, rows=3, probability_bits=2)
ALL = dataclasses.replace(SIZE, skip=False)
ALONE = dataclasses.replace(SIZE, waits=False)


class EntrySpec(Elaboratable):
    """One arbitrary entry among any others, in any heads, of which starts may come first.

    A head has as many entries as its start says, the oldest ones that no head before it has. The
    followed entry has a row that no other one has while it is there; rows do not decide anything,
    so it stands for all entries. It is requested `chunks` times, with the model's p, while its
    head runs, or never, if p is 0. Each head ends once, after all its requests and responses, and
    it does end: without stalls within a number of cycles after the last transfer. `level` rises
    with an entry, falls by 1 at a time, and counts the entries without a head whenever none runs.

    Attributes
    ----------
    row, t : Signal
        The followed entry's.
    followed, ahead : Signal
        It is there; entries without a head before it, negative if it has a head.
    free : Signal
        Entries stored that have no head; negative: the running head's that are not yet stored.
    running, log2, pending, times, silent : Signal
        A head runs; its denominator; responses to come; requests of the followed entry;
        cycles without anything to wait for.
    """

    def __init__(self, dut: ProbabilityGenerator, inductive: bool = True):
        self.dut, self._inductive = dut, inductive
        p = dut.parameters
        self.row, self.t = Signal(p.row_bits), Signal(p.logarithm)
        self.followed, self.running = Signal(), Signal()
        self.ahead = Signal(range(-p.rows - 1, p.rows + 1))
        self.free = Signal(range(-p.rows - 1, p.rows + 2))
        self.log2 = Signal(p.logarithm)
        self.pending = Signal(range(p.rows * p.chunks + 2))
        self.times = Signal(range(p.chunks + 2))
        self.silent = Signal(range(p.rows + 6))
        self.bound = p.rows + 3
        self.p = Signal(p.probability_bits)  # by the model

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        first, internals = surround(m, dut)
        live = ~first
        names = ("kept", "start", "request", "response", "value")
        moves = {name: Signal(name=f"{name}_moves") for name in names}
        for name, move in moves.items():
            port = getattr(dut, name)
            m.d.comb += move.eq(port.valid & port.ready & live)
        m.d.comb += [
            self.row.eq(AnyConst(p.row_bits)),
            Assume(~dut.start.valid | (dut.start.payload.count <= p.rows)),
        ]
        if not p.waits:
            m.d.comb += [
                Assume(~dut.kept.valid | (dut.level != p.rows)),
                Assume(~dut.start.valid | (dut.start.payload.count <= self.free)),
            ]
        self._entry(m, moves)
        self._model(m)
        with m.If(live):
            self._check(m, moves)
            if self._inductive:
                self._tie(m, internals)
        return m

    def _entry(self, m, moves):
        """What the transfers mean for heads and for the followed entry."""
        dut, p = self.dut, self.dut.parameters
        kept, start = dut.kept.payload, dut.start.payload
        claims = Signal(range(p.rows + 1))
        ends = moves["value"] & dut.value.payload.last
        with m.If(moves["start"]):
            m.d.comb += claims.eq(start.count)
            m.d.sync += [self.running.eq(1), self.log2.eq(start.log2)]
        with m.If(ends):
            m.d.sync += self.running.eq(0)
        m.d.sync += [
            self.free.eq(self.free + moves["kept"] - claims),
            self.pending.eq(self.pending + moves["request"] - moves["response"]),
        ]
        # One entry of its row at a time.
        m.d.comb += Assume(~(self.followed & dut.kept.valid & (kept.row == self.row)))
        with m.If(moves["kept"] & (kept.row == self.row)):
            m.d.sync += [
                self.followed.eq(1),
                self.t.eq(kept.t),
                self.ahead.eq(self.free - claims),
                self.times.eq(0),
            ]
        with m.Elif(self.followed):
            with m.If(self.ahead >= 0):
                m.d.sync += self.ahead.eq(self.ahead - claims)
            with m.If(moves["request"] & (dut.request.payload.row == self.row)):
                m.d.sync += self.times.eq(self.times + 1)
            with m.If(ends & (self.ahead < 0)):
                m.d.sync += self.followed.eq(0)

    def _model(self, m):
        p = self.dut.parameters
        minus = Signal(range(-(1 << p.width), 1 << p.width))
        m.d.comb += minus.eq(self.log2 - self.t)
        with m.Switch(minus):
            for number in range(-(1 << p.width) + 1, 1 << p.width):
                value = probability(
                    -np.array(number), 0, fraction=p.fraction, places=p.probability_bits
                )
                with m.Case(number):
                    m.d.comb += self.p.eq(int(value))

    def _check(self, m, moves):
        dut, p = self.dut, self.dut.parameters
        request, response, value = dut.request, dut.response, dut.value
        skipped = (self.p == 0) & p.skip
        mine = self.followed & (self.ahead < 0)  # of the running head
        end = value.valid & value.payload.last
        with m.If(request.valid):
            m.d.comb += Assert(self.running, "a request without a head")
        with m.If(request.valid & (request.payload.row == self.row)):
            m.d.comb += [
                Assert(mine, "a request of another head's entry"),
                Assert(~skipped, "a request for a probability of 0"),
                Assert(request.payload.p == self.p, "wrong probability"),
                Assert(self.times < p.chunks, "requested too often"),
                Assert(request.payload.chunk == self.times, "wrong chunk"),
            ]
        m.d.comb += Assert(dut.start.ready == ~self.running, "a start between an end and its head")
        with m.If(end):
            m.d.comb += [
                Assert(self.running, "an end without a head"),
                Assert((self.pending == 0) & ~request.valid, "an end before a response"),
                Assert(self.free >= 0, "an end before an entry"),
                Assert(Value.cast(value.payload) == 1 << len(Value.cast(value.payload)) - 1),
                Assert(~mine | (self.times == p.chunks) | skipped, "an entry is left out"),
            ]
        with m.Else():
            waits = response.valid & (self.pending != 0)
            m.d.comb += Assert(value.valid == waits, "a response is made up or held back")
            for name in ("p", "chunk", "data"):
                same = getattr(value.payload, name) == getattr(response.payload, name)
                m.d.comb += Assert(~value.valid | same, "a response changes")
        passes = moves["value"] & ~value.payload.last
        m.d.comb += Assert(moves["response"] == passes, "a response is lost or doubled")
        self._check_level(m, moves)

        # Progress: nothing moves though nothing outside is waited for.
        waits = (self.free < 0) | (self.pending != 0) | request.valid | value.valid
        with m.If(self.running & ~waits):
            m.d.sync += self.silent.eq(self.silent + 1)
        with m.Else():
            m.d.sync += self.silent.eq(0)
        m.d.comb += Assert(self.silent <= self.bound, "stuck")

        m.d.comb += [
            Cover(end & mine & skipped & (self.free == 2), "a head that skips, others stored"),
            Cover(end & mine & ~skipped & (self.p == 1), "a head with the smallest p"),
            Cover(mine & (self.times == 0) & (self.free < 0), "a start before its entries"),
            Cover((self.ahead == 1) & self.followed & (dut.level == p.rows), "full, next heads"),
        ]

    def _check_level(self, m, moves):
        dut, p = self.dut, self.dut.parameters
        level = dut.level
        before = Signal(range(p.rows + 2))  # what level would be without reading
        ran, second = Signal(), Signal()
        m.d.sync += [before.eq(level + moves["kept"]), ran.eq(self.running), second.eq(1)]
        m.d.comb += [
            Assert(level <= p.rows, "level out of range"),
            Assert(
                dut.kept.ready == ((level != p.rows) | ~Const(p.waits, 1)),
                "refused with room, or no room",
            ),
            Assert((level >= self.free) & (self.running | (level == self.free)), "wrong level"),
        ]
        with m.If(second):
            falls = ran & (level + 1 == before)
            m.d.comb += Assert((level == before) | falls, "level falls without a head")

    def _tie(self, m, internals):
        """Registers in the terms of the specification."""
        dut, p = self.dut, self.dut.parameters
        left = internals.signal("left")
        valid = {name: internals.signal(f"{name}_valid") for name in ("entry", "minus", "power")}
        valid["p"] = dut.request.valid
        level = dut.level
        read, write = (port._addr for port in _ports(internals))
        entry = Signal(p.kept_layout)
        m.d.comb += entry.as_value().eq(_ports(internals)[0]._data)
        held = sum(valid[name] for name in ("entry", "minus", "power"))
        owed = p.chunks * (left + held)
        with m.If(dut.request.valid):
            m.d.comb += Assert(dut.request.payload.chunk < p.chunks)
        end_of_ring = Signal(range(2 * p.rows))
        m.d.comb += [
            end_of_ring.eq(read + level),
            Assert(read < p.rows),
            Assert(write < p.rows),
            Assert(end_of_ring == write + p.rows * (end_of_ring >= p.rows)),
            Assert(level == self.free + left),
            Assert((self.free >= 0) | Const(p.waits, 1)),
            Assert(internals.signal("busy") == self.running),
            Assert(internals.signal("log2") == self.log2),
            Assert(internals.signal("pending") == self.pending),
            Assert(self.running | ((left == 0) & ~sum(valid.values()).any())),
            Assert(self.running | (self.pending == 0)),
        ]
        chunks_left = Signal(range(p.chunks + 1))
        with m.If(dut.request.valid):
            m.d.comb += chunks_left.eq(p.chunks - dut.request.payload.chunk)
        m.d.comb += Assert(owed + chunks_left + self.pending <= p.rows * p.chunks)
        # Cycles until something happens.
        to_come = Signal(range(p.rows + 4))
        with m.If(left != 0):
            m.d.comb += to_come.eq(left + 3)
        with m.Elif(valid["entry"]):
            m.d.comb += to_come.eq(3)
        with m.Elif(valid["minus"]):
            m.d.comb += to_come.eq(2)
        with m.Elif(valid["power"]):
            m.d.comb += to_come.eq(1)
        m.d.comb += Assert(self.silent + to_come <= self.bound)

        # Where the followed entry is: in the ring, in one stage, or gone.
        place = Signal(range(-2 * p.rows, 2 * p.rows))
        m.d.comb += place.eq(self.ahead + left)
        in_ring = Signal()
        m.d.comb += in_ring.eq(self.followed & (place >= 0))
        m.d.comb += Assert(~in_ring | (place < level))
        for number in range(p.rows):
            at = Signal(range(2 * p.rows), name=f"at_{number}")
            here = Signal(p.kept_layout, name=f"ring_{number}")
            m.d.comb += [
                at.eq(read + number - p.rows * (read + number >= p.rows)),
                here.as_value().eq(internals.row(m, "entries", at)),
            ]
            with m.If(number < level):
                m.d.comb += Assert((here.row == self.row) == (in_ring & (place == number)))
            with m.If(in_ring & (place == number)):
                m.d.comb += Assert(here.t == self.t)
        rows = {
            "entry": entry.row,
            "minus": internals.signal("minus_row"),
            "power": internals.signal("power_row"),
            "p": dut.request.payload.row,
        }
        there = {name: valid[name] & (row == self.row) for name, row in rows.items()}
        passed = self.followed & (place < 0)
        done = passed & ~sum(there.values()).any()
        skipped = (self.p == 0) & p.skip
        m.d.comb += [
            Assert(sum(there.values()) <= passed),
            Assert(~self.followed | (self.ahead >= Mux(self.running, -p.rows, 0))),
            Assert(~in_ring | (self.times == 0)),
            Assert(~(there["entry"] | there["minus"] | there["power"]) | (self.times == 0)),
            Assert(~there["entry"] | (entry.t == self.t)),
            Assert(~there["minus"] | (internals.signal("minus") == self.log2 - self.t)),
            Assert(~there["power"] | (internals.signal("found") == self.p)),
            Assert(~there["p"] | (dut.request.payload.p == self.p)),
            Assert(~there["p"] | (self.times == dut.request.payload.chunk)),
            Assert(~there["p"] | ~skipped),
            Assert(~done | (self.times == Array([p.chunks, 0])[skipped])),
        ]


def _ports(internals: Internals):
    memory = internals._fragment.find_subfragment("entries")
    return memory._read_ports[0], memory._write_ports[0]


@pytest.mark.parametrize("size", [SIZE, ALL, ALONE], ids=["skip", "all", "alone"])
def test_proof(size):
    prove_block(EntrySpec(ProbabilityGenerator(size)), "probability_generator", depth=2)


def test_cover():
    spec = EntrySpec(ProbabilityGenerator(SIZE), inductive=False)
    prove_block(spec, "probability_generator", "cover", depth=16)


FAULTS = {
    "reads_too_early": ("(self.level != 0) if", "1 if", "level|another head"),
    "starts_twice": ("self.start.ready.eq(~busy)", "self.start.ready.eq(1)", "a start between"),
    "ends_early": ("& idle & (pending == 0)", "& idle", "an end before a response"),
    "ends_before_requests": ("& idle & (pending == 0)", "& (pending == 0)", "left out"),
    "never_ends": ("end.eq(busy & (left == 0)", "end.eq(busy & (left == 1)", "an end before|stuck"),
    "takes_any_response": ("value.ready & (pending != 0)", "value.ready", "lost or doubled"),
    "never_skips": ("(found == 0) & p.skip", "0", "probability of 0"),
    "skips_more": ("(found == 0) & p.skip", "found <= 1", "left out"),
    "leaves_a_chunk": (
        "request.chunk == p.chunks - 1",
        "request.chunk == p.chunks - 2",
        "left out",
    ),
    "rounds_down": ("(half >> 1) + half[0]", "half >> 1", "wrong probability"),
    "above_one": ("most | rounded[-1]", "rounded[-1]", "wrong probability"),
    "loses_an_entry": ('~valid["minus"] | free["power"]', "1", "left out"),
    "counts_wrong": ("self.level + storing - reading", "self.level + storing", "level"),
    "wraps_wrong": ("port.addr == p.rows - 1", "port.addr == p.rows - 2", "another head"),
}


test_injected_fault_is_found = fault_test(
    probability_generator,
    FAULTS,
    lambda m: EntrySpec(m.ProbabilityGenerator(SIZE), inductive=False),
    depth=14,
)
