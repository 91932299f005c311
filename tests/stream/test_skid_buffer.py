"""Unbounded proof of the skid buffer."""

import pytest
from amaranth.hdl import Assert, Fragment, Mux

from hw.stream.skid_buffer import SkidBuffer, SkidBufferParameters
from sim.checks.formal.proof import prove
from sim.checks.formal.specs import StreamSpec
from tests.support.formal import find_fault, prove_block


def invariant(m, spec, internals):
    """The oldest beat is at the output; a second one, if any, is in the skid register."""
    o, ready, skid = spec.dut.o, internals.signal("ready"), internals.signal("skid")
    m.d.comb += [
        Assert(spec.held == o.valid + ~ready),
        Assert(o.valid | ready),
        Assert(~spec.following | (spec.ahead < spec.held)),
    ]
    with m.If(spec.following):
        m.d.comb += Assert(Mux(spec.ahead == 0, o.payload, skid) == spec.value)


def specification(dut, invariant=None):
    return StreamSpec(dut(SkidBufferParameters(width=2)), 2, invariant=invariant)


def test_proof():
    prove_block(specification(SkidBuffer, invariant), "skid_buffer", depth=2)


def test_cover():
    prove_block(specification(SkidBuffer), "skid_buffer", "cover", depth=8)


class NoSkid(SkidBuffer):
    """A skid buffer that overwrites the output instead of writing the skid register."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.i.ready & self.i.valid):
            m.d.sync += self.o.payload.eq(self.i.payload)
        return m


class SlowToRefuse(SkidBuffer):
    """A skid buffer that accepts one beat more than it has room for."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.i.ready.eq(1)
        return m


@pytest.mark.parametrize(
    "dut, found_by",
    [(NoSkid, "a stalled payload changed"), (SlowToRefuse, "more beats than capacity")],
)
def test_injected_fault_is_found(dut, found_by):
    find_fault(specification(dut), f"skid_buffer_{dut.__name__}", found_by, depth=8)


def test_without_invariants_the_induction_stays_open():
    result = prove(specification(SkidBuffer), "skid_buffer_open", "prove", depth=3)
    assert result.status == "UNKNOWN", result


def test_handshake_comes_straight_from_registers():
    """Nothing but a copy of a register drives `i.ready`, and only registers drive `o`."""
    statements = Fragment.get(SkidBuffer(SkidBufferParameters()), None).statements
    driven = {domain: {s.name for s in st._lhs_signals()} for domain, st in statements.items()}
    assert driven["comb"] == {"i__ready"}
    assert driven["sync"] == {"ready", "skid", "o__valid", "o__payload"}
    (copy,) = statements["comb"]
    assert copy.rhs.name == "ready"
