"""Proofs of joined, forked, merged and routed streams: rules of streams, every beat once."""

import pytest
from amaranth.hdl import Assert, Cat, Elaboratable, Module, Signal
from amaranth.lib import data, stream

from hw.component import Component
from hw.ports import Ports, wire_in, wire_out
from hw.stream import combine
from sim.checks.formal.specs import surround
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

BEAT = data.StructLayout({"x": 2, "to": 2})


class Connected(Component[None]):
    """Two sources and two sinks, connected by one of the functions.

    kind
        Its name.
    functions
        The module that has it, or one with a fault.
    """

    def __init__(self, kind: str, functions=combine):
        self._kind = kind
        self._functions = functions
        super().__init__()

    def ports(self) -> Ports:
        port = stream.Signature(BEAT)
        return {"a": wire_in(port), "b": wire_in(port), "x": wire_out(port), "y": wire_out(port)}

    def elaborate(self, platform):
        m = Module()
        f, a, b, x, y = self._functions, self.a, self.b, self.x, self.y
        if self._kind == "join":
            f.join(m, [a, b], [x])
            m.d.comb += [x.payload.x.eq(a.payload.x), x.payload.to.eq(b.payload.to)]
        elif self._kind == "fork":
            f.fork(m, "a", a, [x, y])
        elif self._kind == "fork_to":
            f.fork(m, "a", a, [x, y], [a.payload.to[0], a.payload.to[1]])
        elif self._kind == "merge":
            is_a = f.merge(m, a, b, x)
            m.d.comb += x.payload.eq(b.payload)
            with m.If(is_a):
                m.d.comb += x.payload.eq(a.payload)
        elif self._kind == "route":
            f.route(m, a, a.payload.to, [x, y])
        elif self._kind == "collect":
            chosen = Signal()
            with m.If(x.valid & x.ready):
                m.d.sync += chosen.eq(~chosen)
            f.collect(m, [a, b], chosen, x)
        return m


class ConnectedSpec(Elaboratable):
    """Sources offer any beats, sinks stall at any time; each beat leaves once, unchanged."""

    def __init__(self, dut: Connected, kind: str):
        self._dut, self._kind = dut, kind

    def elaborate(self, platform):
        m = Module()
        first, self._internals = surround(m, self._dut)
        a, b, x, y = self._dut.a, self._dut.b, self._dut.x, self._dut.y
        moved = [port.valid & port.ready & ~first for port in (a, b, x, y)]
        with m.If(~first):
            getattr(self, f"_{self._kind}")(m, *moved)
        return m

    def _join(self, m, a, b, x, y):
        m.d.comb += Assert((a == b) & (a == x), "parts of a beat apart")

    def _fork(self, m, a, b, x, y, wanted=(1, 1)):
        for n, (sent, wants) in enumerate(zip((x, y), wanted, strict=True)):
            has = Signal(name=f"has_{n}")  # the sink has the beat that the source offers
            m.d.sync += has.eq(~a & (has | sent))
            m.d.comb += [
                Assert(~(sent & has), "a beat twice"),
                Assert(~sent | (self._dut.a.valid & wants), "a beat from nowhere"),
                Assert(~a | has | sent | ~wants, "a beat lost"),
                Assert(~has | (self._dut.a.valid & wants)),
                Assert(has == self._internals.signal(f"a_delivered_{n}")),
            ]

    def _fork_to(self, m, a, b, x, y):
        to = self._dut.a.payload.to
        self._fork(m, a, b, x, y, (to[0], to[1]))

    def _merge(self, m, a, b, x, y):
        m.d.comb += [
            Assert(a + b == x, "a beat twice or lost"),
            Assert(~(a & b), "two beats at once"),
        ]

    def _collect(self, m, a, b, x, y):
        self._merge(m, a, b, x, y)

    def _route(self, m, a, b, x, y):
        to = self._dut.a.payload.to
        m.d.comb += Assert(Cat(x, y) == Cat(a & (to == 0), a & (to == 1)), "to another sink")


KINDS = ("join", "fork", "fork_to", "merge", "route", "collect")


@pytest.mark.parametrize("kind", KINDS)
def test_proof(kind):
    prove_block(ConnectedSpec(Connected(kind), kind), f"combine_{kind}", depth=2)


FAULTS = {
    "join": ("others = valids[:n] + valids[n + 1 :]", "others = []", "parts of a beat apart"),
    "fork": ("sink.valid.eq(valid & ~had)", "sink.valid.eq(valid)", "a beat twice"),
    "merge": ("chosen.eq(first.valid & ~waiting)", "chosen.eq(first.valid)", "payload changed"),
    "collect": ("sink.ready & (number == n)", "sink.ready", "two beats at once|a beat twice"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_injected_fault_is_found(kind):
    line, instead, found_by = FAULTS[kind]
    faulty = Connected(kind, with_fault(combine, line, instead))
    spec = ConnectedSpec(faulty, kind)
    find_fault(spec, f"combine_{kind}_fault", found_by, depth=6)
