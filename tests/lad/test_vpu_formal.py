"""The vector processing unit's control: one result for each operation; unbounded proof.

Operations, bubbles and stalls are arbitrary. Registers power up with any value; reset is high in
the first cycle. Results keep the rules of streams, and none is lost in the queue. An operation
waits only for a vector that is stalled or, if it is a DP, for room in the queue.
"""

import pytest
from amaranth.hdl import Assert, Cover, Elaboratable, Module, Mux, Signal

from hw.lad import vpu
from hw.lad.vpu import Mode, Vpu, VpuParameters
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

SIZES = [
    VpuParameters(d=2, multiply_stages=1, add_stages=1),
    VpuParameters(d=2, multiply_stages=2, add_stages=2),
]


class ControlSpec(Elaboratable):
    def __init__(self, dut, invariant=True):
        self._dut, self._invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut, p = self._dut, self._dut.parameters
        first, internals = surround(m, dut)
        most = p.credits.credits
        mode = dut.i.payload.mode
        dots, vectors = Signal(range(most + 2)), Signal(range(p.latency + 2))
        begun = Signal()
        is_dot, is_vector = mode == Mode.DP, (mode == Mode.EM) | (mode == Mode.S)
        issued = {port: port.valid & port.ready & ~first for port in (dut.o_vec, dut.o_scal)}
        m.d.comb += begun.eq(dut.i.valid & dut.i.ready & ~first)
        m.d.sync += [
            dots.eq(dots + (begun & is_dot) - issued[dut.o_scal]),
            vectors.eq(vectors + (begun & is_vector) - issued[dut.o_vec]),
        ]
        open_ = ~dut.o_vec.valid | dut.o_vec.ready
        # A dot product advances unless a vector at the output is stalled. Not counting such stalls,
        # it is at the output after `dot_latency` cycles.
        waits = Signal(range(p.dot_latency + 1))
        with m.If((dots == 0) | dut.o_scal.valid):
            m.d.sync += waits.eq(0)
        with m.Elif(open_):
            m.d.sync += waits.eq(waits + 1)
        with m.If(~first):
            m.d.comb += [
                Assert(dots <= most, "more dot products than the queue holds"),
                Assert(vectors <= p.latency, "more vectors than pipeline stages"),
                Assert(~dut.o_scal.valid | (dots != 0), "a dot product from nowhere"),
                Assert(~dut.o_vec.valid | (vectors != 0), "a vector from nowhere"),
                Assert(
                    dut.i.ready == (open_ & (~is_dot | (dots != most))),
                    "refused with room, or taken without",
                ),
                Assert(waits < p.dot_latency, "a dot product is stuck"),
            ]
        if self._invariant:
            with m.If(~first):
                self._invariants(m, internals, dots, vectors, waits)
        m.d.comb += [
            Cover(dots == most, "full of dot products"),
            Cover(dut.o_scal.valid & dut.o_vec.valid & ~dut.o_vec.ready, "both, and one waits"),
        ]
        return m

    def _invariants(self, m, internals, dots, vectors, waits):
        most = self._dut.parameters.credits.credits
        dot_stages, adding = internals.signal("dots"), internals.signal("adding")
        held = internals.signal("vectors")
        level = internals.signal("queue.fifo.level")
        produce, consume = (internals.signal(f"queue.fifo.{n}") for n in ("produce", "consume"))
        place = consume + level
        m.d.comb += [
            Assert((produce < most) & (consume < most) & (level <= most)),
            Assert(produce == Mux(place < most, place, place - most)),
            Assert(sum(dot_stages) + sum(adding) + level == dots),
            Assert(internals.signal("credits.free") + dots == most),
            Assert(sum(held) == vectors),
            Assert(~(dot_stages & held).any()),
        ]
        # The oldest dot product has passed at least as many stages as cycles are counted.
        stages = [*dot_stages, *adding]
        for number, stage in enumerate(stages):
            ahead = sum(stages[number + 1 :])
            m.d.comb += Assert(
                ~stage | (ahead != 0) | (level != 0) | (waits <= number), "counted too far"
            )


@pytest.mark.parametrize(
    "parameters",
    [SIZES[0], pytest.param(SIZES[1], marks=pytest.mark.campaign)],
    ids=lambda p: p.slug(),
)
def test_proof(parameters):
    prove_block(ControlSpec(Vpu(parameters)), f"vpu_{parameters.slug()}", depth=2)


@pytest.mark.campaign
def test_cover():
    prove_block(ControlSpec(Vpu(SIZES[0])), "vpu_control", "cover", depth=12)


FAULTS = {
    "free_credits": ("credits.take.eq(taken & is_dot)", "credits.take.eq(0)", "or taken without"),
    "two_results": (
        "Cat(taken & is_vector, vectors[:-1])",
        "Cat(taken, vectors[:-1])",
        "a vector from nowhere",
    ),
    "loses_one": ("adding.eq(Cat(dots[-1], adding[:-1]))", "adding.eq(0)", "is stuck"),
    "always_advances": (
        "advance.eq(~self.o_vec.valid | self.o_vec.ready)",
        "advance.eq(1)",
        "withdrawn|refused with room",
    ),
}


test_injected_fault_is_found = fault_test(
    vpu, FAULTS, lambda m: ControlSpec(m.Vpu(SIZES[0]), invariant=False), depth=14
)
