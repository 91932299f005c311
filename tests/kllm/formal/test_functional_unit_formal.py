"""The functional unit's ports: rules of streams, and elements in order; unbounded proof.

Nothing is computed: an element passes unchanged. Beats inside the softmax and vectors inside
1 / RMS have proofs of their own.
"""

import pytest
from amaranth.hdl import Assert, Cover, Elaboratable, Module, Signal

from hw.arith.float_multiply_add import FloatMultiplyAdd
from hw.kllm import functional_unit, inverse_rms
from hw.kllm.element_function import ElementFunction
from hw.kllm.functional_unit import FunctionalUnit, FunctionalUnitParameters
from sim.checks.formal.specs import surround
from tests.support.formal import find_fault, prove_block

P = FunctionalUnitParameters(lanes=1, length=4, element_stages=1, rms_stages=1)


class NoArithmetic(FloatMultiplyAdd):
    def elaborate(self, platform):
        return Module()


class PlainElement(ElementFunction):
    def elaborate(self, platform):
        m = Module()
        with m.If(self.enable):
            m.d.sync += self.o.eq(self.x)
        return m


class UnitSpec(Elaboratable):
    """With one register, an element taken is at the output in the next cycle and until taken."""

    def elaborate(self, platform):
        m = Module()
        dut = FunctionalUnit(P)
        first, _ = surround(m, dut)
        held, value, ready = Signal(), Signal(16), Signal()
        m.d.comb += ready.eq(~held | dut.y.ready)
        with m.If(ready):
            m.d.sync += [held.eq(dut.x.valid), value.eq(dut.x.payload.x)]
        with m.If(~first):
            m.d.comb += [
                Assert(dut.x.ready == ready, "ready at the wrong time"),
                Assert(dut.y.valid == held, "an element lost, or from nowhere"),
                Assert(~held | (dut.y.payload.o == value), "another element"),
            ]
        m.d.comb += Cover(dut.y.valid & ~dut.y.ready & dut.factor.valid & dut.factor.ready)
        return m


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(inverse_rms, "FloatMultiplyAdd", NoArithmetic)
    monkeypatch.setattr(functional_unit, "ElementFunction", PlainElement)


def test_proof():
    prove_block(UnitSpec(), "functional_unit", depth=2)


@pytest.mark.campaign
def test_cover():
    prove_block(UnitSpec(), "functional_unit", "cover", depth=8)


@pytest.mark.campaign
def test_injected_fault_is_found(monkeypatch):
    """Registers that advance in every cycle."""

    class Hasty(PlainElement):
        def elaborate(self, platform):
            m = Module()
            m.d.sync += self.o.eq(self.x)
            return m

    monkeypatch.setattr(functional_unit, "ElementFunction", Hasty)
    find_fault(UnitSpec(), "functional_unit", "stalled payload changed", depth=5)
