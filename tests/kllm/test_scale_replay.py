"""Scales of a batch's vectors, again for every set of columns."""

import dataclasses

import numpy as np
import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import (
    Assert,
    Assume,
    Cat,
    Cover,
    Elaboratable,
    Module,
    Signal,
    Value,
)
from amaranth.sim import Simulator

from hw.kllm.core.core_parameters import IN_FLIGHT, CoreParameters
from hw.kllm.core.scale_replay import ScaleReplay
from sim.checks.formal.specs import surround
from tests.support.formal import prove_block

TINY = CoreParameters(
    *(40, 6, 2),
    activation_bits=2,
    weight_bits=1,
    counters=1,
    macs=4,
    outliers=1,
    entries=1,
    vectors=2,
    depth=4,
    address_width=8,
)


@pytest.mark.parametrize("vectors", [1, 2, 4])
def test_every_scale_for_every_set(vectors):
    """Scales that arrive before their command, after it, and while the batch is output."""
    p = dataclasses.replace(TINY, vectors=vectors)
    rng = np.random.default_rng(vectors)
    dut = ScaleReplay(p)
    batches = [
        (int(rng.integers(1, vectors + 1)), int(rng.integers(1, p.sets + 1)), rng.random() < 0.4)
        for _ in range(80)
    ]
    sizes = np.cumsum([size for size, *_ in batches])
    scales = [tuple(map(int, rng.integers(0, 1 << 16, 2))) for _ in range(sizes[-1])]
    wanted = []
    for end, (size, sets, add) in zip(sizes, batches, strict=True):
        of_batch = scales[end - size : end]
        for number in range(sets):
            for vector, (s_a, r) in enumerate(of_batch):
                wanted.append((s_a, r, number == 0 and vector == 0, add))
    got, full, empty = [], 0, 0

    async def testbench(ctx):
        nonlocal full, empty
        stored = batch = 0
        for cycle in range(6000):
            if len(got) == len(wanted):
                return
            slow = cycle // 100 % 2  # producer and consumer take turns at being slow
            # Scales stay until their batch's last set, and there are no more than rows.
            kept = stored - (sizes[batch - 1] if batch else 0)
            full += kept == IN_FLIGHT * vectors
            offer = stored < len(scales) and kept < IN_FLIGHT * vectors
            offer = offer and rng.random() < (0.2, 0.9)[slow]
            ctx.set(dut.i.valid, bool(offer))
            if offer:
                ctx.set(dut.i.payload.s_a, scales[stored][0])
                ctx.set(dut.i.payload.r, scales[stored][1])
            present = batch < len(batches)
            ctx.set(dut.command.valid, present)
            if present:
                for name, value in zip(("vectors", "sets", "add"), batches[batch], strict=True):
                    ctx.set(dut.command.payload[name], int(value))
            ready = bool(rng.random() < (0.9, 0.2)[slow])
            ctx.set(dut.o.ready, ready)
            empty += present and not ctx.get(dut.o.valid)
            if ctx.get(dut.o.valid) and ready:
                o = dut.o.payload
                got.append(tuple(ctx.get(o[name]) for name in ("s_a", "r", "first", "add")))
            batch += bool(present and ctx.get(dut.command.ready))
            stored += bool(offer)
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    assert got == wanted
    assert full > 20 and empty > 20, (full, empty)


class ReplaySpec(Elaboratable):
    """Rules of streams, and one followed scale: each time that its vector is output, and no other.

    Commands and stalls are arbitrary, and scales while there is room. Registers power up with any
    value; reset is high in the first cycle.
    """

    def __init__(self, dut):
        self._dut = dut

    def elaborate(self, platform):
        m = Module()
        dut, p = self._dut, self._dut.parameters
        depth = IN_FLIGHT * p.vectors
        first, internals = surround(m, dut)
        written, reading, begin = (internals.signal(n) for n in ("written", "reading", "first"))
        kept, read = Signal(range(2 * depth)), Signal(range(2 * depth))
        m.d.comb += [
            kept.eq(written - begin),
            read.eq(reading - begin),
            # As no more products are in flight than there is room for.
            Assume(~dut.i.valid | (kept < depth)),
        ]
        with m.If(~first):
            m.d.comb += [
                Assert(kept <= depth, "more scales than rows"),
                Assert(read <= kept, "a scale is output before it is stored"),
            ]
        vector, number = internals.signal("vector"), internals.signal("number")
        command = dut.command.payload
        for name, most in (("vectors", p.vectors), ("sets", p.sets)):
            m.d.comb += Assume((command[name] != 0) & (command[name] <= most))
        # The vector's number in its batch is that of its row, and is one of its command's.
        with m.If(~first):
            m.d.comb += [
                Assert(vector - 1 == read, "another vector's scale"),
                Assert((number != 0) & (number <= p.sets)),
                Assert(~dut.command.valid | (vector <= command.vectors)),
                Assert(~dut.command.valid | (number <= command.sets)),
                Assert(dut.command.valid | (vector == 1) & (number == 1)),
            ]
        # A followed scale is output with its own row's number, as long as it is kept.
        following, row = Signal(), Signal(range(2 * depth))
        value = Signal(len(Value.cast(dut.i.payload)))
        with m.If(dut.i.valid & dut.i.ready & ~first & AnySeq(1) & ~following):
            m.d.sync += [
                following.eq(1),
                row.eq(written),
                value.eq(Value.cast(dut.i.payload)),
            ]
        place = Signal(range(2 * depth))
        m.d.comb += place.eq(row - begin)
        stored = internals.row(m, "rows", row[:-1])
        with m.If(following & (place >= kept) & ~first):
            m.d.sync += following.eq(0)
        with m.Elif(following & ~first):
            o = dut.o.payload
            m.d.comb += [
                Assert(Value.cast(stored) == value, "a scale is written over"),
                Assert(
                    ~dut.o.valid | (reading != row) | (Cat(o.s_a, o.r) == value), "another scale"
                ),
            ]
        m.d.comb += Cover(
            ~first & (kept == depth) & dut.o.valid & ~dut.o.ready, "full, and stalled"
        )
        return m


@pytest.mark.parametrize(("mode", "depth"), [("prove", 2), ("cover", 12)])
def test_rules(mode, depth):
    p = dataclasses.replace(TINY, vectors=2)
    prove_block(ReplaySpec(ScaleReplay(p)), f"scale_replay_{mode}", mode, depth=depth)
