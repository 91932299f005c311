"""The reorder buffer that repeats runs: unbounded proof, and runs with memories of any latency.

Without repetition it is proved as a part of the sequential reader.
"""

import numpy as np
import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Array, Assert, Assume, Cover, Elaboratable, Module, Mux, Signal
from amaranth.sim import Simulator

from hw.stream import reorder_buffer
from hw.stream.reorder_buffer import ReorderBuffer
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

DEPTH, WIDTH, ADDRESS = 4, 2, 2


class RepeatSpec(Elaboratable):
    """Words are read in the order of requests; after a run's last, from its first if ``again``.

    Requests, stalls and repetitions are arbitrary. The memory responds to any outstanding request
    in any cycle, with any data. A request is made whenever one is offered and a slot is free, and a
    word is read as soon as it has arrived and the output has room for it. Registers power up with
    any value; reset is high in the first cycle.

    Attributes
    ----------
    requested, first, reading : Signal
        Numbers, modulo 2 `DEPTH`, of the next request, of the oldest word that is kept and of the
        next word to read.
    waits, filled, values, lasts : Signal
        Of each slot: it waits for a response; it is filled; its word and `last`.
    """

    def __init__(self, dut, invariant=True):
        self.dut, self._invariant = dut, invariant
        names = ("requested", "first", "reading")
        self.requested, self.first, self.reading = (
            Signal(range(2 * DEPTH), name=f"{name}_word") for name in names
        )
        self.waits, self.filled, self.lasts = (
            [Signal(name=f"{name}_{slot}") for slot in range(DEPTH)]
            for name in ("waits", "is_filled", "is_last")
        )
        self.values = [Signal(WIDTH, name=f"value_{slot}") for slot in range(DEPTH)]

    def elaborate(self, platform):
        m = Module()
        dut = self.dut
        first, internals = surround(m, dut)
        tag = dut.response.payload.tag
        ask, answer, live = Signal(), Signal(), ~first
        begun, again_before = Signal(), Signal()
        m.d.comb += [
            ask.eq(dut.request.valid & dut.request.ready & live),
            answer.eq(dut.response.valid & live),
            Assume(~answer | Array(self.waits)[tag]),
            dut.again.eq(AnySeq(1)),
            # Constant from a run's first word to its last.
            Assume(first | ~begun | (dut.again == again_before)),
        ]
        slot = self.reading[: DEPTH.bit_length() - 1]
        kept, unread = Signal(range(2 * DEPTH)), Signal(range(2 * DEPTH))
        take, last = Signal(name="takes"), Signal()
        next_valid, next_value, next_last = Signal(), Signal(WIDTH), Signal()
        m.d.comb += [
            kept.eq(self.requested - self.first),
            unread.eq(self.requested - self.reading),
            last.eq(Array(self.lasts)[slot]),
            take.eq((unread != 0) & Array(self.filled)[slot] & (~dut.o.valid | dut.o.ready) & live),
        ]
        # A run that is read again has at most as many words as there are slots.
        m.d.comb += Assume(~dut.again | (kept != DEPTH) | (unread != 1) | last)
        # What must be at the output in the next cycle.
        m.d.sync += next_valid.eq((take | dut.o.valid & ~dut.o.ready) & live)
        with m.If(take):
            m.d.sync += [next_value.eq(Array(self.values)[slot]), next_last.eq(last)]
        with m.If(live):
            m.d.comb += [
                Assert(dut.response.ready, "refused a response"),
                Assert(
                    dut.request.valid == (dut.i.valid & (kept != DEPTH)), "request when it must"
                ),
                Assert(dut.i.ready == (dut.request.ready & (kept != DEPTH)), "ready when it must"),
                Assert(dut.take == take, "read when it must"),
                Assert(dut.run_end == (take & last), "wrong end of a run"),
                Assert(dut.o.valid == next_valid, "a word lost or doubled"),
            ]
            with m.If(dut.request.valid):
                m.d.comb += [
                    Assert(dut.request.payload.tag == self.requested[:-1], "wrong tag"),
                    Assert(dut.request.payload.address == dut.i.payload.address, "wrong address"),
                ]
            with m.If(dut.o.valid):
                m.d.comb += [
                    Assert(dut.o.payload.data == next_value, "wrong data or order"),
                    Assert(dut.o.payload.last == next_last, "wrong last"),
                ]
            if self._invariant:
                self._invariants(m, internals, kept, unread, begun, again_before)
        self._model(m, ask, answer, take, last, begun, again_before)
        twice = Signal(range(3))  # rounds of a run of three words
        long = Signal()
        m.d.comb += long.eq(take & last & (self.reading - self.first == 2)[: len(self.first)])
        with m.If(long & dut.again & (twice != 2)):
            m.d.sync += twice.eq(twice + 1)
        m.d.comb += [
            Cover(long & (twice == 2), "three words, three times"),
            Cover(take & dut.again & (kept == DEPTH) & (unread == 1), "a run that fills all slots"),
            Cover(answer & (tag != slot) & (kept == DEPTH), "out of order"),
        ]
        return m

    def _model(self, m, ask, answer, take, last, begun, again_before):
        dut, tag = self.dut, self.dut.response.payload.tag
        m.d.sync += self.requested.eq(self.requested + ask)
        with m.If(take):
            m.d.sync += [begun.eq(~last), again_before.eq(dut.again)]
            with m.If(dut.again):
                m.d.sync += self.reading.eq(Mux(last, self.first, self.reading + 1))
            with m.Else():
                m.d.sync += [self.reading.eq(self.reading + 1), self.first.eq(self.reading + 1)]
        for slot in range(DEPTH):
            with m.If(ask & (self.requested[:-1] == slot)):
                m.d.sync += [
                    self.waits[slot].eq(1),
                    self.filled[slot].eq(0),
                    self.lasts[slot].eq(dut.i.payload.last),
                ]
            with m.Elif(answer & (tag == slot)):
                m.d.sync += [
                    self.waits[slot].eq(0),
                    self.filled[slot].eq(1),
                    self.values[slot].eq(dut.response.payload.data),
                ]

    def _invariants(self, m, internals, kept, unread, begun, again_before):
        """Relation of the buffer's registers and memories to the model's."""
        filled, ends = internals.signal("filled"), internals.signal("ends")
        ahead = Signal(range(2 * DEPTH))  # words of the run that are read and kept
        m.d.comb += [
            ahead.eq(self.reading - self.first),
            Assert(internals.signal("requested") == self.requested),
            Assert(internals.signal("emptied") == self.first),
            Assert(internals.signal("ahead") == ahead),
            Assert((kept <= DEPTH) & (ahead <= kept) & (ahead + unread == kept)),
            Assert((ahead != 0) == (begun & again_before)),
        ]
        for slot in range(DEPTH):
            # A slot's distance from the oldest one says whether it is used, and in which pass.
            place = Signal(range(DEPTH), name=f"place_{slot}")
            at = Signal(range(2 * DEPTH), name=f"at_{slot}")
            used = place < kept
            m.d.comb += [place.eq(slot - self.first), at.eq(self.first + place)]
            holds = filled[slot] ^ at[-1]
            m.d.comb += [
                Assert(self.waits[slot] == (used & ~holds)),
                Assert(~used | (self.filled[slot] == holds)),
                Assert(used | ~holds),
                # All words that are read again were read.
                Assert((place >= ahead) | (self.filled[slot] & ~self.lasts[slot])),
            ]
            row, final = (internals.row(m, name, slot) for name in ("slots", "finals"))
            with m.If(used):
                m.d.comb += [
                    Assert(ends[slot] == self.lasts[slot]),
                    Assert(final == self.lasts[slot]),
                    Assert(~holds | (row == self.values[slot])),
                ]


def test_proof():
    dut = ReorderBuffer(DEPTH, ADDRESS, WIDTH, repeat=True)
    prove_block(RepeatSpec(dut), "reorder_buffer", depth=2)


@pytest.mark.campaign
def test_cover():
    dut = ReorderBuffer(DEPTH, ADDRESS, WIDTH, repeat=True)
    prove_block(RepeatSpec(dut, invariant=False), "reorder_buffer", "cover", depth=16)


FAULTS = {
    "forgets_the_run": (
        "m.If(take & self.again)",
        "m.If(take & self.again & ~self.run_end)",
        "wrong data or order|read when it must|request when it must",
    ),
    "does_not_return": (
        "ahead.eq(Mux(self.run_end, 0, ahead + 1))",
        "ahead.eq(ahead + 1)",
        "wrong data or order|read when it must",
    ),
    "keeps_ends": ("ends | issued, ends & ~issued", "ends | issued, ends", "wrong end of a run"),
    "frees_early": (
        "full.eq((requested ^ emptied) == depth)",
        "full.eq((requested ^ reading) == depth)",
        "request when it must",
    ),
    "other_pass": (
        "(filled & turn).any() ^ reading[-1]",
        "(filled & turn).any() ^ emptied[-1]",
        "",
    ),
}


test_injected_fault_is_found = fault_test(
    reorder_buffer,
    FAULTS,
    lambda m: RepeatSpec(m.ReorderBuffer(DEPTH, ADDRESS, WIDTH, repeat=True), invariant=False),
    suite=["does_not_return"],
    depth=14,
)


@pytest.mark.parametrize("seed", range(2))
def test_runs_in_amaranths_simulator(seed):
    """Runs of one to `depth` words, each output one to three times, by a list of words."""
    rng = np.random.default_rng(seed)
    depth = (4, 8)[seed]
    dut = ReorderBuffer(depth, 6, 8, repeat=True)
    lengths = rng.integers(1, depth + 1, 40)
    times = rng.integers(1, 4, len(lengths))
    contents = rng.integers(0, 256, 64)
    runs = [rng.integers(0, 64, length).tolist() for length in lengths]
    asked = [(word, at == len(run) - 1) for run in runs for at, word in enumerate(run)]
    wanted = [
        (int(contents[word]), at == len(run) - 1)
        for run, count in zip(runs, times, strict=True)
        for _ in range(count)
        for at, word in enumerate(run)
    ]
    got, reordered = [], 0

    async def testbench(ctx):
        nonlocal reordered
        sent = ended = 0
        outstanding = []  # requests in order
        for _ in range(4000):
            if len(got) == len(wanted):
                return
            offer = sent < len(asked) and (sent < 20 or rng.random() < 0.7)
            ctx.set(dut.i.valid, offer)
            if offer:
                ctx.set(dut.i.payload.address, asked[sent][0])
                ctx.set(dut.i.payload.last, asked[sent][1])
            ctx.set(dut.request.ready, int(rng.random() < 0.8))
            ctx.set(dut.o.ready, int(rng.random() < 0.7))
            run = int(np.searchsorted(np.cumsum(times), ended, "right"))
            ctx.set(dut.again, int(run < len(times) and ended + 1 < times[: run + 1].sum()))
            answered = bool(outstanding) and rng.random() < 0.4
            ctx.set(dut.response.valid, answered)
            if answered:
                which = int(rng.integers(len(outstanding)))
                reordered += which > 0
                tag, address = outstanding.pop(which)
                ctx.set(dut.response.payload.tag, tag)
                ctx.set(dut.response.payload.data, int(contents[address]))
            if ctx.get(dut.request.valid) and ctx.get(dut.request.ready):
                request = dut.request.payload
                outstanding.append((ctx.get(request.tag), ctx.get(request.address)))
                assert len(outstanding) <= depth
                assert outstanding[-1][1] == asked[sent][0]
            sent += bool(offer and ctx.get(dut.i.ready))
            ended += ctx.get(dut.run_end)
            if ctx.get(dut.o.valid) and ctx.get(dut.o.ready):
                got.append((ctx.get(dut.o.payload.data), bool(ctx.get(dut.o.payload.last))))
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    assert got == wanted
    assert reordered > 20
