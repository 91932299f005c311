"""Elements through the special function unit: none is lost, doubled or stuck, under any stalls.

Properties of elements and commands, not of results, which simulation compares: a normalisation that
passes on its element replaces the real one, with the same registers, so that each output must equal
its input. They are checked by bounded model checking from reset, with a bound within which one
vector follows another. The rules of streams, and that no queue is written without room, have
unbounded proofs.
"""

import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import Assert, Assume, Const, Cover, Elaboratable, Module, Mux, Signal

from hw.attention import softmax_reduction, special_function_unit
from hw.attention.normalisation import RESULT_CYCLES, Normalisation
from hw.attention.special_function_unit import (
    LATENCY,
    SpecialFunctionUnit,
    SpecialFunctionUnitParameters,
)
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out
from hw.stream.credit_counter import CreditCounter, CreditCounterParameters
from sim.checks.formal.specs import surround
from tests.support.campaign import suite_takes
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

P = SpecialFunctionUnitParameters(length=2, tile=2)
TWO = SpecialFunctionUnitParameters(length=2, tile=2, vectors=2)
DEPTH = 26
SLOWEST = P.latency + P.length


class PlainNormalisation(Normalisation):
    """The element, seven cycles later."""

    def elaborate(self, platform):
        m = Module()
        value = self.x
        for n in range(RESULT_CYCLES):
            register = Signal(16, name=f"x_{n}")
            m.d.sync += register.eq(value)
            value = register
        m.d.comb += self.y.eq(value)
        return m


class PlainMoments(special_function_unit.MomentReduction):
    """Ends two cycles after the last element."""

    def elaborate(self, platform):
        m = Module()
        ending = Signal()
        m.d.sync += [ending.eq(self.valid & self.last), self.ended.eq(ending)]
        return m


class Nothing(Component):
    """Of the ports of a unit that computes, outputs that never change."""

    def elaborate(self, platform):
        return Module()


class NoExponent(Nothing):
    def ports(self) -> Ports:
        return {"x": wire_in(16), "octaves": wire_out(18), "fraction": wire_out(12)}


class NoTerm(Nothing):
    def ports(self) -> Ports:
        inputs = {"octaves": wire_in(18), "origin": wire_in(18), "fraction": wire_in(12)}
        return inputs | {"digits": wire_out(15), "shift": wire_out(6)}


class NoSum(Nothing):
    def ports(self) -> Ports:
        return {"a": wire_in(32), "b": wire_in(32), "subtract": wire_in(1), "o": wire_out(32)}


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(special_function_unit, "Normalisation", PlainNormalisation)
    monkeypatch.setattr(special_function_unit, "MomentReduction", PlainMoments)
    monkeypatch.setattr(special_function_unit, "FloatAdd", NoSum)
    monkeypatch.setattr(softmax_reduction, "BinaryExponent", NoExponent)
    monkeypatch.setattr(softmax_reduction, "Term", NoTerm)
    monkeypatch.setattr(softmax_reduction, "leading_one", lambda m, word: Const(0, 2))
    monkeypatch.setattr(softmax_reduction, "shift_to_top", lambda m, word, at: Const(0, len(word)))


class ElementsSpec(Elaboratable):
    """One element, whichever it is, is followed by its number; the others are counted."""

    def __init__(self, dut):
        self._dut = dut

    def elaborate(self, platform):
        m = Module()
        dut = self._dut
        first, internals = surround(m, dut)
        command, i, o = dut.command, dut.i, dut.o
        for name in (
            "vectors",
            "softmax.tile_origins",
            "softmax.origin_queue",
            "softmax.sum_queue",
        ):
            asked, room = (internals.signal(f"{name}.{end}") for end in ("w_en", "fifo.w_rdy"))
            m.d.comb += Assert(first | ~asked | room, "a queue without room")
        # One bit is enough to tell elements apart.
        m.d.comb += Assume(~i.payload.x[1:].any())

        place, dropping = Signal(range(P.length)), Signal()
        moved, taken, ended, given, left = (
            Signal(name=n) for n in ("moved", "taken", "ended", "given", "left")
        )
        m.d.comb += [
            moved.eq(i.valid & i.ready & ~first),
            taken.eq(moved & ~dropping),
            ended.eq(taken & (i.payload.last | (place == P.length - 1))),
            given.eq(o.valid & o.ready & ~first),
            left.eq(given & o.payload.last),
        ]
        with m.If(taken):
            m.d.sync += [
                place.eq(Mux(ended, 0, place + 1)),
                dropping.eq(ended & ~i.payload.last),
            ]
        with m.Elif(moved & i.payload.last):
            m.d.sync += dropping.eq(0)

        ins, complete, outs, lefts = (Signal(6, name=n) for n in ("ins", "complete", "outs", "ls"))
        m.d.sync += [ins.eq(ins + taken), outs.eq(outs + given), lefts.eq(lefts + left)]
        with m.If(ended):
            m.d.sync += complete.eq(ins + 1)

        number = Signal(6)
        m.d.comb += number.eq(AnyConst(6))
        x, last, cut = Signal(16), Signal(), Signal()
        with m.If(taken & (ins == number)):
            m.d.sync += [x.eq(i.payload.x), last.eq(ended), cut.eq(ended & ~i.payload.last)]
        waiting, refused = Signal(6), Signal(6)
        m.d.sync += waiting.eq(Mux((outs != complete) & ~o.valid, waiting + 1, 0))
        idle = (outs == complete) & i.valid & command.valid & ~i.ready
        m.d.sync += refused.eq(Mux(idle, refused + 1, 0))

        with m.If(~first):
            m.d.comb += [
                Assert(~moved | command.valid, "an element without a command"),
                Assert(
                    (command.valid & command.ready) == (moved & i.payload.last),
                    "a command in between",
                ),
                Assert(~o.valid | (outs != complete), "an element from nowhere"),
                Assert(waiting < SLOWEST, "an element is stuck"),
                Assert(refused < SLOWEST, "the input is stuck"),
                Assert(~dropping | i.ready | ~command.valid, "the rest of a vector waits"),
            ]
            with m.If(o.valid & (outs == number)):
                m.d.comb += [
                    Assert(o.payload.y == x, "another element"),
                    Assert(o.payload.last == last, "the vector's end in another place"),
                    Assert(o.payload.invalid | ~cut, "a vector cut in silence"),
                ]
        m.d.comb += Cover(left & (lefts == 1) & (outs == number) & cut, "a cut vector, the second")
        return m


@pytest.mark.parametrize("mode", suite_takes(["cover"], ["bmc", "cover"]))
@pytest.mark.parametrize(
    "p", [P, pytest.param(TWO, marks=pytest.mark.campaign)], ids=["one", "two"]
)
def test_elements(plain, mode, p):
    spec = ElementsSpec(SpecialFunctionUnit(p))
    # With two vectors, two more cycles take the solver four times as long.
    depth = DEPTH if p.vectors == 1 or mode == "cover" else 20
    prove_block(spec, f"sfu_{p.vectors}_{mode}", mode, depth=depth, solver="yices", seconds=500)


class RoomSpec(Elaboratable):
    """What is asked of the two queues, and the rules of the output stream."""

    def __init__(self, dut):
        self._dut = dut

    def elaborate(self, platform):
        m = Module()
        dut = self._dut
        first, internals = surround(m, dut)
        signal = internals.signal
        flags = [signal(f"flags_{n + 1}")[0] for n in range(LATENCY)]
        level, free = signal("results.fifo.level"), signal("credits.free")
        held, drained = signal("softmax.tile.fifo.level"), signal("softmax.drainable")
        number = signal("softmax.filled")
        queues = (("results.fifo", LATENCY + 2), ("softmax.tile.fifo", P.tile + 1))
        for fifo, depth in queues:
            produce, consume = signal(f"{fifo}.produce"), signal(f"{fifo}.consume")
            end = consume + signal(f"{fifo}.level")
            with m.If(~first):
                m.d.comb += [
                    Assert((produce < depth) & (consume < depth)),
                    Assert(produce == Mux(end >= depth, end - depth, end)),
                ]
        with m.If(~first):
            m.d.comb += [
                Assert(level + free + sum(flags) == LATENCY + 2, "credits and results"),
                Assert(~flags[-1] | (level < LATENCY + 2), "a result without room"),
                Assert(held == drained + number, "scores in the tile"),
                Assert(drained + number <= P.tile, "scores of other tiles"),
                Assert(number < P.tile, "a tile too full"),
            ]
        m.d.comb += Cover(~first & dut.o.valid & ~dut.o.ready & (level > 1), "a stalled result")
        return m


@pytest.mark.parametrize(("mode", "depth"), [("prove", 2), ("cover", 26)])
def test_rules_and_room(plain, mode, depth):
    spec = RoomSpec(SpecialFunctionUnit(P))
    prove_block(spec, f"sfu_room_{mode}", mode, depth=depth, solver="yices", seconds=300)


class GenerousCounter(CreditCounter):
    """Lends one more than there is."""

    def __init__(self, parameters: CreditCounterParameters):
        super().__init__(CreditCounterParameters(parameters.credits + 1))


FAULTS = {
    "keeps_on_collecting": ("& vectors.i.ready &", "&", "a queue without room"),
    "never_ends": (
        "finished.eq(read & (reading == vectors.o.payload.last))",
        "finished.eq(0)",
        "in another place",
    ),
    "another_slot": ("read_slot.eq(Mux(", "slot.eq(Mux(", "another element"),
    "command_too_early": (
        "command.ready.eq(i.valid & i.ready & i.payload.last)",
        "command.ready.eq(i.valid & i.ready)",
        "a command in between",
    ),
    "cut_in_silence": ("payload.cut.eq(~i.payload.last)", "payload.cut.eq(0)", "cut in silence"),
}


@pytest.mark.campaign
@pytest.mark.parametrize("fault", FAULTS)
def test_injected_fault_is_found(plain, monkeypatch, fault):
    """With one line of the source replaced, the assertion meant for it fails."""
    line, instead, found_by = FAULTS[fault]
    module = with_fault(special_function_unit, line, instead)
    for name, part in (("Normalisation", PlainNormalisation), ("FloatAdd", NoSum)):
        monkeypatch.setattr(module, name, part)
    monkeypatch.setattr(module, "MomentReduction", PlainMoments)
    spec = ElementsSpec(
        module.SpecialFunctionUnit(module.SpecialFunctionUnitParameters(P.length, P.tile, 2))
    )
    find_fault(spec, f"sfu_{fault}", found_by, depth=DEPTH, solver="yices", seconds=300)


@pytest.mark.campaign
def test_one_credit_too_many_is_caught(plain, monkeypatch):
    monkeypatch.setattr(special_function_unit, "CreditCounter", GenerousCounter)
    spec = RoomSpec(SpecialFunctionUnit(P))
    find_fault(
        spec, "sfu_credits", "credits and results", "prove", depth=2, solver="yices", seconds=300
    )
