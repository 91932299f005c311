"""The clustering unit with one midpoint and one lane: order and indices of beats, unbounded proof.

For any midpoints, scales, values and stalls: every beat is output once, in order, with the index
that IEEE 754's order of the value and the rounded product gives. The multiplier has a proof of its
own; here the specification contains the same one.
"""

import pytest
from amaranth.hdl import Assert, Assume, Cat, Cover, Elaboratable, Module, Mux, Signal

from hw.arith.bits.order_key import to_key
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.kllm import clustering_unit
from hw.kllm.clustering_unit import NEVER_BELOW, ClusteringUnit, ClusteringUnitParameters
from sim.checks.formal.specs import surround
from tests.support.campaign import suite_takes
from tests.support.formal import fault_test, prove_block
from tests.support.kllm.orizuru_spec import is_nan, is_zero, less

ONE_OF_EACH = ClusteringUnitParameters(activation_bits=1, lanes=1)


class ClusteringSpec(Elaboratable):
    """Scales become bounds, which wait in order; values are compared with the oldest bound.

    Three cycles after a bound is made it is in use, unless a vector before it is; a scale is taken
    at once unless the bound before it waits, for at most as long.
    """

    def __init__(self, dut, invariant=True, multiplier=FloatMultiply):
        self.dut, self._invariant, self._multiplier = dut, invariant, multiplier

    def elaborate(self, platform):
        m = Module()
        dut = self.dut
        first, internals = surround(m, dut)
        m.submodules.multiply = multiply = self._multiplier(FloatMultiplyParameters())
        live = ~first
        scale, x, o = dut.scale, dut.x, dut.o

        table = Signal(16)
        loaded = Signal()
        bounds = [Signal(16, name=f"bound_{n}") for n in range(3)]
        count = Signal(range(4))
        push = Signal()
        take = Signal()
        pop = Signal()
        midpoint = Signal(16)
        m.d.comb += [
            push.eq(scale.valid & scale.ready & live),
            take.eq(x.valid & x.ready & live),
            pop.eq(take & x.payload.last),
            midpoint.eq(Mux(scale.payload.load, dut.midpoints.payload, table)),
            multiply.a.eq(midpoint),
            multiply.b.eq(Mux(is_zero(scale.payload.scale), 0x3C00, scale.payload.scale)),
            Assume(first | ~scale.valid | scale.payload.load | loaded),
        ]
        with m.If(push):
            m.d.sync += [table.eq(midpoint), loaded.eq(1)]
        m.d.sync += count.eq(count + push - pop)
        for n, bound in enumerate(bounds[:-1]):
            with m.If(push & (count - pop == n)):
                m.d.sync += bound.eq(multiply.o)
            with m.Elif(pop):
                m.d.sync += bound.eq(bounds[n + 1])

        oldest, value = bounds[0], x.payload.values[0]
        expected = Signal(o.payload.shape())
        standing = Signal()
        with m.If(take):
            m.d.sync += [
                standing.eq(1),
                expected.index[0].eq(~is_nan(oldest) & ~is_nan(value) & less(oldest, value)),
                expected.keep.eq(x.payload.keep),
                expected.last.eq(x.payload.last),
            ]
        with m.Elif(o.ready):
            m.d.sync += standing.eq(0)

        waits = Signal(range(5))  # cycles for which the oldest bound has not been used
        waiting = (count != 0) & ~x.ready & (~o.valid | o.ready) & live
        m.d.sync += waits.eq(Mux(waiting, waits + 1, 0))
        taken_with = ~scale.payload.load | (dut.midpoints.valid & dut.midpoints.ready)
        with m.If(live):
            m.d.comb += [
                Assert(o.valid == standing, "a beat lost or from nowhere"),
                Assert(~standing | (o.payload == expected), "wrong index or flags"),
                Assert(~take | (count != 0), "values taken without a scale"),
                Assert(count <= 2, "too many scales taken"),
                Assert(~push | taken_with, "a scale taken without its midpoint"),
                Assert(
                    (dut.midpoints.valid & dut.midpoints.ready) == (push & scale.payload.load),
                    "a midpoint taken without its scale",
                ),
                Assert(waits < 3, "a bound is stuck"),
            ]
            if self._invariant:
                self._invariants(m, internals, bounds, count, table, loaded, waits)
        m.d.comb += [
            Cover(live & (count == 2) & o.valid & ~o.ready & o.payload.index[0], "all in use"),
            Cover(live & pop & (count == 2) & (oldest == 0x3C01), "from vector to vector"),
        ]
        return m

    def _invariants(self, m, internals, bounds, count, table, loaded, waits):
        """Where the bounds are, and in which form."""
        stepped, prepared = internals.signal("stepped"), internals.signal("prepared")
        clustering = internals.signal("clustering")
        newest = Mux(clustering, bounds[1], bounds[0])

        def key(bound):
            return Mux(is_nan(bound), NEVER_BELOW, to_key(bound))

        m.d.comb += [
            Assert(internals.signal("number") == 0),
            Assert(internals.signal("finished") == stepped),
            Assert(~(stepped & prepared)),
            Assert(count == stepped + prepared + clustering),
            Assert(~loaded | (internals.signal("midpoint_0") == table)),
            Assert(loaded | (count == 0)),
            Assert(~stepped | (internals.signal("multiply.o") == newest)),
            Assert(~prepared | (internals.signal("prepared_0") == key(newest))),
            Assert(~clustering | (internals.signal("key_0") == key(bounds[0]))),
            Assert(~stepped | clustering | (waits == 0)),
            Assert(~prepared | clustering | (waits <= 1)),
            Assert(~clustering | (waits <= 2)),
        ]


class PlainMultiply(FloatMultiply):
    """Any function of both operands does for the claims: which bits they are is not among them."""

    def elaborate(self, platform):
        m = Module()
        product = Cat(self.a[1:], self.a[0]) ^ self.b
        if not self.parameters.stages:
            m.d.comb += self.o.eq(product)
        else:
            with m.If(self.enable):
                m.d.sync += self.o.eq(product)
        return m


@pytest.mark.parametrize("multiplier", suite_takes([PlainMultiply], [PlainMultiply, FloatMultiply]))
def test_proof(monkeypatch, multiplier):
    monkeypatch.setattr(clustering_unit, "FloatMultiply", multiplier)
    spec = ClusteringSpec(ClusteringUnit(ONE_OF_EACH), multiplier=multiplier)
    prove_block(spec, f"clustering_{multiplier.__name__}", depth=1, seconds=300)


@pytest.mark.campaign
def test_cover():
    spec = ClusteringSpec(ClusteringUnit(ONE_OF_EACH), invariant=False)
    prove_block(spec, "clustering_unit", "cover", depth=12, seconds=300)


FAULTS = {
    "equal_is_above": ("found.eq(key > midpoint)", "found.eq(key >= midpoint)", "wrong index"),
    "zero_is_no_scale": ("Mux(is_zero, ONE, scale.payload.scale)", "scale.payload.scale", "wrong"),
    "takes_a_midpoint": (
        "midpoints.ready.eq(step & scale.payload.load)",
        "midpoints.ready.eq(step)",
        "a midpoint taken without its scale",
    ),
    "forgets_a_scale": ("m.d.sync += prepared.eq(1)", "m.d.sync += prepared.eq(0)", "is stuck"),
}


test_injected_fault_is_found = fault_test(
    clustering_unit,
    FAULTS,
    lambda m: ClusteringSpec(
        m.ClusteringUnit(m.ClusteringUnitParameters(activation_bits=1, lanes=1)), invariant=False
    ),
    depth=8,
    seconds=200,
)
