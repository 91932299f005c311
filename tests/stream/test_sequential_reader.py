"""The sequential reader: unbounded proof, and runs with memories of every kind."""

import dataclasses
import itertools
from unittest import mock

import numpy as np
import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Array, Assert, Assume, Cover, Elaboratable, Module, Mux, Signal

from golden.stream.sequential_reader import addresses, timeline
from hw.catalogue import find
from hw.stream import reorder_buffer, sequential_reader
from hw.stream.sequential_reader import SequentialReader, SequentialReaderParameters
from sim.checks.formal.specs import surround
from sim.core.design import generate
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stalls import PATTERNS
from sim.core.stimulus import compare
from sim.drivers.harness.runner import Harness
from sim.testbenches.stream.beats import beats
from sim.testbenches.stream.sequential_reader import build, testbench
from tests.support.formal import fault_test, prove_block

BLOCK = find("stream.sequential_reader")
SMALL = SequentialReaderParameters(address_width=3, data_width=2, depth=4, longest=3)


class ReaderSpec(Elaboratable):
    """The reader's requests and output words, for any commands, stalls and responses.

    The memory may answer any outstanding request in any cycle, with any data. One arbitrary request
    is followed: its word is output in order, once, with its `last`. A request is valid whenever
    words are left and a slot is free, and a word is at the output two cycles after it and all words
    before it have arrived.

    Attributes
    ----------
    left, address : Signal
        Number and address of the words still to request.
    requested, emptied : Signal
        Slot pointers of the next request and the next word to read, with a wrap bit each.
    waits, filled : Signal
        For each slot, whether it waits for a response, and whether it is filled.
    following, answered, slot, value, last, ahead : Signal
        The followed request, while it is inside.
    """

    def __init__(self, dut, invariant=True):
        self.dut, self._invariant = dut, invariant
        p = dut.parameters
        self.left, self.address = Signal(range(p.longest + 1)), Signal(p.address_width)
        self.inside = Signal(range(p.depth + 3))
        self.requested = Signal(range(2 * p.depth))
        self.waits, self.filled = Signal(p.depth), Signal(p.depth)
        self.following, self.answered, self.done = Signal(), Signal(), Signal()
        self.slot, self.value = Signal(range(p.depth)), Signal(p.data_width)
        self.last, self.ahead = Signal(), Signal(range(p.depth + 3))

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        first, internals = surround(m, dut)
        live = ~first
        tag = dut.response.payload.tag
        commanded, ask, answer, give = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            commanded.eq(dut.command.valid & dut.command.ready & live),
            ask.eq(dut.request.valid & dut.request.ready & live),
            answer.eq(dut.response.valid & dut.response.ready & live),
            give.eq(dut.o.valid & dut.o.ready & live),
            # A memory answers every request once.
            Assume(~dut.response.valid | Array(self.waits)[tag] | first),
        ]
        self._requests(m, commanded, ask, live)

        # Words that have left their slots are at the output, one at most.
        slots_used = Signal(range(p.depth + 3))
        oldest = Signal(range(p.depth))
        m.d.comb += [
            slots_used.eq(self.inside - dut.o.valid),
            oldest.eq(self.requested - slots_used),
        ]
        m.d.sync += [
            self.inside.eq(self.inside + ask - give),
            self.requested.eq(self.requested + ask),
        ]
        for slot in range(p.depth):
            with m.If(ask & (dut.request.payload.tag == slot)):
                m.d.sync += [self.waits[slot].eq(1), self.filled[slot].eq(0)]
            with m.Elif(answer & (tag == slot)):
                m.d.sync += [self.waits[slot].eq(0), self.filled[slot].eq(1)]
        ready = Signal()  # the oldest word not at the output yet is in its slot
        stuck = Signal()
        m.d.comb += ready.eq((slots_used != 0) & Array(self.filled)[oldest])
        m.d.sync += stuck.eq(ready & (~dut.o.valid | dut.o.ready) & live)
        must_ask = (self.left != 0) & (slots_used != p.depth)
        tag_is_next = dut.request.payload.tag == self.requested[:-1]
        with m.If(live):
            m.d.comb += [
                Assert(dut.response.ready, "refused an answer"),
                Assert(self.inside <= p.depth + 1, "too many words inside"),
                Assert(dut.request.valid == must_ask, "asks when it must"),
                Assert(tag_is_next | ~dut.request.valid, "wrong tag"),
                Assert(~dut.o.valid | (self.inside != 0), "a word from nowhere"),
                Assert(~stuck | dut.o.valid, "a word is stuck"),
            ]
            if self._invariant:
                self._invariants(m, internals, slots_used)
        self._follow(m, ask, answer, give)
        m.d.comb += [
            Cover(self.done & (self.inside == 0) & self.last, "followed to the end"),
            Cover(live & (slots_used == p.depth), "all slots used"),
            Cover(live & answer & (tag != oldest) & (slots_used == p.depth), "out of order"),
            Cover(live & commanded & ask, "back to back"),
        ]
        return m

    def _requests(self, m, commanded, ask, live):
        """Addresses and number of the requests follow the commands."""
        dut = self.dut
        with m.If(ask):
            m.d.sync += [self.left.eq(self.left - 1), self.address.eq(self.address + 1)]
        with m.If(commanded):
            m.d.sync += [
                self.left.eq(dut.command.payload.words),
                self.address.eq(dut.command.payload.address),
            ]
        is_next = dut.request.payload.address == self.address
        free = (self.left == 0) | ((self.left == 1) & ask)
        with m.If(live):
            m.d.comb += [
                Assert(dut.command.ready == free, "a command is taken when none is left"),
                Assert(is_next | ~dut.request.valid, "wrong address"),
            ]

    def _follow(self, m, ask, answer, give):
        dut = self.dut
        with m.If(ask & AnySeq(1) & ~self.following & ~self.done):
            m.d.sync += [
                self.following.eq(1),
                self.answered.eq(0),
                self.slot.eq(dut.request.payload.tag),
                self.last.eq(self.left == 1),
                self.ahead.eq(self.inside - give),
            ]
        with m.If(self.following & answer & (dut.response.payload.tag == self.slot)):
            with m.If(~self.answered):
                m.d.sync += [self.answered.eq(1), self.value.eq(dut.response.payload.data)]
        with m.If(self.following & give):
            m.d.sync += self.ahead.eq(self.ahead - 1)
            with m.If(self.ahead == 0):
                m.d.comb += [
                    Assert(self.answered, "passed on before it was answered"),
                    Assert(dut.o.payload.data == self.value, "wrong data or order"),
                    Assert(dut.o.payload.last == self.last, "wrong last"),
                ]
                m.d.sync += [self.following.eq(0), self.done.eq(1)]

    def _invariants(self, m, internals, slots_used):
        """Relation of the reader's registers and memories to the signals of the specification."""
        dut, depth = self.dut, self.dut.parameters.depth
        requested, emptied = (
            internals.signal("reorder.requested"),
            internals.signal("reorder.emptied"),
        )
        filled = internals.signal("reorder.filled")
        m.d.comb += [
            Assert(internals.signal("left") == self.left),
            Assert((self.left == 0) | (internals.signal("address") == self.address)),
            Assert(requested == self.requested),
            Assert((requested - emptied)[: len(requested)] == slots_used),
            Assert(slots_used <= depth),
        ]
        for slot in range(depth):
            # A slot's distance from the oldest one says whether it is used, and in which pass.
            place = Signal(range(depth), name=f"place_{slot}")
            at = Signal(range(2 * depth), name=f"at_{slot}")
            used = place < slots_used
            m.d.comb += [place.eq(slot - emptied), at.eq(emptied + place)]
            holds = filled[slot] ^ at[-1]
            m.d.comb += [
                Assert(self.waits[slot] == (used & ~holds)),
                Assert(~used | (self.filled[slot] == holds)),
                Assert(used | ~holds),
            ]
        row = internals.row(m, "reorder.slots", self.slot)
        final = internals.row(m, "reorder.finals", self.slot)
        at_output = (self.ahead == 0) & dut.o.valid
        place = emptied + self.ahead - dut.o.valid
        with m.If(self.following):
            m.d.comb += [
                Assert(self.ahead < self.inside),
                Assert(
                    at_output
                    | (self.slot == (emptied + self.ahead - dut.o.valid)[: len(self.slot)])
                ),
                Assert(self.answered == Mux(at_output, 1, Array(self.filled)[self.slot])),
                Assert(~at_output | (dut.o.payload.data == self.value)),
                Assert(Mux(at_output, dut.o.payload.last, final) == self.last),
            ]
            with m.If(self.answered & ~at_output):
                m.d.comb += Assert(row == self.value)


def test_proof():
    prove_block(ReaderSpec(SequentialReader(SMALL)), "reader", depth=2)


def test_cover():
    prove_block(ReaderSpec(SequentialReader(SMALL)), "reader", "cover", depth=16)


FAULTS = {
    "ends_late": ("~left.any() | (final & issue)", "~left.any()", "a command is taken when none"),
    "does_not_count": ("address.eq(address + 1)", "address.eq(address)", "wrong address"),
}


test_injected_fault_is_found = fault_test(
    sequential_reader,
    FAULTS,
    lambda m: ReaderSpec(
        m.SequentialReader(m.SequentialReaderParameters(**dataclasses.asdict(SMALL))),
        invariant=False,
    ),
    suite=[],
    depth=16,
)


SLOT_FAULTS = {
    "asks_without_a_slot": ("self.i.valid & ~full", "self.i.valid", "asks when it must"),
    "wrong_tag": ("tag.eq(requested[:-1])", "tag.eq(emptied[:-1])", "wrong tag"),
    "wrong_last": (
        "write_final.data.eq(self.i.payload.last)",
        "write_final.data.eq(~self.i.payload.last)",
        "wrong last",
    ),
    "passes_on_early": (
        "(filled & turn).any() ^ reading[-1]",
        "requested != reading",
        "passed on before",
    ),
    "loses_in_a_stall": (
        "take.eq(present & (~o.valid | o.ready))",
        "take.eq(present)",
        "a stalled",
    ),
    "wrong_slot": (
        "write.addr.eq(response.payload.tag)",
        "write.addr.eq(0)",
        "wrong data or order",
    ),
    "forgets": ("filled.eq(filled ^ arrived)", "filled.eq(filled & arrived)", "a word is stuck"),
}


def _with_slots(faulty) -> ReaderSpec:
    """A reader with the reorder buffer of another module."""

    class Reader(SequentialReader):
        def elaborate(self, platform):
            with mock.patch.object(sequential_reader, "ReorderBuffer", faulty.ReorderBuffer):
                return super().elaborate(platform)

    return ReaderSpec(Reader(SMALL), invariant=False)


test_injected_fault_in_the_slots_is_found = fault_test(
    reorder_buffer, SLOT_FAULTS, _with_slots, suite=["asks_without_a_slot"], depth=16
)


TIMINGS = {
    "varying": MemoryTiming((5, 60), seed=3),
    "reordered": MemoryTiming((5, 60), reorder=True, seed=4),
    "narrow": MemoryTiming((1, 3), interval=4, seed=5),
    "narrow, reordered": MemoryTiming((2, 100), interval=3, reorder=True, seed=6),
}
PARAMETERS = [
    SequentialReaderParameters.preset("small"),
    SequentialReaderParameters(address_width=9, data_width=70, depth=16, longest=100),
    pytest.param(SequentialReaderParameters.preset("large"), marks=pytest.mark.campaign),
]


@pytest.fixture(scope="module", params=PARAMETERS, ids=lambda p: p.slug())
def reader(request):
    design = generate(BLOCK, request.param)
    return request.param, design, Harness(design)


def run(reader, stimulus, stall="none", timing=FASTEST):
    _, design, harness = reader
    harness.reset()
    outcome = harness.run(stimulus, PATTERNS[stall], 1, timing)
    assert outcome.failure is None
    assert compare(stimulus, outcome.outputs, design.outputs, outcome.cycles_of) == []
    return outcome


@pytest.mark.parametrize("timing", TIMINGS)
def test_any_memory(reader, shipped_trace, timing):
    """Words come in order from a memory that answers in any, with at most `depth` outstanding."""
    p = reader[0]
    for trace, stall in itertools.product((None, shipped_trace), PATTERNS):
        stimulus = testbench.stimulus(p, trace, 60, seed=9)
        outcome = run(reader, stimulus, stall, TIMINGS[timing])
        use = outcome.memories["memory"]
        assert use.rows_read == len(stimulus.outputs["o"]) > 300
        if TIMINGS[timing].reorder:
            assert (np.diff(use.offered) < 0).any()
        # Of any depth + 1 requests, the first is answered before the last is made.
        assert (use.offered[: -p.depth] < use.accepted[p.depth :]).all()


@pytest.mark.parametrize("latency", [1, 2, 3, 6, 14, 62, 90])
def test_rate_and_latency(reader, latency):
    """One word a cycle while the slots cover the memory's latency, else `depth` in latency + 2."""
    p = reader[0]
    rows = 200
    contents, _ = beats(None, p.data_width, rows, seed=1)
    words = [min(15, p.longest)] * 8 + [1] * 5 + [0, 7]
    stimulus = build(p, contents, np.arange(len(words)), np.array(words), [])
    outcome = run(reader, stimulus, timing=MemoryTiming((latency, latency)))
    taken = outcome.cycles_of["o"]
    assert taken[0] == p.latency + latency
    if latency <= p.depth - 2:
        assert outcome.cycles == p.cycles(words, latency)
        assert np.isin(np.diff(taken), [1, 2]).all()  # a command of no words takes a cycle
        assert (np.diff(taken) == 2).sum() == 1
    else:
        assert (np.diff(taken[: 120 : p.depth]) == latency + 2).all()


def test_timeline_is_the_hardware(reader):
    p = reader[0]
    contents, _ = beats(None, p.data_width, 200, seed=1)
    for timing in (MemoryTiming((3, 40), reorder=True, seed=7), MemoryTiming((2, 2))):
        count = min(p.longest, 100)
        stimulus = build(p, contents, np.array([5]), np.array([count]), [])
        outcome = run(reader, stimulus, timing=timing)
        use = outcome.memories["memory"]
        requested, answered, output = timeline(use.offered - use.accepted, p.depth)
        assert (requested == use.accepted).all() and (answered == use.offered).all()
        assert (output == outcome.cycles_of["o"]).all()


def test_addresses():
    address, command, last = addresses([6, 2, 9, 0], [4, 0, 1, 2], 3)
    assert address.tolist() == [6, 7, 0, 1, 1, 0, 1]
    assert command.tolist() == [0, 0, 0, 0, 2, 3, 3]
    assert last.tolist() == [False, False, False, True, True, False, True]
