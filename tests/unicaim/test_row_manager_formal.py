"""The row manager of two contexts with three rows each; unbounded proof.

For any beats, rows to evict and stalls: a row that does not evict was free, one that evicts was in
use and is the last one in `evict`, and every row is below the number in use after it. Registers
power up with any value; reset is high in the first cycle.
"""

from amaranth.hdl import Array, Assert, Assume, Cover, Elaboratable, Module, Mux, Signal

from hw.unicaim import row_manager
from hw.unicaim.row_manager import RowManager, RowOp
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

ROWS, CONTEXTS = 3, 2
ALL = (1 << ROWS) - 1


class ManagerSpec(Elaboratable):
    """The model: the set of rows in use of each context, and the last row to evict."""

    def __init__(self, dut, invariant: bool = True):
        self.dut, self._invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut, i, o = self.dut, self.dut.i.payload, self.dut.o.payload
        first, internals = surround(m, dut)
        live = ~first
        m.d.comb += Assume(dut.evict.payload.row < ROWS)

        in_use = Array(Signal(ROWS, name=f"in_use_{n}") for n in range(CONTEXTS))
        kept = Array(Signal(name=f"kept_{n}") for n in range(CONTEXTS))
        last_row = Array(Signal(range(ROWS), name=f"last_row_{n}") for n in range(CONTEXTS))
        beat, take, late, found = (Signal(name=name) for name in ("beat", "take", "late", "found"))
        mask, lowest, row, issued = (
            Signal(ROWS, name=name) for name in ("mask", "lowest", "row", "issued")
        )
        full, to_evict = Signal(), dut.evict.payload
        m.d.comb += [
            mask.eq(in_use[i.context]),
            full.eq(mask == ALL),
            lowest.eq(~mask & (mask + 1)),
            beat.eq(dut.i.valid & dut.i.ready & live),
            take.eq(beat & (i.op == RowOp.TAKE)),
            late.eq(full & ~kept[i.context]),
            found.eq(dut.evict.valid & dut.evict.ready & live),
            row.eq(Mux(full, 1 << last_row[i.context], lowest)),
            issued.eq(1 << o.row),
        ]
        with m.If(beat):
            m.d.sync += in_use[i.context].eq(Mux(take, mask | row, 0))
            with m.If(full):
                m.d.sync += kept[i.context].eq(0)
        with m.If(found):
            m.d.sync += [kept[to_evict.context].eq(1), last_row[to_evict.context].eq(to_evict.row)]

        # What the last TAKE is owed.
        owed = Signal()
        want, before, after = (Signal(ROWS, name=name) for name in ("want", "before", "after"))
        with m.If(take):
            m.d.sync += [owed.eq(1), want.eq(row), before.eq(mask), after.eq(mask | row)]
        with m.Elif(dut.o.valid & dut.o.ready & live):
            m.d.sync += owed.eq(0)

        clears = i.op == RowOp.CLEAR
        with m.If(live):
            m.d.comb += [
                Assert(~beat | ~late, "a beat without the row to evict"),
                Assert(
                    dut.i.ready == (~late & (clears | ~dut.o.valid | dut.o.ready)),
                    "a beat accepted at the wrong time",
                ),
                Assert(
                    dut.evict.ready == ~kept[to_evict.context],
                    "a row to evict accepted at the wrong time",
                ),
                Assert(dut.o.valid == owed, "a row lost or unexpected"),
            ]
            with m.If(dut.o.valid):
                m.d.comb += [
                    Assert(issued == want, "a wrong row"),
                    Assert(o.evicts == ((before & issued) != 0), "evicts says the opposite"),
                    Assert(~o.evicts | (before == ALL), "evicted though another row was free"),
                    Assert(o.full == (after == ALL), "a wrong full"),
                    Assert(o.row < sum(after[n] for n in range(ROWS)), "a row that is not in use"),
                ]
            if self._invariant:
                self._invariants(m, internals, in_use, kept, last_row)
                with m.If(owed):
                    m.d.comb += _assert_owed(want, before, after)
        m.d.comb += [
            Cover(take & full & (i.context == 1), "evicts"),
            Cover(beat & full & clears, "a CLEAR drops a row"),
            Cover(live & dut.i.valid & late & kept[~i.context], "waits"),
            Cover(found & (in_use[to_evict.context] != ALL), "a row to evict is early"),
        ]
        return m

    def _invariants(self, m, internals, in_use, kept, last_row):
        for number in range(CONTEXTS):
            count = sum(in_use[number][n] for n in range(ROWS))
            m.d.comb += [
                # Rows in use are those from 0 upwards, and no others.
                Assert((in_use[number] & (in_use[number] + 1)) == 0),
                Assert(internals.signal(f"used_{number}") == count),
                Assert(internals.signal("known")[number] == kept[number]),
                Assert(last_row[number] < ROWS),
                Assert(~kept[number] | (internals.signal(f"row_{number}") == last_row[number])),
            ]


def _assert_owed(want, before, after) -> list:
    """What the row owed has in common with those that the model may owe."""
    return [
        Assert((before & (before + 1)) == 0),
        Assert(after == before | want),
        Assert((want == 1) | (want == 2) | (want == 4)),
        Assert((before == ALL) | (want == before + 1)),
    ]


def manager(module=row_manager) -> RowManager:
    return module.RowManager(module.RowManagerParameters(ROWS, CONTEXTS))


def test_proof():
    prove_block(ManagerSpec(manager()), "row_manager", depth=2, seconds=200)


def test_cover():
    spec = ManagerSpec(manager(), invariant=False)
    prove_block(spec, "row_manager", "cover", depth=10, seconds=200)


FAULTS = {
    "replaces": ("evict.ready.eq(~(known >> evict_at)[0])", "evict.ready.eq(1)", "wrong time"),
    "evicts_early": ("full.eq(count == p.rows)", "full.eq(count >= p.rows - 1)", "a "),
    "never_waits": (
        "possible.eq(~full | (known >> at)[0])",
        "possible.eq(1)",
        "wrong time",
    ),
    "keeps_rows": ("used[number].eq(0)", "used[number].eq(1)", "a wrong"),
    "keeps_the_row_to_evict": ("accepted & full.replicate(p.contexts)", "0", "wrong time"),
    "says_full_late": ("o.full.eq(count >= p.rows - 1)", "o.full.eq(full)", "a wrong full"),
}


test_injected_fault_is_found = fault_test(
    row_manager, FAULTS, lambda m: ManagerSpec(manager(m), invariant=False), depth=12, seconds=200
)
