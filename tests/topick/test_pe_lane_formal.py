"""The guarantee, proved on a lane of two elements of four bits: no token is pruned wrongly.

Query, scale, threshold, the key of one arbitrary token, all other tokens and their chunks, the
denominators, every latency, order of arrival and stall are arbitrary. If the token is pruned, its
exact score s, of all bits of its key, is so small that

    log2(2^(c s)) + (-log2 threshold) < log_denominator,

and its share of the denominator stands for at most 2^(c s). As the denominator is made of such
shares, of which no token has two, it is at most the exact one, and so the token's exact
probability is below the threshold.
"""

import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import (
    Assert,
    Assume,
    Cat,
    Const,
    Cover,
    Elaboratable,
    Fragment,
    Module,
    Mux,
    Signal,
    signed,
)

from hw.topick import pe_lane, rpdu
from hw.topick.margin_generator import MarginGenerator, MarginGeneratorParameters
from hw.topick.pe_lane import PeLane, PeLaneParameters
from sim.formal import prove
from sim.formal_specs import Internals, drive, reset_first, watch
from tests.seeded import with_fault

SIZES = {"d": 2, "bits": 4, "chunk_bits": 2, "scale_bits": 3, "shift_bits": 1, "width": 9}
SMALL = PeLaneParameters(
    **SIZES, fraction=2, precision=2, limb=2, threshold_bits=4, entries=2, token_bits=1
)
DEPTH = 26


class GuaranteeSpec(Elaboratable):
    def __init__(self, dut: PeLane):
        self.dut = dut

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        m.submodules.dut = fragment = Fragment.get(dut, None)
        internals = Internals(fragment)
        first = reset_first(m)
        live = ~first
        for port in (dut.job, dut.token, dut.response, dut.log_denominator):
            drive(m, first, port)
        for port in (dut.request, dut.difference, dut.kept):
            watch(m, first, port)
        m.d.comb += [dut.value.valid.eq(0), dut.o.ready.eq(1)]

        token = Signal(p.token_bits)
        key = [Signal(signed(p.bits), name=f"key_{n}") for n in range(p.d)]
        m.d.comb += [token.eq(AnyConst(p.token_bits)), Cat(key).eq(AnyConst(p.d * p.bits))]
        self._assume_job(m)

        # The token is asked for once in a head, and its chunks come when asked for.
        begun, away, held = Signal(), Signal(), Signal()
        asked = Signal(p.tag_layout)
        begins = dut.token.valid & dut.token.ready & live & (dut.token.payload == token)
        m.d.comb += Assume(~(dut.token.valid & (dut.token.payload == token)) | ~begun)
        with m.If(dut.job.valid & dut.job.ready & live):
            m.d.sync += begun.eq(0)
        with m.Elif(begins):
            m.d.sync += begun.eq(1)
        tag = dut.response.payload.tag
        mine = tag.token == token
        with m.If(
            dut.request.valid & dut.request.ready & live & (dut.request.payload.token == token)
        ):
            m.d.sync += [away.eq(1), held.eq(1), asked.eq(dut.request.payload)]
            m.d.comb += [
                Assert(~away, "asked for twice"),
                Assert(held == (dut.request.payload.chunk != 0), "not from the first chunk on"),
            ]
        with m.Elif(dut.response.valid & dut.response.ready & live & mine):
            m.d.sync += away.eq(0)
        bits = Signal(p.chunk_layout)
        with m.Switch(tag.chunk):
            for chunk in range(p.chunks):
                with m.Case(chunk):
                    low = p.unknown(chunk)
                    m.d.comb += Cat(bits).eq(Cat(k[low : low + p.chunk_bits] for k in key))
        m.d.comb += [
            Assume(~(dut.response.valid & mine) | (away & (tag == asked))),
            Assume(~(dut.response.valid & mine) | (dut.response.payload.data == bits)),
            Assume(~(dut.response.valid & ~mine) | ~held | (tag.slot != asked.slot)),
        ]

        # The decision.
        job = Signal(p.job_layout)
        tag_t = Signal(p.tag_layout)
        m.d.comb += [
            job.as_value().eq(internals.signal("job")),
            tag_t.as_value().eq(internals.signal("tag_t")),
        ]
        exact = Signal(signed(p.score_bits))
        scaled = Signal(signed(p.score_bits + p.scale_bits + 1))
        m.d.comb += [
            exact.eq(sum(a * b for a, b in zip(job.q, key, strict=True))),
            scaled.eq(exact * job.mantissa),
        ]
        deciding, prunes, keeps = Signal(), Signal(), Signal()
        log2 = dut.log_denominator.payload.log2
        lower = Signal(signed(p.width + 2))
        places = p.base + job.shift
        m.d.comb += [
            deciding.eq(
                dut.log_denominator.valid
                & dut.log_denominator.ready
                & live
                & (tag_t.token == token)
            ),
            prunes.eq(deciding & internals.signal("rpdu.prune")),
            keeps.eq(deciding & internals.signal("rpdu.keep")),
            lower.eq(-internals.signal("pec.minus")),
        ]
        with m.If(prunes | keeps):
            m.d.sync += held.eq(0)
        with m.If(deciding):
            m.d.comb += Assert(lower << places <= scaled, "its term is too large")
        with m.If(prunes):
            m.d.comb += [
                Assert(dut.log_denominator.payload.known, "pruned without a denominator"),
                Assert(scaled + (job.threshold << places) < log2 << places, "pruned wrongly"),
            ]
        last = tag_t.chunk == p.chunks - 1
        m.d.comb += [
            Cover(prunes & last & (exact > 0), "pruned at its last chunk"),
            Cover(prunes & ~last, "pruned at its first chunk"),
            Cover(keeps & (exact < 0), "kept"),
        ]
        return m

    def _assume_job(self, m: Module) -> None:
        """Margins that are not too small, as the margin generator's, and at least a token."""
        p, job = self.dut.parameters, self.dut.job.payload
        m.d.comb += Assume(job.tokens != 0)
        for margins, sign in ((job.most, 1), (job.least, -1)):
            total = sum(Mux(sign * q > 0, sign * q, 0) for q in job.q)
            for chunk, margin in enumerate(margins):
                reach = total * job.mantissa * ((1 << p.unknown(chunk)) - 1)
                m.d.comb += Assume(margin << (p.base + job.shift) >= reach)


@pytest.mark.campaign
def test_guarantee():
    result = prove(GuaranteeSpec(PeLane(SMALL)), "pe_lane", "bmc", depth=DEPTH, seconds=560)
    assert result.status == "PASS", result


@pytest.mark.campaign
def test_cover():
    result = prove(GuaranteeSpec(PeLane(SMALL)), "pe_lane", "cover", depth=DEPTH, seconds=560)
    assert result.status == "PASS", result


class MarginSpec(Elaboratable):
    """Margins are the least that are not below c M_max and -c M_min."""

    def __init__(self, dut: MarginGenerator):
        self.dut = dut

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        m.submodules.dut = dut
        m.d.comb += [
            Cat(dut.q).eq(AnyConst(p.d * p.bits)),
            dut.mantissa.eq(AnyConst(p.scale_bits)),
            dut.shift.eq(AnyConst(p.shift_bits)),
        ]
        places = p.base + dut.shift
        for margins, sign in ((dut.most, 1), (dut.least, -1)):
            total = sum(Mux(sign * q > 0, sign * q, 0) for q in dut.q)
            for chunk, margin in enumerate(margins):
                reach = total * dut.mantissa * ((1 << p.unknown(chunk)) - 1)
                m.d.comb += [
                    Assert(margin << places >= reach, "too small"),
                    Assert((margin << places) - reach < Const(1) << places, "too large"),
                    Cover((margin == 5) & (dut.shift == 1)),
                ]
        return m


def test_margins():
    dut = MarginGenerator(MarginGeneratorParameters(**SIZES))
    for mode in ("bmc", "cover"):
        result = prove(MarginSpec(dut), "margin_generator", mode, depth=1)
        assert result.status == "PASS", result


FAULTS = {
    "equal_too": (rpdu, "upper < self.log_denominator", "upper <= self.log_denominator"),
    "unknown_too": (rpdu, "self.known & (upper", "(upper"),
    "signs": (pe_lane, "Cat(chunk, chunk[-1] & first)", "Cat(chunk, chunk[-1])"),
    "old_score": (pe_lane, "(chunk.previous << p.chunk_bits)", "(chunk.previous << 1)"),
    "wrong_margin": (pe_lane, "most.eq(job.most[number])", "most.eq(job.least[number])"),
}


@pytest.mark.campaign
@pytest.mark.parametrize("fault", FAULTS)
def test_seeded_fault_is_caught(monkeypatch, fault):
    module, line, instead = FAULTS[fault]
    faulty = with_fault(module, line, instead)
    lane = faulty if module is pe_lane else pe_lane
    if module is rpdu:
        monkeypatch.setattr(pe_lane, "Rpdu", faulty.Rpdu)
    spec = GuaranteeSpec(lane.PeLane(SMALL))
    result = prove(spec, f"pe_lane_{fault}", "bmc", depth=DEPTH, seconds=560)
    assert result.status == "FAIL", result
