"""Unbounded proof of the skid buffer."""

import pytest
from amaranth.hdl import Assert, Fragment, Mux

from hw.parameters import ParameterError
from hw.stream.skid_buffer import SkidBuffer, SkidBufferParameters
from sim.checks.formal.proof import prove
from sim.checks.formal.specs import StreamSpec


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
    result = prove(specification(SkidBuffer, invariant), "skid_buffer", "prove", depth=2)
    assert result.status == "PASS", result


def test_cover():
    result = prove(specification(SkidBuffer), "skid_buffer", "cover", depth=8)
    assert result.status == "PASS", result


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
    "dut, caught_by",
    [(NoSkid, "a stalled payload changed"), (SlowToRefuse, "more beats than capacity")],
)
def test_seeded_bug_is_caught(dut, caught_by):
    result = prove(specification(dut), f"skid_buffer_{dut.__name__}", "bmc", depth=8)
    assert result.status == "FAIL", result
    assert any(caught_by in failure for failure in result.failures), result


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


def test_parameters():
    with pytest.raises(ParameterError, match=r"^width must be at least 1, not 0$"):
        SkidBufferParameters(width=0)
