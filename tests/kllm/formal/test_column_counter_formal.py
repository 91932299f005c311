"""The column counter: every group has the counts of its column, in its cycle; unbounded proof.

Small counters with arbitrary columns and stalls, against a model that compares each pair of indices
with each bin. Registers power up with any value; reset is high in the first cycle.
"""

import dataclasses

import pytest
from amaranth.hdl import Array, Assert, Assume, Cover, Elaboratable, Module, Mux, Signal

from hw.component import on_fpga
from hw.kllm import column_counter
from hw.kllm.column_counter import ColumnCounter, ColumnCounterParameters
from hw.kllm.index_distribution_counter import IndexDistributionCounterParameters
from sim.checks.formal.specs import surround
from tests.support.campaign import suite_takes
from tests.support.faults import with_fault
from tests.support.formal import fault_test, find_fault, prove_block

# k, counters, inputs of each, macs, stages
SIZES = [
    (3, 1, 2, 4, 0),  # one group
    (7, 1, 3, 1, 0),  # four groups
    (3, 1, 3, 2, 1),  # counts that wrap
    (7, 2, 2, 2, 1),
    (5, 2, 2, 4, 2),
    (7, 3, 2, 2, 3),
]


def parameters(size, kind=ColumnCounterParameters):
    k, counters, inputs, macs, stages = size
    return kind(k, 1, 1, counters, inputs, macs, stages=stages)


@dataclasses.dataclass(frozen=True)
class Target:
    multiplier: str


class ColumnCounterSpec(Elaboratable):
    """The model: beats wait as they came in, and are counted where the last of them adds.

    dut
        The component.
    inductive
        Whether to assert what ties its registers to the model's.
    multiplier
        The target, as :data:`hw.component.MULTIPLIERS` has them.
    """

    def __init__(self, dut: ColumnCounter, inductive: bool = True, multiplier: str = "columns"):
        self.dut, self._inductive = dut, inductive
        self._target = Target(multiplier)

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        first, internals = surround(m, dut, target=self._target)
        groups = dut.i.payload.groups
        fits = (groups != 0) & (groups <= p.groups)
        m.d.comb += Assume(fits | ~dut.i.valid | ~dut.i.payload.last)

        ready = Signal()
        valid, beats = [dut.i.valid], [dut.i.payload]
        for stage in range(p.stages):
            valid.append(Signal(name=f"valid_{stage}"))
            beats.append(Signal(p.input_layout, name=f"beat_{stage}"))
            with m.If(ready):
                m.d.sync += [valid[-1].eq(valid[-2]), beats[-1].eq(beats[-2])]
        counts = [self._counted(m, f"of_beat_{stage}", beat) for stage, beat in enumerate(beats)]

        group = Signal(range(p.groups + 1), name="group_number")
        of_column = Signal(range(p.groups + 1), name="groups_of_column")
        busy = Signal(name="buffer_busy")
        fresh = Signal(name="column_begins", init=1)
        counted = [Signal(p.count_bits, name=f"counted_{n}") for n in range(p.bins)]
        shown = [Signal(p.count_bits, name=f"shown_{n}") for n in range(p.bins)]
        leaves, adds, ends = Signal(), Signal(), Signal()
        m.d.comb += [
            leaves.eq(busy & dut.o.ready & (group == of_column - 1)),
            ready.eq(~(valid[-1] & beats[-1].last & busy & ~leaves)),
            adds.eq(valid[-1] & ready),
            ends.eq(adds & beats[-1].last),
        ]
        for number in range(p.bins):
            after = Signal(p.count_bits, name=f"after_{number}")
            m.d.comb += after.eq(Mux(fresh, 0, counted[number]) + sum(counts[-1][number]))
            with m.If(adds):
                m.d.sync += counted[number].eq(after)
            with m.If(ends):
                m.d.sync += shown[number].eq(after)
        with m.If(adds):
            m.d.sync += fresh.eq(beats[-1].last)
        m.d.sync += busy.eq(ends | (busy & ~leaves))
        with m.If(ends):
            m.d.sync += of_column.eq(beats[-1].groups)
        with m.If(busy & dut.o.ready):
            m.d.sync += group.eq(Mux(leaves, 0, group + 1))

        with m.If(~first):
            m.d.comb += [
                Assert(dut.i.ready == ready, "ready at the wrong time"),
                Assert(dut.o.valid == busy, "counts at the wrong time"),
            ]
            with m.If(busy):
                m.d.comb += Assert(dut.o.payload.last == (group == of_column - 1), "wrong last")
                for place, count in enumerate(dut.o.payload.counts):
                    stride = [shown[g * p.macs + place] for g in range(p.groups)]
                    m.d.comb += Assert(count == Array(stride)[group], "wrong count")
            if self._inductive:
                registers = (valid, beats, counts, counted, shown, busy, fresh)
                self._tie(m, internals, *registers)
                self._tie_groups(m, internals, busy, group, of_column)
        twice, full, fewer = Signal(), Signal(), Signal()
        m.d.sync += [twice.eq((twice | ends) & ~first), full.eq((full | ~ready) & ~first)]
        short = leaves & ((of_column < p.groups) | (p.groups == 1))
        m.d.sync += fewer.eq((fewer | short) & ~first)
        most = Mux(busy, shown[-1], 0) == min(p.k, (1 << p.count_bits) - 1)
        m.d.comb += Cover(twice & full & fewer & leaves & most, "a later column of equal indices")
        return m

    def _counted(self, m, name, beat) -> list[list[Signal]]:
        """For each bin, the count of each counter."""
        p = self.dut.parameters
        bins = []
        for number in range(p.bins):
            bins.append([])
            for counter in range(p.counters):
                count = Signal(range(p.inputs + 1), name=f"{name}_{number}_{counter}")
                hits = []
                for i in range(counter * p.inputs, (counter + 1) * p.inputs):
                    a, w = beat.activation[i], beat.weight[i]
                    # With one bit of activation, line 0 has its integer, line 1 nothing.
                    alike = (a == number >> 1) & ~beat.integer
                    integer = a & beat.integer if number >> 1 == 0 else 0
                    hits.append(beat.mask[i] & (w == number & 1) & (alike | integer))
                m.d.comb += count.eq(sum(hits))
                bins[-1].append(count)
        return bins

    def _tie(self, m, internals, valid, beats, counts, counted, shown, busy, fresh):
        p = self.dut.parameters
        m.d.comb += [
            Assert(internals.signal("busy") == busy),
            Assert(internals.signal("fresh") == fresh),
        ]
        for stage in range(1, p.stages + 1):
            m.d.comb += Assert(internals.signal("valid")[stage - 1] == valid[stage])
            with m.If(valid[stage]):
                ends, groups = beats[stage].last, beats[stage].groups
                m.d.comb += [
                    Assert(internals.signal("ends")[stage - 1] == ends),
                    Assert(internals.signal(f"groups_{stage - 1}") == groups),
                    Assert(~ends | ((groups != 0) & (groups <= p.groups))),
                ]
                for number, of_counters in enumerate(counts[stage]):
                    self._tie_sum(m, internals, stage, number, of_counters)
        for number in range(p.bins):
            row, column = divmod(number, 1 << p.weight_bits)
            names = (f"accumulators_{row}.{name}_{column}" for name in ("buffered", "counted"))
            with m.If(busy):
                m.d.comb += Assert(internals.signal(next(names)) == shown[number])
            sum_so_far = internals.signal(next(names))
            if on_fpga(self._target):
                m.d.comb += Assert(sum_so_far == Mux(fresh, 0, counted[number]))
            else:
                m.d.comb += Assert(fresh | (sum_so_far == counted[number]))

    def _tie_groups(self, m, internals, busy, group, of_column):
        p = self.dut.parameters
        if p.groups > 1:
            m.d.comb += Assert(internals.signal("group") == group)
        m.d.comb += Assert(busy | (group == 0))
        with m.If(busy):
            m.d.comb += [
                Assert(internals.signal("final") == of_column - 1),
                Assert((of_column <= p.groups) & (group < of_column)),
            ]

    def _tie_sum(self, m, internals, stage, number, of_counters):
        """The registers of a pipeline stage hold the model's numbers."""
        p = self.dut.parameters
        point = p.CUTS[p.stages][stage - 1]
        if point == "counter":
            for counter, count in enumerate(of_counters):
                counts = internals.signal(f"counter_{counter}.counts")
                width = p.counter.count_bits
                m.d.comb += Assert(counts.word_select(number, width) == count)
            return
        names = {"result": ["result"], "halfway": ["row_0", "row_1"]}[point]
        row, column = divmod(number, 1 << p.weight_bits)
        rows = [internals.signal(f"accumulators_{row}.{name}_{column}_{point}") for name in names]
        width = min(p.segment.bit_length(), p.count_bits)
        m.d.comb += Assert(sum(rows)[:width] == sum(of_counters)[:width])


def name(size):
    return "k{}_counters{}_inputs{}_macs{}_stages{}".format(*size)


def cases(*chosen, of=SIZES):
    return suite_takes(chosen, [(size,) for size in of])


@pytest.mark.parametrize("size", cases(SIZES[0], SIZES[-1]), ids=name)
def test_proof(size):
    spec = ColumnCounterSpec(ColumnCounter(parameters(size)))
    prove_block(spec, f"column_counter_{name(size)}", depth=1, seconds=300)


@pytest.mark.parametrize("size", cases(SIZES[0]), ids=name)
def test_proof_on_an_fpga(size):
    spec = ColumnCounterSpec(ColumnCounter(parameters(size)), multiplier="dsp")
    prove_block(spec, f"column_counter_{name(size)}_dsp", depth=1, seconds=300)


def test_a_sum_that_is_not_cleared_is_found():
    module = with_fault(column_counter, "m.d.sync += counted.eq(0)", "pass")
    dut = module.ColumnCounter(parameters(SIZES[3], module.ColumnCounterParameters))
    spec = ColumnCounterSpec(dut, inductive=False, multiplier="dsp")
    find_fault(spec, "column_counter_stale_sum", "wrong count", depth=8, solver="yices")


@pytest.mark.parametrize("size", cases(SIZES[3], of=SIZES[:1] + SIZES[3:4]), ids=name)
def test_cover(size):
    spec = ColumnCounterSpec(ColumnCounter(parameters(size)), inductive=False)
    folder = f"column_counter_{name(size)}"
    prove_block(spec, folder, "cover", depth=16, solver="yices", seconds=300)


FAULTS = {
    "not_cleared": ("Mux(self.first, 0, counted)", "counted", "wrong count"),
    "always_first": ("fresh.eq(last)", "fresh.eq(1)", "wrong count"),
    "leaves_early": ("self.o.ready & at_end", "self.o.ready", "ready at the wrong time"),
    "skips_groups": ("m.If(busy & self.o.ready)", "m.If(self.o.ready)", "wrong last"),
    "all_groups": ("final.eq(used - 1)", "final.eq(-1)", "wrong last"),
    "does_not_wrap": ("Mux(at_end, 0, group + 1)", "group + 1", "wrong last"),
    "stays": ("busy.eq(0)", "busy.eq(1)", "counts at the wrong time"),
}


test_injected_fault_is_found = fault_test(
    column_counter,
    FAULTS,
    lambda m: ColumnCounterSpec(
        m.ColumnCounter(parameters(SIZES[3], m.ColumnCounterParameters)), inductive=False
    ),
    suite=["leaves_early"],
    depth=8,
    solver="yices",
)


def test_one_input_too_many_on_a_shared_line_is_caught(monkeypatch):
    """The bound up to which inputs share a line is tight."""
    kind, holders = IndexDistributionCounterParameters, IndexDistributionCounterParameters.holders

    def one_more(p):
        return [(first, min(alone + 1, p.inputs)) for first, alone in holders.fget(p)]

    monkeypatch.setattr(kind, "holders", property(one_more))
    spec = ColumnCounterSpec(ColumnCounter(parameters(SIZES[0])), inductive=False)
    find_fault(spec, "column_counter_shared", "wrong count", depth=4, solver="yices")
