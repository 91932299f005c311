"""The rotary encoding's ports: rules of streams, and each beat six stages later, none lost.

Nothing is computed: a pair's first element passes unchanged. The rules of streams have an unbounded
proof; the order of beats is checked by bounded model checking from reset.
"""

import pytest
from amaranth.hdl import Assert, Cat, Cover, Elaboratable, Module, Signal

from hw.arith.float_convert import FloatConvert
from hw.arith.float_multiply_add import FloatMultiplyAdd
from hw.arith.sine_cosine import SineCosine
from hw.attention import rotary_encoding
from hw.attention.rotary_encoding import LATENCY, RotaryEncoding, RotaryEncodingParameters
from sim.checks.formal.specs import StreamRulesSpec, surround
from tests.support.formal import find_fault, prove_block

P = RotaryEncodingParameters(pairs=2, lanes=1, positions=2)
INPUTS = ["turns", "command", "i"]


class PlainUnit:
    """Registers of the unit, which give its operand."""

    def elaborate(self, platform):
        m = Module()
        with m.If(self.enable):
            m.d.sync += self.o.eq(self.a)
        return m


class PlainSum(PlainUnit, FloatMultiplyAdd):
    pass


class PlainConvert(PlainUnit, FloatConvert):
    pass


class NoSine(SineCosine):
    def elaborate(self, platform):
        return Module()


class BeatSpec(Elaboratable):
    """A beat accepted is at the output after as many cycles that count as there are stages."""

    def elaborate(self, platform):
        m = Module()
        dut = RotaryEncoding(P)
        first, _ = surround(m, dut)
        i, o = dut.i, dut.o
        loaded, moves, accepted = Signal(), Signal(), Signal()
        beat = Cat(accepted, i.payload.a[0], i.payload.keep, i.payload.last)
        stages = [Signal(len(beat), name=f"stage_{n}") for n in range(LATENCY)]
        m.d.comb += [
            moves.eq(~stages[-1][0] | o.ready),
            accepted.eq(i.valid & moves & loaded & dut.command.valid),
        ]
        with m.If(dut.turns.valid & dut.turns.payload.last):
            m.d.sync += loaded.eq(1)
        with m.If(moves):
            m.d.sync += Cat(stages).eq(Cat(beat, stages[:-1]))
        end = stages[-1]
        shown = Cat(o.payload.keep, o.payload.last)
        with m.If(~first):
            m.d.comb += [
                Assert(i.ready == (moves & loaded & dut.command.valid), "ready at the wrong time"),
                Assert(dut.command.ready == (accepted & i.payload.last), "a wrong command"),
                Assert(o.valid == end[0], "a beat lost, or from nowhere"),
                Assert(~end[0] | (shown == end[17:]), "other lanes"),
                Assert(~(end[0] & end[17]) | (o.payload.a[0] == end[1:17]), "another beat"),
            ]
        m.d.comb += Cover(o.valid & ~o.ready & i.valid & dut.command.valid & i.payload.last)
        return m


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(rotary_encoding, "FloatMultiplyAdd", PlainSum)
    monkeypatch.setattr(rotary_encoding, "FloatConvert", PlainConvert)
    monkeypatch.setattr(rotary_encoding, "SineCosine", NoSine)


def test_rules():
    prove_block(StreamRulesSpec(RotaryEncoding(P), ["o"], INPUTS), "rotary_rules", depth=2)


@pytest.mark.campaign
def test_beats():
    prove_block(BeatSpec(), "rotary_beats", "bmc", depth=LATENCY + 6)


@pytest.mark.campaign
def test_cover():
    prove_block(BeatSpec(), "rotary_beats", "cover", depth=LATENCY + 6)


@pytest.mark.campaign
def test_injected_fault_is_found(monkeypatch):
    """Registers that advance in every cycle."""

    class Hasty(FloatConvert):
        def elaborate(self, platform):
            m = Module()
            m.d.sync += self.o.eq(self.a)
            return m

    monkeypatch.setattr(rotary_encoding, "FloatConvert", Hasty)
    find_fault(BeatSpec(), "rotary_beats", "stalled payload changed", depth=LATENCY + 6)
