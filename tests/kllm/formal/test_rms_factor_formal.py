"""Vectors through the RMS factor unit: one factor each, of its command, in time; unbounded proof.

Properties of vectors, not of their factors, which simulation compares: counting and adding are left
out, and the root is of an arbitrary number in every cycle. Beats, lengths of vectors, commands,
scales and stalls are arbitrary. Registers power up with any value; reset is high in the first
cycle.
"""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Cover, Elaboratable, Module, Mux, Signal

from hw.arith.float_multiply_add import FloatMultiplyAdd
from hw.kllm import inverse_rms, rms_factor
from hw.kllm.inverse_rms import STEPS, InverseRms
from hw.kllm.outlier_split import ONE
from hw.kllm.rms_factor import RmsFactor, RmsFactorParameters
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block
from tests.support.kllm.column_invariants import columns_in, stages_of
from tests.support.kllm.no_arithmetic import leave_out_arithmetic

SIZES = {"one_group": RmsFactorParameters(2, 2, 1), "two_groups": RmsFactorParameters(2, 3, 1)}


class AnyNumber(FloatMultiplyAdd):
    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(AnySeq(32))
        return m


@pytest.fixture(autouse=True)
def no_arithmetic(monkeypatch):
    monkeypatch.setattr(inverse_rms, "FloatMultiplyAdd", AnyNumber)
    monkeypatch.setattr(InverseRms, "_root", lambda self, m, mean: (mean[:16], mean[16], mean[17]))
    leave_out_arithmetic(monkeypatch)


class FactorSpec(Elaboratable):
    """A vector's indices and pairs come to an end, its order and scale come; then goes its token.

    inductive
        Whether to assert what ties the registers to that, and that no vector is stuck.
    """

    def __init__(self, dut: RmsFactor, inductive: bool = True):
        self._dut, self._inductive = dut, inductive

    def elaborate(self, platform):
        m = Module()
        dut = self._dut
        first, internals = surround(m, dut)

        def moves(name: str, port, only=1) -> Signal:
            moving = Signal(name=name)
            m.d.comb += moving.eq(port.valid & port.ready & ~first & only)
            return moving

        ended = moves("ended", dut.indices, dut.indices.payload.last)
        paired = moves("paired", dut.pairs, dut.pairs.payload.last)
        token = moves("token", dut.o)
        ordered, scaled = moves("ordered", dut.command), moves("scaled", dut.scale)
        vectors, pairs = Signal(5), Signal(5)  # whole ones inside
        m.d.sync += [vectors.eq(vectors + ended - token), pairs.eq(pairs + paired - token)]
        o = dut.o.payload
        there = (vectors != 0) & (pairs != 0) & dut.command.valid & dut.scale.valid
        with m.If(~first):
            m.d.comb += [
                Assert(~dut.o.valid | there, "a token before its vector"),
                Assert((ordered == token) & (scaled == token), "an order or a scale lost"),
                Assert(dut.indices.ready | (vectors != 0), "indices refused with room"),
                Assert(dut.pairs.ready | (pairs != 0), "outliers refused with room"),
            ]
            with m.If(dut.o.valid):
                plain = dut.command.payload.normalise | (o.r == ONE)
                m.d.comb += Assert((o.s_a == dut.scale.payload) & plain, "another token")
        self._own_order(m, first, internals, token)
        if self._inductive:
            with m.If(~first):
                left = self._invariant(m, first, internals, vectors, pairs)
            before, works = Signal.like(left), Signal()
            m.d.sync += [before.eq(left), works.eq(there & ~dut.o.valid & ~first)]
            with m.If(works & ~first):
                m.d.comb += Assert(left < before, "a vector is stuck")
        m.d.comb += Cover(token & (vectors > 1) & dut.command.payload.normalise, "with one behind")
        return m

    def _own_order(self, m, first, internals, token):
        """Counts are multiplied while the order of their vector is the one offered."""
        counted = internals.signal("counted")
        summed = Signal(2)  # vectors whose counts are all multiplied, less tokens
        final = counted & internals.signal("counter.busy") & self._last(internals)
        m.d.sync += summed.eq(summed + (final & ~first) - token)
        with m.If(~first):
            m.d.comb += [
                Assert(~counted | (summed == 0), "another vector's order"),
                Assert(~counted | self._dut.command.valid, "no order"),
                Assert(internals.signal("reduced") == summed),
            ]

    def _last(self, internals):
        groups = self._dut.parameters.column_counter.groups
        return internals.signal("counter.group") == groups - 1 if groups > 1 else 1

    def _invariant(self, m, first, internals, vectors, pairs) -> Signal:
        """Ties registers to the numbers of vectors; cycles until the token is offered, at most."""
        dut, p = self._dut, self._dut.parameters
        busy, reduced = internals.signal("counter.busy"), internals.signal("reduced")
        stages, groups = p.column_counter.stages, p.column_counter.groups
        valid, last = internals.signal("counter.valid"), internals.signal("counter.ends")
        ends = [valid[n] & last[n] for n in range(stages)]
        # All groups of every vector are output.
        m.d.comb += Assert(~busy | (internals.signal("counter.final") == groups - 1))
        for n, end in enumerate(ends):
            m.d.comb += Assert(~end | (internals.signal(f"counter.groups_{n}") == groups))
        waits_order, waits_scale = Signal(), Signal()
        m.d.sync += [
            waits_order.eq(dut.command.valid & ~dut.command.ready & ~first),
            waits_scale.eq(dut.scale.valid & ~dut.scale.ready & ~first),
        ]
        group = 0
        if groups > 1:
            group = internals.signal("group")
            m.d.comb += [
                Assert(internals.signal("counter.group") == group),
                Assert((group == 0) | busy & waits_order & ~reduced),
            ]
        most = [part.fixed_sum.columns for part in (p.reduction, p.sparse_path)]
        ranks = ["valid_0"], ["last_0"]
        more = ["valid_0", "valid_1"], ["last_0", "last_1"]
        reducing = columns_in(m, internals, "reduction", most[0], *ranks)
        squaring = columns_in(m, internals, "squares", most[1], *more)
        joined, started = internals.signal("joined"), internals.signal("started")
        cycle, given = (internals.signal(f"inverse_root.{n}") for n in ("cycle", "o__valid"))
        normalise, steps = dut.command.payload.normalise, STEPS * p.inverse_rms.stages
        m.d.comb += [
            Assert(reducing == reduced),
            Assert(vectors == sum(ends) + busy + reduced),
            Assert(squaring == pairs),
            Assert(~reduced | waits_order),
            Assert(started == given),
            Assert(~started | joined & waits_order & waits_scale & normalise),
            Assert((cycle == 0) | joined & waits_order & waits_scale & normalise & ~started),
            Assert(cycle <= steps),
        ]
        # How far the foremost is from where both sums wait.
        dense, sparse, factor, left = (Signal(6, name=f"{n}_left") for n in "dsft")
        levels = [internals.signal(f"{n}.sum.queue.fifo.level") for n in ("reduction", "squares")]
        far = groups + 5
        for place, end in enumerate(ends):
            with m.If(end):
                m.d.comb += dense.eq(far + stages - 1 - place)
        with m.If(busy):
            m.d.comb += dense.eq(far - 1 - group)
        for place, end in enumerate(stages_of(internals, "reduction", *ranks)):
            with m.If(end):
                m.d.comb += dense.eq(4 - place)
        with m.If(levels[0] != 0):
            m.d.comb += dense.eq(0)
        for place, end in enumerate(stages_of(internals, "squares", *more)):
            with m.If(end):
                m.d.comb += sparse.eq(5 - place)
        with m.If(levels[1] != 0):
            m.d.comb += sparse.eq(0)
        m.d.comb += [
            factor.eq(Mux(normalise & ~started, steps + 1 - cycle, 0)),
            left.eq(Mux(dense > sparse, dense, sparse) + factor),
        ]
        return left


@pytest.mark.parametrize("size", SIZES)
def test_proof(size):
    spec = FactorSpec(RmsFactor(SIZES[size]))
    prove_block(spec, f"rms_factor_{size}", depth=2, seconds=300)


def test_cover():
    spec = FactorSpec(RmsFactor(SIZES["one_group"]), inductive=False)
    prove_block(spec, "rms_factor", "cover", depth=22, solver="yices", seconds=300)


FAULTS = {
    "any_order": ("self.command.valid & ~reduced", "self.command.valid", "another vector's order"),
    "early": ("reduction.o.valid & squares.o.valid", "reduction.o.valid", "before its vector"),
    "scale_kept": (
        "(reduction.o, squares.o, self.scale, self.command)",
        "(reduction.o, squares.o, self.command)",
        "a scale lost",
    ),
}


test_injected_fault_is_found = fault_test(
    rms_factor,
    FAULTS,
    lambda m: FactorSpec(m.RmsFactor(m.RmsFactorParameters(2, 2, 1)), inductive=False),
    depth=14,
    solver="yices",
)
