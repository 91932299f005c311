"""The vector unit's ports: rules of streams, each beat by its own command; unbounded proof.

Nothing is computed: a lane gives its first operand or, where the operation is not 0, its second.
"""

import pytest
from amaranth.hdl import Assert, Cat, Cover, Elaboratable, Module, Mux, Signal

from hw.attention import vector_unit
from hw.attention.pair_function import PairFunction
from hw.attention.vector_unit import VectorUnit, VectorUnitParameters
from sim.checks.formal.specs import surround
from tests.support.formal import find_fault, prove_block

P = VectorUnitParameters(lanes=2, stages=1)


class PlainPair(PairFunction):
    def elaborate(self, platform):
        m = Module()
        with m.If(self.enable):
            m.d.sync += self.o.eq(Mux(self.op.any(), self.b, self.a))
        return m


class BeatSpec(Elaboratable):
    """With one register, a beat accepted is at the output in the next cycle and until accepted."""

    def elaborate(self, platform):
        m = Module()
        dut = VectorUnit(P)
        first, _ = surround(m, dut)
        i, o, command = dut.i, dut.o, dut.command
        held, ready, accepted = Signal(), Signal(), Signal()
        flags, wanted = Signal(P.lanes + 1), Signal(16 * P.lanes)
        lanes = [
            Mux(command.payload.op.any(), b, a) & keep.replicate(16)
            for a, b, keep in zip(i.payload.a, i.payload.b, i.payload.keep, strict=True)
        ]
        m.d.comb += [
            ready.eq((~held | o.ready) & command.valid),
            accepted.eq(i.valid & ready),
        ]
        with m.If(~held | o.ready):
            m.d.sync += [
                held.eq(accepted),
                flags.eq(Cat(i.payload.keep, i.payload.last)),
                wanted.eq(Cat(lanes)),
            ]
        with m.If(~first):
            m.d.comb += [
                Assert(i.ready == ready, "ready at the wrong time"),
                Assert(command.ready == (accepted & i.payload.last), "a command at a wrong beat"),
                Assert(o.valid == held, "a beat lost, or from nowhere"),
                Assert(~held | (Cat(o.payload.y) == wanted), "another beat"),
                Assert(~held | (Cat(o.payload.keep, o.payload.last) == flags), "other lanes"),
                Assert(~held | ((o.payload.invalid & ~o.payload.keep) == 0), "an invalid nothing"),
            ]
        m.d.comb += Cover(o.valid & ~o.ready & i.valid & command.valid & i.payload.last)
        return m


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(vector_unit, "PairFunction", PlainPair)


def test_proof():
    prove_block(BeatSpec(), "vector_unit", depth=2)


@pytest.mark.campaign
def test_cover():
    prove_block(BeatSpec(), "vector_unit", "cover", depth=8)


@pytest.mark.campaign
def test_injected_fault_is_found(monkeypatch):
    """Registers that advance in every cycle."""

    class Hasty(PlainPair):
        def elaborate(self, platform):
            m = Module()
            m.d.sync += self.o.eq(Mux(self.op.any(), self.b, self.a))
            return m

    monkeypatch.setattr(vector_unit, "PairFunction", Hasty)
    find_fault(BeatSpec(), "vector_unit", "stalled payload changed", depth=5)
