"""Beats through the softmax: none is lost, doubled, exchanged or stuck, under any stalls.

Properties of beats, not of probabilities, which simulation compares: lanes that pass on their score
replace the exponential and the product, with the same registers, so that each output must equal its
input. The rules of streams have an unbounded proof; the other properties are checked by bounded
model checking from reset. So that rows follow each other within that bound, fewer rows can wait and
a sum takes fewer cycles.
"""

from typing import Any

import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import Assert, Const, Cover, Elaboratable, Module, Mux, Signal

from hw.arith.wide_exponent import EXPONENT, INVERSE_WIDTH
from hw.component import Component
from hw.kllm import softmax
from hw.kllm.softmax import MINUS_INFINITY, Softmax, SoftmaxParameters
from hw.kllm.softmax_lane import FIXED, Term
from hw.ports import Ports, wire_in, wire_out
from hw.stream import beat_buffer
from hw.stream.credit_counter import CreditCounter, CreditCounterParameters
from sim.checks.formal.specs import StreamRulesSpec, surround
from tests.support.formal import find_fault, prove_block

P = SoftmaxParameters(1, 4)
ROWS = 2
DEPTH = 20


class PlainTerm(Component[None]):
    """The score, three cycles later."""

    def ports(self) -> Ports:
        return {"score": wire_in(16), "highest": wire_in(FIXED.shape), "term": wire_out(Term)}

    def elaborate(self, platform):
        m = Module()
        first, second = Signal(16), Signal(16)
        m.d.sync += [first.eq(self.score), second.eq(first), self.term.as_value().eq(second)]
        return m


class PlainProduct(Component[None]):
    """The term, two cycles later that count."""

    def ports(self) -> Ports:
        flags = dict.fromkeys(("enable", "empty", "undefined"), wire_in(1))
        numbers = {
            "term": wire_in(Term),
            "inverse": wire_in(INVERSE_WIDTH),
            "exponent": wire_in(EXPONENT),
        }
        return flags | numbers | {"o": wire_out(16)}

    def elaborate(self, platform):
        m = Module()
        first = Signal(16)
        with m.If(self.enable):
            m.d.sync += [first.eq(self.term.as_value()), self.o.eq(first)]
        return m


class BeatsSpec(Elaboratable):
    """One beat, whichever it is, is followed by its number; the others are counted."""

    def elaborate(self, platform):
        m = Module()
        dut = Softmax(P)
        first, _ = surround(m, dut)
        i, o = dut.i, dut.o

        place, dropping = Signal(range(P.beats)), Signal()
        taken, ended, given, left = (Signal(name=n) for n in ("taken", "ended", "given", "left"))
        m.d.comb += [
            taken.eq(i.valid & i.ready & ~dropping & ~first),
            ended.eq(taken & (i.payload.last | (place == P.beats - 1))),
            given.eq(o.valid & o.ready & ~first),
            left.eq(given & o.payload.last),
        ]
        with m.If(taken):
            m.d.sync += [
                place.eq(Mux(ended, 0, place + 1)),
                dropping.eq(ended & ~i.payload.last),
            ]
        with m.Elif(i.valid & i.ready & i.payload.last):
            m.d.sync += dropping.eq(0)

        ins, complete, outs = (Signal(6, name=name) for name in ("ins", "complete", "outs"))
        rows = Signal(6)
        m.d.sync += [ins.eq(ins + taken), outs.eq(outs + given), rows.eq(rows + ended - left)]
        with m.If(ended):
            m.d.sync += complete.eq(ins + 1)

        number = Signal(6)
        m.d.comb += number.eq(AnyConst(6))
        score, keep, last, cut = Signal(16), Signal(), Signal(), Signal()
        with m.If(taken & (ins == number)):
            m.d.sync += [
                score.eq(Mux(i.payload.keep, i.payload.scores[0], MINUS_INFINITY)),
                keep.eq(i.payload.keep),
                last.eq(ended),
                cut.eq(ended & ~i.payload.last),
            ]
        waiting = Signal(range(P.latency + P.beats + 1))
        with m.If((outs != complete) & ~o.valid):
            m.d.sync += waiting.eq(waiting + 1)
        with m.Else():
            m.d.sync += waiting.eq(0)

        room = dropping | (rows < ROWS) & ((ins - outs)[:6] < P.depth)
        with m.If(~first):
            m.d.comb += [
                Assert(i.ready | ~room, "refused with room"),
                Assert(~o.valid | (outs != complete), "a beat from nowhere"),
                Assert(waiting < P.latency + P.beats, "a beat is stuck"),
            ]
            with m.If(o.valid & (outs == number)):
                m.d.comb += [
                    Assert(o.payload.probabilities[0] == score, "another beat's score"),
                    Assert(o.payload.keep == keep, "another beat's keep"),
                    Assert(o.payload.last == last, "the row's end in another place"),
                    Assert(o.payload.invalid | ~cut, "a row cut in silence"),
                ]
        m.d.comb += Cover(left & (rows > 1) & cut & (outs == number), "a row cut, and another one")
        return m


class NoConversion(Component[Any]):
    def ports(self) -> Ports:
        p = self.parameters
        return {"a": wire_in(16), "o": wire_out(p.shape)}

    def elaborate(self, platform):
        return Module()


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(softmax, "ExponentialLane", PlainTerm)
    monkeypatch.setattr(softmax, "ProductLane", PlainProduct)
    monkeypatch.setattr(softmax, "FloatToFixed", NoConversion)
    monkeypatch.setattr(softmax, "leading_one", lambda m, word: Const(0, 2))
    monkeypatch.setattr(softmax, "shift_to_top", lambda m, word, place: Const(0, len(word)))
    monkeypatch.setattr(softmax, "inverse", lambda m, fraction: Const(0, INVERSE_WIDTH))
    monkeypatch.setattr(softmax, "ROWS", ROWS)
    monkeypatch.setattr(softmax, "SUM_LATENCY", 5)


def test_stream_rules():
    """Unbounded proof (k-induction), with the real lanes."""
    prove_block(StreamRulesSpec(Softmax(P), "o", ["i"]), "softmax_rules", depth=2)


@pytest.mark.campaign
def test_beats(plain):
    prove_block(BeatsSpec(), "softmax_beats", "bmc", depth=DEPTH, seconds=300)


def test_cover(plain):
    prove_block(BeatsSpec(), "softmax_beats", "cover", depth=30, solver="yices", seconds=300)


class HastyTerm(PlainTerm):
    """A cycle early."""

    def elaborate(self, platform):
        m = Module()
        first = Signal(16)
        m.d.sync += [first.eq(self.score), self.term.as_value().eq(first)]
        return m


class MiserlyCounter(CreditCounter):
    """Lends a single beat."""

    def __init__(self, parameters):
        super().__init__(CreditCounterParameters(1))


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("module", "name", "faulty", "found_by"),
    [
        (softmax, "ExponentialLane", HastyTerm, "another beat's score"),
        (beat_buffer, "CreditCounter", MiserlyCounter, "refused with room"),
    ],
)
def test_injected_fault_is_found(plain, monkeypatch, module, name, faulty, found_by):
    monkeypatch.setattr(module, name, faulty)
    find_fault(BeatsSpec(), f"softmax_{faulty.__name__}", found_by, depth=DEPTH, seconds=300)
