"""The top-k sense for three rows: answers and addresses; unbounded proof.

For any steps, k and stalls: every step has one answer, and the addresses are those of the selected
rows, rising, each once. Registers power up with any value; reset is high in the first cycle.
"""

import pytest
from amaranth.hdl import Assert, Assume, Cat, Cover, Elaboratable, Fragment, Module, Mux, Signal

from hw.unicaim import topk_sense
from hw.unicaim.topk_sense import TopkSense, TopkSenseParameters
from sim.checks.formal.specs import Internals, drive, reset_first, watch
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

ROWS = 3
IDLE, SEARCH, ADDRESSES = range(3)


class SenseSpec(Elaboratable):
    def __init__(self, dut, invariant: bool = True):
        self.dut, self._invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut, fill = self.dut, self.dut.parameters.fill
        m.submodules.dut = fragment = Fragment.get(dut, None)
        first = reset_first(m)
        live = ~first
        drive(m, first, dut.k)
        drive(m, first, dut.i)
        watch(m, first, dut.too_many)
        watch(m, first, dut.o)
        m.d.comb += Assume(dut.k.payload <= ROWS)

        racing, giving = Signal(), Signal()
        k = Signal(range(ROWS + 1))
        few, many = Signal(ROWS), Signal(ROWS)
        seen_few, crowded = Signal(), Signal()
        remaining = Signal(ROWS)
        owed, owed_answer = Signal(), Signal()
        step, over, too_many, begin, gave = Signal(), Signal(), Signal(), Signal(), Signal()
        lines = dut.i.payload
        m.d.comb += [
            begin.eq(dut.k.valid & dut.k.ready & live),
            step.eq(dut.i.valid & dut.i.ready & live),
            gave.eq(dut.o.valid & dut.o.ready & live),
            too_many.eq(_count(lines.high) > k),
            over.eq(step & (lines.last | (lines.stoppable & ~too_many))),
        ]
        few_after, many_after = Signal(ROWS), Signal(ROWS)
        m.d.comb += [
            few_after.eq(Mux(too_many, few, lines.high)),
            many_after.eq(Mux(too_many, lines.high, many)),
        ]
        chosen = Signal(ROWS)
        m.d.comb += chosen.eq(
            _selected(few_after, many_after, k - _count(few_after)) if fill else few_after
        )
        lowest = Signal(ROWS)
        m.d.comb += lowest.eq(remaining & (~remaining + 1))
        with m.If(begin):
            m.d.sync += [racing.eq(1), k.eq(dut.k.payload), few.eq(0), many.eq(0)]
            m.d.sync += [seen_few.eq(0), crowded.eq(0)]
        with m.If(step):
            m.d.sync += [few.eq(few_after), many.eq(many_after)]
            m.d.sync += [seen_few.eq(seen_few | ~too_many), crowded.eq(crowded | too_many)]
        with m.If(over):
            m.d.sync += [racing.eq(0), giving.eq(1), remaining.eq(chosen)]
        with m.If(gave):
            m.d.sync += remaining.eq(remaining & ~lowest)
            with m.If(dut.o.payload.last):
                m.d.sync += giving.eq(0)

        answered = dut.too_many.valid & dut.too_many.ready
        m.d.sync += owed.eq((owed | step) & ~answered & live)
        with m.If(step):
            m.d.sync += owed_answer.eq(too_many)

        o = dut.o.payload
        with m.If(live):
            m.d.comb += [
                Assert(dut.k.ready == ~(racing | giving), "k taken at the wrong time"),
                Assert(dut.i.ready == (racing & ~owed), "a step taken at the wrong time"),
                Assert(dut.too_many.valid == (owed | step), "an answer lost or from nowhere"),
                Assert(
                    ~dut.too_many.valid
                    | (dut.too_many.payload == Mux(owed, owed_answer, too_many)),
                    "a wrong answer",
                ),
                Assert(dut.o.valid == giving, "addresses at the wrong time"),
                Assert(~giving | (o.present == remaining.any()), "nothing, or not nothing"),
                Assert(~giving | ~o.present | (1 << o.row == lowest), "a wrong address"),
                Assert(~giving | (o.last == (remaining == lowest)), "a wrong last"),
            ]
            if self._invariant:
                self._invariants(m, Internals(fragment), locals())
        m.d.comb += [
            Cover(live & gave & o.last & (_count(many) == 3) & (k == 2), "two of three"),
            Cover(live & giving & ~o.present, "none"),
            Cover(live & owed & giving & gave, "an answer waits"),
        ]
        return m

    def _invariants(self, m, internals, spec):
        signal, fill = internals.signal, self.dut.parameters.fill
        few, many, room = signal("winners"), signal("with_ties"), signal("room")
        racing, giving, remaining = spec["racing"], spec["giving"], spec["remaining"]
        m.d.comb += [
            Assert(signal("fsm_state") == Mux(racing, SEARCH, Mux(giving, ADDRESSES, IDLE))),
            Assert(~(racing & giving)),
            Assert(signal("held") == spec["owed"]),
            Assert(~spec["owed"] | (signal("answer") == spec["owed_answer"])),
            Assert(spec["k"] <= ROWS),
        ]
        with m.If(racing):
            m.d.comb += [
                Assert(signal("k") == spec["k"]),
                Assert(few == spec["few"]),
                Assert(many == spec["many"]),
                Assert(signal("exceeded") == spec["crowded"]),
                Assert(spec["crowded"] == (_count(many) > spec["k"])),
                Assert(spec["crowded"] | ~many.any()),
                Assert(_count(few) <= spec["k"]),
                Assert(room == spec["k"] - _count(few)),
                Assert(signal("left") == _count(few)),
            ]
        with m.If(giving):
            m.d.comb += [
                Assert(remaining == (_selected(few, many, room) if fill else few)),
                Assert(signal("left") == _count(remaining)),
                Assert(signal("room") <= ROWS),
            ]
        with m.If(~racing & ~giving):
            m.d.comb += [Assert(few == 0), Assert(many == 0)]


def _count(bits):
    return sum(bits[n] for n in range(ROWS))


def _selected(few, many, room):
    """`few`, and of the others in `many` the lowest `room`."""
    taken, chosen = 0, []
    for row in range(ROWS):
        tie = many[row] & ~few[row]
        chosen.append(few[row] | (tie & (taken < room)))
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
    "steps_too_early": ("self.i.ready.eq(~held)", "self.i.ready.eq(1)", "a step taken"),
}


@pytest.mark.campaign
@pytest.mark.parametrize("fault", FAULTS)
def test_injected_fault_is_found(fault):
    line, instead, found_by = FAULTS[fault]
    module = with_fault(topk_sense, line, instead)
    dut = module.TopkSense(module.TopkSenseParameters(ROWS))
    spec = SenseSpec(dut, invariant=False)
    find_fault(spec, f"topk_sense_{fault}", found_by, depth=10, solver="yices", seconds=200)
