"""The row map of four slots, by unbounded proof (k-induction); and its limits."""

import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import (
    Array,
    Assert,
    Assume,
    Cover,
    Elaboratable,
    Module,
    Mux,
    Signal,
)

from hw.veda import row_map
from hw.veda.row_map import RowMap, RowMapParameters
from sim.checks.formal.specs import surround
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

SMALL = RowMapParameters(capacity=4, region_bits=2, tag_bits=1, contexts=2)
LOOK_UP, READ_LAST, WRITE_SLOT, WRITE_LAST = range(4)


class RowMapSpec(Elaboratable):
    """Any legal changes and look-ups, against a map that changes in one cycle.

    The map is one context's, either; what the other one does is not constrained.
    """

    def __init__(self, dut, inductive: bool = True):
        self.dut, self._inductive = dut, inductive

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        first, internals = surround(m, dut)
        live = ~first
        change, look = dut.change.payload, dut.i.payload
        changed = Signal()
        looked_up = Signal()
        used = Signal(range(p.capacity + 1))
        length = Signal(range(p.capacity + 1))
        rows = [Signal(p.slot_bits, name=f"row_{k}") for k in range(p.capacity)]
        before = [Signal(p.slot_bits, name=f"before_{k}") for k in range(p.capacity)]
        expected = Signal.like(look.as_value())
        mine = AnyConst(1)  # number of the context
        of_mine, look_of_mine = change.context == mine, look.region[-1] == mine
        m.d.comb += [
            changed.eq(dut.change.valid & dut.change.ready & of_mine & live),
            looked_up.eq(dut.i.valid & dut.i.ready & look_of_mine & live),
        ]
        with m.If(dut.change.valid & of_mine):
            legal = (change.slot < length) & (change.last == length - 1)
            begins = (change.slot == 0) | ((change.slot == length) & (length < p.capacity))
            m.d.comb += Assume(Mux(change.swap, legal, begins))
        with m.If(dut.i.valid & look_of_mine & ~(dut.change.valid & of_mine)):
            m.d.comb += Assume(look.slot < length)
        begun = (change.slot == 0) | (change.slot == used)
        with m.If(changed):
            m.d.sync += length.eq(Mux(change.swap, length - 1, change.slot + 1))
            with m.If(change.swap):
                table = Array(rows)
                m.d.sync += [old.eq(row) for old, row in zip(before, rows, strict=True)]
                for k, row in enumerate(rows):
                    with m.If(change.slot == k):
                        m.d.sync += row.eq(table[change.last])
                    with m.Elif(change.last == k):
                        m.d.sync += row.eq(table[change.slot])
            with m.Elif(begun):
                m.d.sync += used.eq(change.slot + 1)
                for k, row in enumerate(rows):
                    with m.If(change.slot == k):
                        m.d.sync += row.eq(k)
        with m.If(looked_up):
            row = Array(rows)[look.slot]
            m.d.sync += expected.eq(dut.i.payload)
            m.d.sync += expected[p.tag_bits : p.tag_bits + p.slot_bits].eq(row)

        state = internals.signal("phase_state")
        swapping = dut.change.valid & dut.change.ready & change.swap & live
        since = Signal(range(p.SWAP_CYCLES))  # cycles since a swap, up to its last
        m.d.sync += since.eq(Mux(since == p.SWAP_CYCLES - 1, 0, since + (swapping | (since != 0))))
        with m.If(live):
            m.d.comb += [
                Assert(
                    ~dut.o.valid
                    | (dut.o.payload.region[-1] != mine)
                    | (dut.o.payload.as_value() == expected),
                    "a wrong row",
                ),
                Assert((since != 0) | dut.change.ready | dut.o.valid, "a swap takes too long"),
                Assert(length <= used),
            ]
            for k, row in enumerate(rows):
                with m.If(k < used):
                    m.d.comb += Assert(row < used, "more rows than slots")
                    for other in range(k):
                        m.d.comb += Assert(row != rows[other], "two slots with one row")
        m.d.comb += [
            Cover(dut.o.valid & ~dut.o.ready & (dut.o.payload.slot == 0) & (rows[0] == 2)),
            Cover(swapping & of_mine & (length == p.capacity) & (change.slot == 1)),
            Cover(dut.i.valid & ~dut.i.ready & dut.o.valid),
        ]
        if self._inductive:
            with m.If(live):
                self._tie(m, internals, mine, state, rows, before, used, since)
        return m

    def _tie(self, m, internals, mine, state, rows, before, used, since):
        p, signal = self.dut.parameters, internals.signal
        swapped, row, data = signal("swapped"), signal("row"), self.dut.o.payload.slot
        slot, last = (swapped[1 + n * p.slot_bits :][: p.slot_bits] for n in range(2))
        idle = (state == LOOK_UP) | (swapped[-1] != mine)  # the other one's rows may be swapped
        words = [internals.row(m, "used.words", n) for n in range(p.contexts)]
        written = signal("used.written").bit_select(mine, 1)
        old = Array(before)
        m.d.comb += [
            Assert(Mux(written, Array(words)[mine], 0) == used),
            Assert(used <= p.capacity),
            Assert(since == state),
            Assert((state == LOOK_UP) | ~self.dut.o.valid),
            Assert(idle | (state != READ_LAST) | (data == old[slot])),
            Assert(idle | (state != WRITE_SLOT) | (data == old[last])),
            Assert(idle | (state <= READ_LAST) | (row == old[slot])),
            Assert(idle | ((slot < used) & (last < used))),
        ]
        for k, new in enumerate(rows):
            each = [internals.row(m, "rows", k + n * p.capacity) for n in range(p.contexts)]
            stored = Array(each)[mine]
            moved = Mux(slot == k, old[last], Mux(last == k, old[slot], before[k]))
            with m.If(k < used):
                with m.If(idle):
                    m.d.comb += Assert(stored == new)
                with m.Else():
                    m.d.comb += Assert(new == moved)
                    writing_last = (state == WRITE_LAST) & (slot == k)
                    m.d.comb += Assert(stored == Mux(writing_last, old[last], before[k]))


def test_proof():
    prove_block(RowMapSpec(RowMap(SMALL)), "row_map", depth=2)
    prove_block(RowMapSpec(RowMap(SMALL)), "row_map", "cover", depth=24)


FAULTS = [
    ("(change.payload.slot == 0) | (change", "(change"),
    ("word.eq(change.payload.slot + 1)", "word.eq(used.word + 1)"),
    ("read.addr.eq(last)", "read.addr.eq(slot)"),
    ("write.addr.eq(last), write.data.eq(row)", "write.addr.eq(last)"),
    ("Cat(of, swapped.context[: p.context_bits])", "Cat(of, i.payload.region[-1])"),
    ("Cat(i.payload.slot, looked_up)", "Cat(i.payload.slot, change.payload.context)"),
    ("used.context.eq(change.payload.context)", "used.context.eq(0)"),
    ("change.ready.eq(~o.valid)", "change.ready.eq(1)"),
    ("i.ready.eq(~change.valid & (~o", "i.ready.eq((~o"),
]


@pytest.mark.parametrize(("line", "instead"), FAULTS, ids=range(len(FAULTS)))
def test_faults_are_found(line, instead, request):
    dut = with_fault(row_map, line, instead).RowMap(SMALL)
    name = f"row_map_fault_{request.node.callspec.id}"  # a folder of its own, as they run at once
    find_fault(RowMapSpec(dut, inductive=False), name, depth=12)
