"""Exact sums (reduction, sparse path): no column is lost, stuck or doubled; unbounded proof.

Properties of columns, not of the values of their sums, which simulation compares. Beats, lengths of
columns and stalls are arbitrary. Registers power up with any value; reset is high in the first
cycle.
"""

import dataclasses

import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import Assert, Cat, Cover, Elaboratable, Module, Mux, Signal

from hw.arith import fixed_sum
from hw.arith.fixed_sum import FixedSumParameters
from hw.kllm.reduction import Reduction, ReductionParameters
from hw.kllm.sparse_path import SparsePath, SparsePathParameters
from hw.stream.queue import Queue, QueueParameters
from sim.checks.formal.specs import surround
from tests.support.campaign import suite_takes
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

BLOCKS = {
    "reduction": (Reduction, ReductionParameters(k=1, activation_bits=1, weight_bits=1, macs=1)),
    "reduction_deep": (
        Reduction,
        ReductionParameters(k=1, activation_bits=1, weight_bits=1, macs=4),
    ),
    "sparse": (SparsePath, SparsePathParameters(k=1, weight_bits=1, counters=1, entries=1)),
}

# Registers of the pipeline stages before the sum: valid, and last beat of a column.
STAGES = {
    Reduction: [("valid_0", "last_0")],
    SparsePath: [("valid_0", "last_0"), ("valid_1", "last_1")],
}


class ColumnsSpec(Elaboratable):
    """One sum for each column's last beat, `latency` cycles later if nothing stalls. The input is
    refused only if as many columns are inside as the queue holds."""

    def __init__(self, dut, closed=True):
        self._dut, self._closed = dut, closed

    def elaborate(self, platform):
        m = Module()
        dut = self._dut
        p = dut.parameters
        columns = p.fixed_sum.columns
        first, internals = surround(m, dut)
        ended, issued = Signal(), Signal()
        m.d.comb += [
            ended.eq(dut.i.valid & dut.i.ready & dut.i.payload.last & ~first),
            issued.eq(dut.o.valid & dut.o.ready & ~first),
        ]
        # Columns that ended in the last `latency` - 1 cycles, newest in bit 0: inside the pipeline.
        recent = Signal(p.latency - 1)
        m.d.sync += recent.eq(recent << 1 | ended)
        inside = Signal(range(columns + 2))
        m.d.sync += inside.eq(inside + ended - issued)
        moving = sum(recent)
        with m.If(~first):
            m.d.comb += [
                Assert(inside <= columns, "more columns than the queue holds"),
                Assert(dut.i.ready | (inside == columns), "refused with room"),
                Assert(~(issued & (inside == 0)), "a sum from nowhere"),
                Assert(dut.o.valid == (inside > moving), "a sum too early, late or lost"),
            ]
            if self._closed:
                ends = [
                    internals.signal(valid) & internals.signal(last)
                    for valid, last in STAGES[type(dut)]
                ]
                rows = internals.signal("sum.control_rows")
                ends += [rows[0] & rows[1], internals.signal("sum.done")]
                ends.append(internals.signal("sum.control_normal")[0])
                level = internals.signal("sum.queue.fifo.level")
                free = internals.signal("sum.credits.free")
                produce = internals.signal("sum.queue.fifo.produce")
                consume = internals.signal("sum.queue.fifo.consume")
                place = consume + level
                m.d.comb += [
                    Assert((produce < columns) & (consume < columns)),
                    Assert(produce == Mux(place < columns, place, place - columns)),
                    Assert(Cat(ends) == recent),
                    Assert(level + moving == inside),
                    Assert(free + inside == columns),
                ]
        m.d.comb += [
            Cover(inside == columns, "full"),
            Cover(issued & ended & (moving == 0), "a column ends while the only sum leaves"),
        ]
        return m


@dataclasses.dataclass(frozen=True)
class Target:
    multiplier: str


class SameSumSpec(Elaboratable):
    """A group's terms as a library of cells and as an FPGA adds them, modulo 2^width."""

    def __init__(self, parameters, multiplier, module=fixed_sum):
        self._parameters, self._target = parameters, Target(multiplier)
        self._module = module

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        unit = self._module.FixedSum(p)
        unit._MustUse__used = True  # only its functions are
        for term in unit.terms:
            m.d.comb += term.as_value().eq(AnyConst(len(term.as_value())))
        rows, ones = unit._added(m)
        fewer, one = unit._summed(m, self._target)
        expected, got = Signal(p.width), Signal(p.width)
        m.d.comb += [
            expected.eq(sum(row for row in rows) + ones[0] + ones[1]),
            got.eq(sum(row for row in fewer) + sum(one)),
            Assert(got == expected, "another sum"),
        ]
        return m


GROUPS = {
    "one": FixedSumParameters(1, 3, 5, 1, 20, 24, 1, 5),
    "wide": FixedSumParameters(1, 20, 5, 2, 60, 24, 1, 5),
    "three": FixedSumParameters(3, 4, 4, 1, 24, 24, 1, 5),
    "cut": FixedSumParameters(5, 3, 3, 0, 9, 24, 1, 5),
    "many": FixedSumParameters(7, 1, 1, 0, 6, 24, 1, 5),
}


CASES = [(name, multiplier) for name in GROUPS for multiplier in ("dsp", "dsp_shifts")]


@pytest.mark.parametrize(
    ("name", "multiplier"),
    suite_takes([("one", "dsp_shifts"), ("three", "dsp"), ("many", "dsp")], CASES),
)
def test_an_fpga_has_the_same_sum(name, multiplier):
    spec = SameSumSpec(GROUPS[name], multiplier)
    prove_block(spec, f"fixed_sum_{name}_{multiplier}", "bmc", depth=1, solver="bitwuzla")


def test_a_forgotten_one_is_found():
    module = with_fault(fixed_sum, "_add(x, y, ones.pop())", "_add(x, y, ones.pop() & 0)")
    spec = SameSumSpec(GROUPS["three"], "dsp", module)
    find_fault(spec, "fixed_sum_forgotten", "another sum", depth=1, solver="bitwuzla")


def spec_of(name, closed=True):
    kind, parameters = BLOCKS[name]
    return ColumnsSpec(kind(parameters), closed)


@pytest.mark.parametrize("name", BLOCKS)
def test_proof(name):
    prove_block(spec_of(name), f"fixed_sum_{name}", depth=2)


@pytest.mark.parametrize("name", BLOCKS)
def test_cover(name):
    prove_block(spec_of(name), f"fixed_sum_{name}", "cover", depth=22)


class ShortQueue(Queue):
    """One entry fewer than its parameters say."""

    def __init__(self, parameters, shape=None):
        super().__init__(QueueParameters(parameters.width, parameters.depth - 1), shape)


class GenerousCounter(fixed_sum.CreditCounter):
    """One credit more than the queue has entries."""

    def __init__(self, parameters):
        super().__init__(fixed_sum.CreditCounterParameters(parameters.credits + 1))


class MiserlyCounter(fixed_sum.CreditCounter):
    """One credit fewer than the queue has entries."""

    def __init__(self, parameters):
        super().__init__(fixed_sum.CreditCounterParameters(parameters.credits - 1))


@pytest.mark.parametrize(
    ("part", "faulty", "found_by"),
    [
        ("Queue", ShortQueue, "a sum too early, late or lost"),
        ("CreditCounter", GenerousCounter, "more columns than the queue holds"),
        ("CreditCounter", MiserlyCounter, "refused with room"),
    ],
)
def test_injected_fault_is_found(monkeypatch, part, faulty, found_by):
    monkeypatch.setattr(fixed_sum, part, faulty)
    spec = spec_of("reduction", closed=False)
    find_fault(spec, f"fixed_sum_{faulty.__name__}", found_by, depth=20, solver="yices")
