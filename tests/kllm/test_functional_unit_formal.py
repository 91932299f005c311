"""The functional unit's ports, proved for all time: rules of streams, and elements in their order.

What is computed is left out: an element passes as it is. Beats inside the softmax and vectors
inside 1 / RMS are proved where those are.
"""

import pytest
from amaranth.hdl import Assert, Cover, Elaboratable, Fragment, Module, Signal

from hw.arith.float_multiply_add import FloatMultiplyAdd
from hw.kllm import functional_unit, inverse_rms
from hw.kllm.element_function import ElementFunction
from hw.kllm.functional_unit import FunctionalUnit, FunctionalUnitParameters
from sim.checks.formal.proof import prove
from sim.checks.formal.specs import drive, reset_first, watch

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
        m.submodules.dut = Fragment.get(dut, None)
        first = reset_first(m)
        for port in (dut.scores, dut.x, dut.sums):
            drive(m, first, port)
        for port in (dut.weights, dut.y, dut.factor):
            watch(m, first, port)
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


def run(monkeypatch, mode: str, depth: int, element=PlainElement):
    monkeypatch.setattr(inverse_rms, "FloatMultiplyAdd", NoArithmetic)
    monkeypatch.setattr(functional_unit, "ElementFunction", element)
    return prove(UnitSpec(), f"functional_unit_{mode}", mode, depth=depth)


def test_proof(monkeypatch):
    result = run(monkeypatch, "prove", 2)
    assert result.status == "PASS", result


@pytest.mark.campaign
def test_cover(monkeypatch):
    result = run(monkeypatch, "cover", 8)
    assert result.status == "PASS", result


@pytest.mark.campaign
def test_seeded_fault_is_caught(monkeypatch):
    """Registers that advance in every cycle."""

    class Hasty(PlainElement):
        def elaborate(self, platform):
            m = Module()
            m.d.sync += self.o.eq(self.x)
            return m

    result = run(monkeypatch, "bmc", 5, Hasty)
    assert result.status == "FAIL", result
    assert any("stalled payload changed" in failure for failure in result.failures), result
