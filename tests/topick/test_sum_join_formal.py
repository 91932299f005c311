"""The sum over a head's lanes: rules of streams, and exact sums; unbounded proof."""

import pytest
from amaranth.hdl import Assert, Cover, Elaboratable, Module, Signal, signed

from hw.topick import sum_join
from hw.topick.sum_join import SumJoin
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

LANES, D, BITS, PLACES = 3, 2, 2, 1
HALF = 1 << PLACES + BITS


class SumSpec(Elaboratable):
    """Each o is the sum of one beat of each lane; a lane is taken as soon as its turn comes."""

    def __init__(self, dut: SumJoin, lanes: int, inductive: bool = True):
        self.dut, self._lanes, self._inductive = dut, lanes, inductive

    def elaborate(self, platform):
        m = Module()
        dut = self.dut
        first, internals = surround(m, dut)
        live = ~first
        taken = Signal(range(self._lanes + 1))  # lanes of this head that were added
        # Wider than any sum that fits the output.
        totals = [Signal(signed(3 * BITS + 8), name=f"total_{n}") for n in range(D + 1)]
        gives = dut.o.valid & dut.o.ready & live
        for number, port in enumerate(dut.i):
            with m.If(port.valid & port.ready & live):
                m.d.sync += taken.eq(taken + 1)
                m.d.comb += Assert(taken == number, "a lane out of its turn")
                m.d.sync += [t.eq(t + part) for t, part in zip(totals, _parts(port), strict=True)]
            with m.If(live & (taken == number)):
                m.d.comb += Assert(port.ready, "a lane waits")
        with m.If(gives):
            m.d.sync += [taken.eq(0), *(total.eq(0) for total in totals)]
        with m.If(live):
            m.d.comb += Assert(dut.o.valid == (taken == self._lanes), "a sum too early or late")
            for total, o in zip(totals, _parts(dut.o), strict=True):
                m.d.comb += Assert(~dut.o.valid | (o == total), "wrong sum")
            if self._inductive:
                lane = internals.signal("lane")
                m.d.comb += [
                    Assert(taken <= self._lanes),
                    Assert(lane == taken * (taken != self._lanes)),
                ]
                with m.If(taken == 0):
                    m.d.comb += [Assert(total == 0) for total in totals]
                with m.Else():
                    for total, o in zip(totals, _parts(dut.o), strict=True):
                        m.d.comb += Assert(o == total)
                for number, total in enumerate(totals):
                    least, most = (0, (2 << PLACES) - 1) if number == D else (-HALF, HALF - 1)
                    m.d.comb += [Assert(total <= taken * most), Assert(total >= taken * least)]
        lowest = -self._lanes << PLACES + BITS
        m.d.comb += Cover(gives & (totals[0] == lowest) & (totals[1] > 0), "the lowest sum")
        return m


def _parts(port) -> list:
    """Elements of o, and the total."""
    return [*port.payload.o, port.payload.total]


@pytest.mark.parametrize("lanes", [1, LANES])
def test_proof(lanes):
    prove_block(SumSpec(SumJoin(lanes, D, BITS, PLACES), lanes), "sum_join", depth=2)


def test_cover():
    prove_block(
        SumSpec(SumJoin(LANES, D, BITS, PLACES), LANES, inductive=False),
        "sum_join",
        "cover",
        depth=8,
    )


FAULTS = {
    "keeps_the_last": ("part if number == 0 else total + part", "total + part", "wrong sum"),
    "takes_while_full": ("port.ready.eq(~self.o.valid)", "port.ready.eq(1)", "out of its turn"),
    "valid_too_early": ("self.o.valid.eq(is_last)", "self.o.valid.eq(number == 1)", "too early"),
    "growth": ("(self._lanes - 1).bit_length()", "0", "wrong sum"),
}


test_injected_fault_is_found = fault_test(
    sum_join,
    FAULTS,
    lambda m: SumSpec(m.SumJoin(LANES, D, BITS, PLACES), LANES, inductive=False),
    depth=10,
)
