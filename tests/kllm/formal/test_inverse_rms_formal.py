"""One over RMS: each vector has one factor, in its cycle, under any stalls; unbounded proof.

The multiply-add has no influence on this, and is left out.
"""

import pytest
from amaranth.hdl import Assert, Cover, Elaboratable, Module, Mux, Signal

from hw.arith.float_multiply_add import FloatMultiplyAdd
from hw.kllm import inverse_rms
from hw.kllm.inverse_rms import STEPS, InverseRms, InverseRmsParameters
from sim.checks.formal.specs import surround
from tests.support.campaign import suite_takes
from tests.support.formal import find_fault, prove_block


class NoArithmetic(FloatMultiplyAdd):
    def elaborate(self, platform):
        return Module()


class VectorsSpec(Elaboratable):
    """At most one factor inside; a vector is taken after its steps, once there is room."""

    def __init__(self, stages: int):
        self._stages = stages

    def elaborate(self, platform):
        m = Module()
        dut = InverseRms(InverseRmsParameters(self._stages))
        first, internals = surround(m, dut)
        i, o = dut.i, dut.o

        final = STEPS * self._stages
        waited, held = Signal(range(final + 1)), Signal()
        room, taken = Signal(), Signal()
        m.d.comb += [
            room.eq(~held | o.ready),
            taken.eq(i.valid & (waited == final) & room),
        ]
        m.d.sync += held.eq(taken | held & ~o.ready)
        with m.If(i.valid & (waited != final)):
            m.d.sync += waited.eq(waited + 1)
        with m.Elif(taken):
            m.d.sync += waited.eq(0)
        with m.If(~first):
            m.d.comb += [
                Assert(i.ready == taken, "ready at the wrong time"),
                Assert(o.valid == held, "a factor from nowhere, or lost"),
                Assert(internals.signal("cycle") == waited),
            ]
        factors = Signal(2)
        m.d.sync += factors.eq(Mux(first, 0, factors + (o.valid & o.ready)))
        m.d.comb += Cover(taken & o.valid & (factors == 1), "a factor taken as the next one comes")
        return m


@pytest.mark.parametrize("stages", suite_takes([1], [1, 3]))
@pytest.mark.parametrize(("mode", "depth"), [("prove", 2), ("cover", 34)])
def test_vectors(monkeypatch, stages, mode, depth):
    monkeypatch.setattr(inverse_rms, "FloatMultiplyAdd", NoArithmetic)
    prove_block(VectorsSpec(stages), f"inverse_rms_{stages}", mode, depth=depth)


def test_injected_fault_is_found(monkeypatch):
    """A step less than it takes."""
    monkeypatch.setattr(inverse_rms, "FloatMultiplyAdd", NoArithmetic)
    monkeypatch.setattr(inverse_rms, "STEPS", STEPS - 1)
    find_fault(VectorsSpec(2), "inverse_rms_fault", "ready at the wrong time", depth=8)
