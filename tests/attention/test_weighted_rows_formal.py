# amaranth: UnusedElaboratable=no
"""Heads on rows of K and V: every row is used once, every result leaves once; unbounded proofs.

The units around which the control is proved (array and softmax in a lane, lanes in a group) do
anything that keeps the rules of streams, at any time. What is proved so holds for any units that
keep these rules; proofs of their own show that ours do.
"""

import dataclasses

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Array, Assert, Assume, Elaboratable, Fragment, Module, Mux, Signal, Value
from amaranth.lib import wiring

from hw.attention import grouped_rows, weighted_rows
from hw.attention.grouped_rows import GroupedRowsParameters
from hw.attention.pe_array import PeArray, PeArrayParameters
from hw.attention.special_function_unit import (
    SpecialFunctionUnit,
    SpecialFunctionUnitParameters,
)
from hw.attention.weighted_rows import WeightedRowsParameters
from sim.checks.formal.specs import Internals, drive, reset_first, watch
from tests.support.formal import fault_test, prove_block

pytestmark = pytest.mark.campaign

ARRAY = PeArrayParameters(2, 1, 1, "fp16", add_stages=1)
SOFTMAX = SpecialFunctionUnitParameters(length=4, tile=1)
LANE = WeightedRowsParameters(ARRAY, SOFTMAX)
THREE = WeightedRowsParameters(ARRAY, dataclasses.replace(SOFTMAX, vectors=3))
SIZES = {
    "keys": LANE,
    "scores": WeightedRowsParameters(ARRAY, SOFTMAX, keys=False),
    "three": THREE,
}


class AnyUnit(wiring.Component):
    """A unit with the ports of another, which accepts and offers beats at any time."""

    def __init__(self, unit: wiring.Component):
        super().__init__(unit.signature)

    def elaborate(self, platform):
        m = Module()
        first = Signal(init=1, reset_less=True)
        m.d.sync += first.eq(0)
        for name, member in self.signature.members.items():
            port, out = getattr(self, name), member.flow == wiring.Out
            if member.is_port:
                if out:
                    m.d.comb += Value.cast(port).eq(AnySeq(len(Value.cast(port))))
            elif out:
                drive(m, first, port)
            else:
                m.d.comb += port.ready.eq(AnySeq(1))
        return m


def moved(port) -> Value:
    return port.valid & port.ready


class LaneSpec(Elaboratable):
    """A lane between any array and any softmax."""

    def __init__(self, parameters: WeightedRowsParameters, module=weighted_rows, invariant=True):
        units: list[AnyUnit] = []

        class Lane(module.WeightedRows):
            def make_array(self):
                units.append(AnyUnit(PeArray(self.parameters.array)))
                return units[0]

        def any_softmax(parameters):
            units.append(AnyUnit(SpecialFunctionUnit(parameters)))
            return units[1]

        self._dut, self._units, self._invariant = Lane(parameters), units, invariant
        self._patch = module, any_softmax

    def elaborate(self, platform):
        m = Module()
        dut, (module, any_softmax) = self._dut, self._patch
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "SpecialFunctionUnit", any_softmax)
            m.submodules.dut = fragment = Fragment.get(dut, None)
        array, softmax = self._units
        first = reset_first(m)
        for port in (dut.q if dut.parameters.keys else dut.scores, dut.rows, dut.run):
            drive(m, first, port)
        run = dut.run.payload
        heads = dut.parameters.softmax.vectors
        m.d.comb += Assume((run.heads != 0) & (run.heads <= heads))
        if not dut.parameters.keys:
            m.d.comb += Assume(run.value)
        watch(m, first, dut.o)
        m.d.comb += dut.hold.eq(AnySeq(1))

        # Of heads whose last row of V is in the array: their flags, the oldest in expected[0].
        depth = weighted_rows.RESULTS
        expected = Array(Signal(2, name=f"expected_{n}") for n in range(depth))
        inside = Signal(range(depth + 1))
        row, last = array.i.payload, dut.rows.payload.last
        ended = moved(array.i) & row.outer & row.last
        # A run comes once for each of its heads.
        number = Signal(range(1, heads + 1), init=1, name="head_number")
        last_head = number == run.heads
        with m.If(moved(dut.rows) & last):
            m.d.sync += number.eq(Mux(last_head, 1, number + 1))
        flags = Signal(2)
        m.d.comb += flags.eq((run.last & last_head) << 1 | softmax.o.payload.invalid)
        # An array has results of rows alone.
        m.d.comb += Assume(~array.o.valid | (inside != 0))
        m.d.sync += inside.eq(inside + ended - moved(dut.o))
        with m.If(moved(dut.o)):
            for n in range(depth - 1):
                m.d.sync += expected[n].eq(expected[n + 1])
        with m.If(ended):
            m.d.sync += expected[inside - moved(dut.o)].eq(flags)

        is_value = run.value
        offered = Signal()  # to the array, and not accepted
        m.d.sync += offered.eq(array.i.valid & ~array.i.ready)
        with m.If(~first):
            m.d.comb += [
                Assert(moved(dut.rows) == moved(array.i), "a row lost or made up"),
                Assert(~moved(array.i) | (row.w == dut.rows.payload.data), "another row"),
                Assert(~moved(array.i) | (row.last == last), "another end"),
                Assert(~moved(array.i) | (row.outer == is_value), "K taken for V"),
                Assert(dut.used == (moved(array.i) & is_value), "a wrong use"),
                Assert(moved(softmax.o) == dut.used, "a probability lost"),
                Assert(~dut.used | (row.x == softmax.o.payload.y), "another probability"),
                Assert(~dut.used | ~dut.hold, "a row in spite of hold"),
                Assert(~offered | array.i.valid | dut.hold, "a row withdrawn from the array"),
                Assert(moved(dut.run) == (moved(dut.rows) & last & last_head), "a run lost"),
                Assert(~moved(dut.rows) | dut.run.valid, "a row without a run"),
                Assert(moved(array.o) == moved(dut.o), "a result lost"),
                Assert(inside <= depth, "too many heads"),
                Assert(
                    ~dut.o.valid
                    | (
                        (dut.o.payload.invalid == expected[0][0])
                        & (dut.o.payload.last == expected[0][1])
                    ),
                    "flags of another head",
                ),
            ]
            if self._invariant:
                internals = Internals(fragment)
                names = ("level", "consume", "produce")
                level, consume, produce = (internals.signal(f"flags.fifo.{n}") for n in names)
                m.d.comb += [
                    Assert(level == inside),
                    Assert(produce == (consume + level)[: len(produce)]),
                ]
                m.d.comb += Assert(internals.signal("number") == number)
                m.d.comb += Assert((number == 1) | (dut.run.valid & (number <= run.heads)))
                for n in range(depth):
                    stored = internals.row(m, "flags.fifo.storage", (consume + n)[: len(consume)])
                    m.d.comb += Assert((inside <= n) | (stored == expected[n]))
        return m


@pytest.mark.parametrize("size", SIZES)
def test_lane(size):
    prove_block(LaneSpec(SIZES[size]), f"weighted_rows_{size}", depth=2)


LANE_FAULTS = {
    "hold": ("(of_product | ~self.hold) &", "", "a row in spite of hold"),
    "flags": ("(~last | flags.i.ready)", "1", "too many heads|flags of another head"),
    "run": ("run.ready.eq(run_ends & last_head)", "run.ready.eq(run_ends)", "a run lost"),
    "last": ("run.payload.last & last_head", "run.payload.last", "flags of another head"),
    "weight": ("weights.ready.eq(self.used)", "weights.ready.eq(rows.ready)", "probability lost"),
    "turn": ("outer.eq(is_value)", "outer.eq(0)", "K taken for V"),
    "early": ("may_go.eq(run.valid & (", "may_go.eq(1 & (", "a row without a run|a run lost"),
    "go": ("array.i.valid.eq(rows.valid & may_go)", "array.i.valid.eq(rows.valid)", "a row lost"),
    "join": ("join(m, [array.o, flags.o], [o])", "join(m, [array.o], [o])", "flags|a result"),
}


test_a_fault_of_a_lane_is_found = fault_test(
    weighted_rows,
    LANE_FAULTS,
    lambda m: LaneSpec(THREE, m, invariant=False),
    suite=LANE_FAULTS,
    depth=13,
)


class GroupSpec(Elaboratable):
    """A batch on lanes that do anything but lose a result."""

    def __init__(self, parameters: GroupedRowsParameters, module=grouped_rows, invariant=True):
        self._units: list[AnyUnit] = []
        self._dut, self._invariant = module.GroupedRows(parameters), invariant
        self._module = module

    def _any_lane(self, parameters: WeightedRowsParameters) -> AnyUnit:
        self._units.append(AnyUnit(weighted_rows.WeightedRows(parameters)))
        return self._units[-1]

    def elaborate(self, platform):
        m = Module()
        dut, lanes = self._dut, self._dut.parameters.lanes
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._module, "WeightedRows", self._any_lane)
            m.submodules.dut = fragment = Fragment.get(dut, None)
        first = reset_first(m)
        for port in (dut.batch, dut.q, dut.rows):
            drive(m, first, port)
        watch(m, first, dut.o)
        heads = dut.batch.payload.heads
        m.d.comb += Assume((heads != 0) & (heads <= lanes))

        is_value = Signal()
        ended = moved(dut.rows) & dut.rows.payload.last & is_value
        with m.If(moved(dut.rows) & dut.rows.payload.last):
            m.d.sync += is_value.eq(~is_value)
        # Queries go to lanes 0, 1, … of a batch.
        query = Signal(range(lanes + 1))
        m.d.sync += query.eq(Mux(ended, 0, query + moved(dut.q)))
        # Heads of batches whose results have not all left, the oldest first, and results that have.
        depth = 2
        waiting = Array(Signal(range(lanes + 1), name=f"waiting_{n}") for n in range(depth))
        batches, leaving = Signal(range(depth + 1)), Signal(range(lanes + 1))
        leaves = moved(dut.o)
        final = Signal()
        m.d.comb += final.eq(leaves & (leaving + 1 == waiting[0]))
        m.d.sync += batches.eq(batches + ended - final)
        with m.If(leaves):
            m.d.sync += leaving.eq(Mux(final, 0, leaving + 1))
        with m.If(final):
            m.d.sync += waiting[0].eq(waiting[1])
        with m.If(ended):
            m.d.sync += waiting[batches - final].eq(heads)

        for n, lane in enumerate(self._units):
            here = Signal(name=f"here_{n}")  # the lane has the row that is offered
            accepts = moved(lane.rows)
            with m.If(moved(dut.rows)):
                m.d.sync += here.eq(0)
            with m.Elif(accepts):
                m.d.sync += here.eq(1)
            has_row = here | accepts
            # A lane has a query with its first key at the earliest, so none waits without a row.
            m.d.comb += Assume(~moved(lane.q) | lane.rows.valid | here)
            stalled = Signal(name=f"stalled_{n}")
            m.d.sync += stalled.eq(lane.rows.valid & ~lane.rows.ready)
            with m.If(~first):
                m.d.comb += [
                    Assert(~moved(dut.rows) | (has_row == (n < heads)), "a row to a wrong lane"),
                    Assert(~(here & accepts), "a row twice"),
                    Assert(~stalled | lane.rows.valid, "a row withdrawn from a lane"),
                    Assert(
                        ~accepts | (Value.cast(lane.rows.payload) == Value.cast(dut.rows.payload)),
                        "another row",
                    ),
                    Assert(~moved(lane.q) | (query == n), "a query to a wrong lane"),
                    Assert(moved(lane.o) == (leaves & (leaving == n)), "a result out of turn"),
                    Assert(
                        ~moved(lane.o) | (Value.cast(lane.o.payload) == Value.cast(dut.o.payload)),
                        "another result",
                    ),
                ]
            delivered = Internals(fragment).signal(f"rows_delivered_{n}")
            with m.If(~first & self._invariant):
                m.d.comb += [
                    Assert(here == delivered),
                    Assert(~here | (dut.rows.valid & dut.batch.valid & (n < heads))),
                ]
        queries = [moved(lane.q) for lane in self._units]
        with m.If(~first):
            m.d.comb += [
                Assert(moved(dut.batch) == ended, "a batch lost"),
                Assert(moved(dut.q) == (sum(queries) == 1), "a query lost"),
                Assert(batches <= depth, "too many batches"),
                Assert(~leaves | (batches != 0), "a result before its last row"),
            ]
            if self._invariant:
                m.d.comb += self._same(m, Internals(fragment), batches, waiting, leaving, query)
                m.d.comb += Assert(Internals(fragment).signal("is_value") == is_value)
        return m

    def _same(self, m: Module, inside: Internals, batches, waiting, leaving, query) -> list:
        level, consume = (inside.signal(f"results.fifo.{n}") for n in ("level", "consume"))
        produce = inside.signal("results.fifo.produce")
        stored = [inside.row(m, "results.fifo.storage", (consume + n)[:1]) for n in range(2)]
        return [
            Assert(level == batches),
            Assert(produce == (consume + level)[:1]),
            *[Assert((batches <= n) | (stored[n] == waiting[n])) for n in range(2)],
            *[Assert((batches <= n) | (waiting[n] != 0)) for n in range(2)],
            Assert(inside.signal("leaving") == leaving),
            Assert((leaving == 0) | ((batches != 0) & (leaving < waiting[0]))),
            Assert(inside.signal("loading") == query),
        ]


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_group(lanes):
    prove_block(GroupSpec(GroupedRowsParameters(LANE, lanes)), f"grouped_rows_{lanes}", depth=2)


GROUP_FAULTS = {
    "ended": (", batch.valid & (~ended | results.i.ready))", ", batch.valid)", "too many|a result"),
    "to": (
        "[batch.payload.heads > n for",
        "[batch.payload.heads >= n for",
        "a row to a wrong lane",
    ),
    "query": ("loading.eq(0)", "loading.eq(loading)", "a query to a wrong lane|a query lost"),
    "turn": ("Mux(final, 0, leaving + 1)", "leaving + 1", "a result out of turn"),
    "before": ("[self.o], results.o.valid)", "[self.o])", "a result before its last row"),
    "value": (
        "ended.eq(is_value & rows.payload.last)",
        "ended.eq(rows.payload.last)",
        "batch lost",
    ),
}


test_a_fault_of_a_group_is_found = fault_test(
    grouped_rows,
    GROUP_FAULTS,
    lambda m: GroupSpec(GroupedRowsParameters(LANE, 2), m, invariant=False),
    suite=GROUP_FAULTS,
    depth=9,
)
