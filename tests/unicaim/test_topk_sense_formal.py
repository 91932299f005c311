"""The top-k sense for three rows: answers and addresses; unbounded proof.

For any steps, k and stalls: every step has one answer, and the addresses are those of the selected
rows, rising, each once. Registers power up with any value; reset is high in the first cycle.
"""

import pytest
from amaranth.hdl import Assert, Assume, Cat, Cover, Elaboratable, Module, Mux, Signal

from hw.unicaim import topk_sense
from hw.unicaim.topk_sense import TopkSense, TopkSenseParameters
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

ROWS = 3
IDLE, SEARCH, ADDRESSES = range(3)


class SenseSpec(Elaboratable):
    """The model: a search by steps until at most k rows are high, then their addresses."""

    def __init__(self, dut, invariant: bool = True):
        self.dut, self._invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut, fill = self.dut, self.dut.parameters.fill
        first, internals = surround(m, dut)
        live = ~first
        m.d.comb += Assume(dut.k.payload <= ROWS)

        # The search: `winners` is the last step with at most k rows high, `with_ties` the last one
        # with more.
        searching, addressing = Signal(), Signal()
        k = Signal(range(ROWS + 1))
        winners, with_ties = Signal(ROWS), Signal(ROWS)
        exceeded = Signal()
        remaining = Signal(ROWS)
        pending, answer = Signal(), Signal()
        begin, step, finished = Signal(), Signal(), Signal()
        too_many, address_issued = Signal(), Signal()
        lines = dut.i.payload
        m.d.comb += [
            begin.eq(dut.k.valid & dut.k.ready & live),
            step.eq(dut.i.valid & dut.i.ready & live),
            address_issued.eq(dut.o.valid & dut.o.ready & live),
            too_many.eq(_count(lines.high) > k),
            finished.eq(step & (lines.last | (lines.stoppable & ~too_many))),
        ]
        winners_after, with_ties_after = Signal(ROWS), Signal(ROWS)
        m.d.comb += [
            winners_after.eq(Mux(too_many, winners, lines.high)),
            with_ties_after.eq(Mux(too_many, lines.high, with_ties)),
        ]
        chosen = Signal(ROWS)
        m.d.comb += chosen.eq(
            _selected(winners_after, with_ties_after, k - _count(winners_after))
            if fill
            else winners_after
        )
        # Addresses: the lowest remaining row first.
        lowest = Signal(ROWS)
        m.d.comb += lowest.eq(remaining & (~remaining + 1))
        with m.If(begin):
            m.d.sync += [searching.eq(1), k.eq(dut.k.payload), winners.eq(0), with_ties.eq(0)]
            m.d.sync += exceeded.eq(0)
        with m.If(step):
            m.d.sync += [winners.eq(winners_after), with_ties.eq(with_ties_after)]
            m.d.sync += exceeded.eq(exceeded | too_many)
        with m.If(finished):
            m.d.sync += [searching.eq(0), addressing.eq(1), remaining.eq(chosen)]
        with m.If(address_issued):
            m.d.sync += remaining.eq(remaining & ~lowest)
            with m.If(dut.o.payload.last):
                m.d.sync += addressing.eq(0)

        # Each step is owed one answer, which may be stalled.
        answered = dut.too_many.valid & dut.too_many.ready
        m.d.sync += pending.eq((pending | step) & ~answered & live)
        with m.If(step):
            m.d.sync += answer.eq(too_many)

        o = dut.o.payload
        with m.If(live):
            m.d.comb += [
                Assert(dut.k.ready == ~(searching | addressing), "k accepted at the wrong time"),
                Assert(dut.i.ready == (searching & ~pending), "a step accepted at the wrong time"),
                Assert(dut.too_many.valid == (pending | step), "an answer lost or unexpected"),
                Assert(
                    ~dut.too_many.valid | (dut.too_many.payload == Mux(pending, answer, too_many)),
                    "a wrong answer",
                ),
                Assert(dut.o.valid == addressing, "addresses at the wrong time"),
                Assert(~addressing | (o.present == remaining.any()), "wrong present"),
                Assert(~addressing | ~o.present | (1 << o.row == lowest), "a wrong address"),
                Assert(~addressing | (o.last == (remaining == lowest)), "a wrong last"),
            ]
            if self._invariant:
                self._invariants(m, internals, locals())
        m.d.comb += [
            Cover(
                live & address_issued & o.last & (_count(with_ties) == 3) & (k == 2), "two of three"
            ),
            Cover(live & addressing & ~o.present, "none"),
            Cover(live & pending & addressing & address_issued, "an answer waits"),
        ]
        return m

    def _invariants(self, m, internals, spec):
        signal, fill = internals.signal, self.dut.parameters.fill
        winners, with_ties, room = signal("winners"), signal("with_ties"), signal("room")
        searching, addressing, remaining = spec["searching"], spec["addressing"], spec["remaining"]
        m.d.comb += [
            Assert(signal("fsm_state") == Mux(searching, SEARCH, Mux(addressing, ADDRESSES, IDLE))),
            Assert(~(searching & addressing)),
            Assert(signal("held") == spec["pending"]),
            Assert(~spec["pending"] | (signal("answer") == spec["answer"])),
            Assert(spec["k"] <= ROWS),
        ]
        with m.If(searching):
            m.d.comb += [
                Assert(signal("k") == spec["k"]),
                Assert(winners == spec["winners"]),
                Assert(with_ties == spec["with_ties"]),
                Assert(signal("exceeded") == spec["exceeded"]),
                Assert(spec["exceeded"] == (_count(with_ties) > spec["k"])),
                Assert(spec["exceeded"] | ~with_ties.any()),
                Assert(_count(winners) <= spec["k"]),
                Assert(room == spec["k"] - _count(winners)),
                Assert(signal("left") == _count(winners)),
            ]
        with m.If(addressing):
            m.d.comb += [
                Assert(remaining == (_selected(winners, with_ties, room) if fill else winners)),
                Assert(signal("left") == _count(remaining)),
                Assert(signal("room") <= ROWS),
            ]
        with m.If(~searching & ~addressing):
            m.d.comb += [Assert(winners == 0), Assert(with_ties == 0)]


def _count(bits):
    return sum(bits[n] for n in range(ROWS))


def _selected(winners, with_ties, room):
    """`winners`, and of the others in `with_ties` the lowest `room`."""
    taken, chosen = 0, []
    for row in range(ROWS):
        tie = with_ties[row] & ~winners[row]
        chosen.append(winners[row] | (tie & (taken < room)))
        taken = taken + tie
    return Cat(chosen)


@pytest.mark.parametrize("fill", [True, False], ids=["fill", "bare"])
def test_proof(fill):
    spec = SenseSpec(TopkSense(TopkSenseParameters(ROWS, fill)))
    prove_block(spec, f"topk_sense_{fill}", depth=1, seconds=200)


def test_cover():
    spec = SenseSpec(TopkSense(TopkSenseParameters(ROWS)), invariant=False)
    prove_block(spec, "topk_sense", "cover", depth=9, solver="yices", seconds=200)


FAULTS = {
    "not_the_lowest": ("room.eq(room - tie)", "room.eq(room)", "a wrong"),
    "counts_k_too": ("too_many.eq(spare < 0)", "too_many.eq(spare <= 0)", "a wrong answer"),
    "answers_twice": (
        "held.eq(self.too_many.valid & ~self.too_many.ready)",
        "held.eq(step)",
        "answer",
    ),
    "keeps_rows": ("[winners.eq(0), with_ties.eq(0)]", "[winners.eq(winners)]", "a wrong"),
    "steps_too_early": ("self.i.ready.eq(~held)", "self.i.ready.eq(1)", "a step accepted"),
}


test_injected_fault_is_found = fault_test(
    topk_sense,
    FAULTS,
    lambda m: SenseSpec(m.TopkSense(m.TopkSenseParameters(ROWS)), invariant=False),
    depth=10,
    solver="yices",
    seconds=200,
)
