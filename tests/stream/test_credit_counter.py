"""Unbounded proofs of the credit counter, alone and with a pipeline and its output queue."""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Cat, Cover, Elaboratable, Fragment, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from hw.stream.credit_counter import CreditCounter, CreditCounterParameters
from hw.stream.queue import Queue, QueueParameters
from sim.checks.formal.specs import Internals, drive, reset_first, watch
from tests.support.campaign import suite_takes
from tests.support.formal import find_fault, prove_block

CREDITS = [1, 2, 3, 4, 5]


class CreditSpec(Elaboratable):
    """For any `take` and `give`, misuse included, `available` is high while a credit is free."""

    def __init__(self, dut, credits, closed=True):
        self._dut, self._credits, self._closed = dut, credits, closed

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = fragment = Fragment.get(self._dut, None)
        dut, credits = self._dut, self._credits
        first = reset_first(m)
        m.d.comb += [dut.take.eq(AnySeq(1)), dut.give.eq(AnySeq(1))]

        out = Signal(range(credits + 2))
        taken = dut.take & (out != credits)
        m.d.sync += out.eq(out + taken - (dut.give & ((out != 0) | taken)))
        with m.If(~first):
            m.d.comb += [
                Assert(dut.available | (out == credits), "a free credit is withheld"),
                Assert(~dut.available | (out != credits), "a credit too many"),
            ]
            if self._closed:
                free = Internals(fragment).signal("free")
                m.d.comb += Assert(free + out == credits)
        ever_empty = Signal()
        m.d.sync += ever_empty.eq(ever_empty | (~first & (out == credits)))
        m.d.comb += [
            Cover(ever_empty & (out == 0), "all out and all home again"),
            Cover(~first & dut.give & (out == 0), "given back too much"),
            Cover(~first & dut.take & ~dut.available, "taken without a credit"),
        ]
        return m


@pytest.mark.parametrize("credits", suite_takes([1, 3], CREDITS))
def test_proof(credits):
    dut = CreditCounter(CreditCounterParameters(credits))
    prove_block(CreditSpec(dut, credits), f"credit_counter{credits}", depth=2)


@pytest.mark.parametrize("credits", suite_takes([3], CREDITS))
def test_cover(credits):
    dut = CreditCounter(CreditCounterParameters(credits))
    spec = CreditSpec(dut, credits)
    prove_block(spec, f"credit_counter{credits}", "cover", depth=2 * credits + 4)


class FaultyCounter(CreditCounter):
    """A credit counter with one fault."""

    fault: str = ""

    def elaborate(self, platform):
        m = Module()
        credits = self.parameters.credits
        free = Signal(range(credits + 1), init=credits)
        m.d.comb += self.available.eq((free != 0) | (self.fault == "lends"))
        taken = self.take & self.available
        limit = (free == credits) & (self.fault != "overflows")
        if self.fault == "drops both":
            with m.If(taken):
                m.d.sync += free.eq(free - 1)
            with m.Elif(self.give & ~limit):
                m.d.sync += free.eq(free + 1)
        else:
            with m.If(taken & ~self.give):
                m.d.sync += free.eq(free - 1)
            with m.Elif(self.give & ~taken & ~limit):
                m.d.sync += free.eq(free + 1)
        return m


@pytest.mark.parametrize(
    "fault, found_by",
    suite_takes(
        ["lends"],
        [
            ("lends", "a credit too many"),
            ("overflows", "a free credit is withheld"),
            ("drops both", "a free credit is withheld"),
        ],
    ),
)
def test_injected_fault_is_found(fault, found_by):
    dut = FaultyCounter(CreditCounterParameters(3))
    dut.fault = fault
    name = f"credit_counter_{fault.replace(' ', '_')}"
    find_fault(CreditSpec(dut, 3, closed=False), name, found_by, depth=10)


class CreditedPipeline(wiring.Component):
    """A pipeline of `latency` cycles without stalls, wired as the credit counter's text says."""

    i: In(stream.Signature(2))
    o: Out(stream.Signature(2))
    refused: Out(1)

    def __init__(self, latency, credits, depth):
        self.latency, self.credits, self.depth = latency, credits, depth
        self.busy = Signal(latency)
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules.credit = credit = CreditCounter(CreditCounterParameters(self.credits))
        m.submodules.queue = queue = Queue(QueueParameters(width=2, depth=self.depth))
        m.d.comb += [
            self.i.ready.eq(credit.available),
            credit.take.eq(self.i.valid & self.i.ready),
            credit.give.eq(self.o.valid & self.o.ready),
            self.refused.eq(queue.i.valid & ~queue.i.ready),
        ]
        payload = self.i.payload
        m.d.sync += self.busy.eq(Cat(credit.take, self.busy))
        for _ in range(self.latency):
            stage = Signal(2)
            m.d.sync += stage.eq(payload)
            payload = stage
        m.d.comb += [queue.i.valid.eq(self.busy[-1]), queue.i.payload.eq(payload)]
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        return m


class PipelineSpec(Elaboratable):
    """The queue is never full when a result arrives, and the output keeps the stream rules."""

    def __init__(self, dut):
        self._dut = dut

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = fragment = Fragment.get(self._dut, None)
        dut, internals = self._dut, Internals(fragment)
        first = reset_first(m)
        drive(m, first, dut.i)
        watch(m, first, dut.o)
        free, level = internals.signal("credit.free"), internals.signal("queue.fifo.level")
        inside = sum(dut.busy[k] for k in range(dut.latency)) + level
        produce = internals.signal("queue.fifo.produce")
        consume = internals.signal("queue.fifo.consume")
        with m.If(~first):
            m.d.comb += [
                Assert(~dut.refused, "the queue refused"),
                Assert(free + inside == dut.credits, "credits and beats disagree"),
                Assert((produce < dut.depth) & (consume < dut.depth)),
                Assert((consume + level) % dut.depth == produce),
            ]
        m.d.comb += [
            Cover(~first & (level == dut.depth), "queue full"),
            Cover(~first & dut.busy.all() & dut.o.valid & dut.o.ready, "full rate"),
        ]
        return m


@pytest.mark.parametrize("mode, depth", suite_takes(["prove"], [("prove", 3), ("cover", 12)]))
def test_pipeline_never_overruns_its_queue(mode, depth):
    dut = CreditedPipeline(latency=3, credits=5, depth=5)
    prove_block(PipelineSpec(dut), "credited_pipeline", mode, depth=depth)


@pytest.mark.campaign
def test_more_credits_than_entries_overrun_the_queue():
    dut = CreditedPipeline(latency=3, credits=5, depth=4)
    find_fault(PipelineSpec(dut), "credited_pipeline_overrun", "the queue refused", depth=12)


def beats_in(latency, credits, cycles):
    """Beats output by a credited pipeline in `cycles` cycles after its first one, no stalls."""
    dut = CreditedPipeline(latency, credits, credits)
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    count = 0

    async def testbench(ctx):
        nonlocal count
        ctx.set(dut.i.valid, 1)
        ctx.set(dut.o.ready, 1)
        await ctx.tick().until(dut.o.valid)
        for _ in range(cycles):
            _, _, valid = await ctx.tick().sample(dut.o.valid)
            count += valid

    simulator.add_testbench(testbench)
    simulator.run()
    return count


@pytest.mark.parametrize("latency", [1, 2, 5])
def test_full_rate_needs_the_stated_credits(latency):
    credits = CreditCounterParameters.for_pipeline(latency).credits
    cycles = 4 * (latency + 2)
    assert beats_in(latency, credits, cycles) == cycles
    assert beats_in(latency, credits - 1, cycles) == cycles * (credits - 1) // (latency + 2)
