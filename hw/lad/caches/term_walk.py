"""Terms of the positions that change their mode in a head-step (LAD, Algorithm 2, AC.5 to AC.8)."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory

from hw.arith.float_format import FP16
from hw.component import Component
from hw.lad.apid_parameters import MODE_BITS
from hw.lad.tile_parameters import LadTileParameters
from hw.lad.tile_sizes import LANES
from hw.layout import index
from hw.ports import Ports, wire_in, wire_out


class TermWalk(Component[LadTileParameters]):
    """Records changes of modes, then walks their terms, one per cycle.

    ::

        change, k, v ─→ records, rows ─→ minus ≠ 0: remove a[minus], b[minus], k, v ─┐
                                         plus  ≠ 0: add    a[plus],  b[plus],  k, v ─┴→ term

    A position that changes its mode is one term for its old line and one for its new one; mode 0
    has no line. A walk gives all terms in the order of the positions: once, or, while `repeats` is
    high, once for each column of a lane, each time with V's elements of that column.

    Cycles: the first term is there 2 cycles after `begin`, then there is one in each cycle.
    Overflow: more than `updates` changes between two `restart` are an error of the caller.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "restart": wire_in(1, "Forget all changes."),
            "change": wire_in(1, "Record a position's change, with its rows."),
            "minus": wire_in(index(MODE_BITS), "Mode that the position leaves, 0 for none."),
            "plus": wire_in(index(MODE_BITS), "Mode that the position gets, 0 for none."),
            "k": wire_in(p.row_layout, "Row of K of the position that changes."),
            "v": wire_in(p.row_layout, "Row of V of the position that changes."),
            "terms": wire_out(range(2 * p.updates + 1), "Number of terms of all changes."),
            "begin": wire_in(1),
            "repeats": wire_in(1),
            "valid": wire_out(1, "A term is valid."),
            "subtract": wire_out(1, "The term is of the old mode and is subtracted."),
            "first": wire_out(1, "The term is the first one of its column."),
            "last": wire_out(1, "The term is the last one of its column."),
            "slope": wire_out(FP16, "Slope a of the mode's line."),
            "intercept": wire_out(FP16, "Intercept b of the mode's line."),
            "k_out": wire_out(p.row_layout, "The position's row of K."),
            "v_out": wire_out(p.row_layout, "The position's row of V."),
            "elements": wire_out(
                data.ArrayLayout(FP16, LANES), "V's element of each lane's column."
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        # The changes are few (|U|, at most `updates`), and their rows are needed d / 3 times: they
        # are kept here, as the rows of positions that did not change have gone.
        records = Signal(data.ArrayLayout(_record_layout(), p.updates), reset_less=True)
        changes = Signal(range(p.updates + 1))
        # No block memory: V's elements go to a multiplier in the same cycle.
        rows = memory.Memory(shape=2 * p.row_bits, depth=p.updates, init=[])
        m.submodules.rows = rows
        keep, kept = rows.write_port(), rows.read_port()

        # Record.
        m.d.comb += [
            keep.en.eq(self.change),
            keep.addr.eq(changes),
            keep.data.eq(Cat(self.k, self.v)),
        ]
        with m.If(self.restart):
            m.d.sync += [changes.eq(0), self.terms.eq(0)]
        with m.Elif(self.change):
            m.d.sync += [
                records[changes].minus.eq(self.minus),
                records[changes].plus.eq(self.plus),
                changes.eq(changes + 1),
                self.terms.eq(self.terms + self.minus.any() + self.plus.any()),
            ]

        # Walk: the term of change `number` that removes its old line, then, if there is one, the
        # `second` that adds its new line.
        running = Signal()
        second = Signal()
        number = Signal(range(p.updates))
        column = Signal(range(p.columns))
        record = Signal(_record_layout())
        removes = Signal()
        more = Signal()
        final = Signal()
        mode = Signal(MODE_BITS)
        m.d.comb += [
            record.eq(Array(Value.cast(records[each]) for each in range(p.updates))[number]),
            # The old line's term goes first. A mode of 0 has the line 0 and so no term.
            removes.eq(~second & record.minus.any()),
            more.eq(removes & record.plus.any()),
            final.eq((number == changes - 1) & ~more),
            mode.eq(Mux(removes, record.minus, record.plus)),
            kept.addr.eq(number),
            kept.en.eq(running),
            Cat(self.k_out, self.v_out).eq(kept.data),
        ]
        with m.If(running):
            m.d.sync += [second.eq(more), number.eq(Mux(more, number, number + 1))]
            # The walk begins anew for each column (AC.5): columns outside, positions inside, as in
            # the paper, because a column's sum then remains in the accumulators until it is
            # complete.
            with m.If(final):
                m.d.sync += number.eq(0)
                with m.If(self.repeats & (column != p.columns - 1)):
                    m.d.sync += column.eq(column + 1)
                with m.Else():
                    m.d.sync += running.eq(0)
        with m.If(self.begin):
            m.d.sync += [running.eq(1), number.eq(0), second.eq(0), column.eq(0)]

        # One cycle later, with the rows from the memory.
        for table, o in (
            (p.tables.slopes, self.slope),
            (p.tables.intercepts, self.intercept),
        ):
            m.d.sync += o.eq(Array(Const(value, FP16.width) for value in table)[mode])
        column_read = Signal.like(column)
        m.d.sync += [
            self.valid.eq(running),
            self.subtract.eq(removes),
            self.first.eq((number == 0) & ~second),
            self.last.eq(final),
            column_read.eq(column),
        ]
        self._choose(m, column_read)
        return m

    def _choose(self, m: Module, column: Signal) -> None:
        """V's element of each lane's `column`."""
        columns = self.parameters.columns
        for lane, element in enumerate(self.elements):
            start = lane * columns
            choices = list(self.v_out[start : start + columns])
            # A lane's columns are consecutive, so the element of V is chosen among d / 3, not d.
            with m.Switch(column):
                for choice, value in enumerate(choices):
                    with m.Case(choice) if choice < len(choices) - 1 else m.Default():
                        m.d.comb += element.eq(value)


def _record_layout() -> data.StructLayout:
    """A change of mode; 0: no term."""
    return data.StructLayout({"minus": index(MODE_BITS), "plus": index(MODE_BITS)})
