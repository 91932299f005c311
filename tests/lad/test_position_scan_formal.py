"""The scan of positions: each set bit's position once, ascending, none left out; unbounded proof.

The bits are arbitrary and constant, stalls are arbitrary. Two arbitrary positions are followed.
"""

import dataclasses

import pytest
from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Cover, Elaboratable, Fragment, Module, Mux, Signal

from hw.lad import position_scan
from hw.lad.position_scan import PositionScan
from hw.lad.tile_parameters import LadTileParameters
from sim.checks.formal.specs import Internals, reset_first, watch
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

SIZE = dataclasses.replace(LadTileParameters.preset("small"), positions=24)
"""Three rows of eight positions."""

IDLE, ROW, TAKE, OUTPUT = range(4)
"""States of the scan."""


class ScanSpec(Elaboratable):
    """`low` and `high` are positions of which it is known whether they have been output."""

    def __init__(self, dut: PositionScan, invariant: bool = True):
        self._dut, self._invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut, p = self._dut, self._dut.parameters
        m.submodules.dut = fragment = Fragment.get(dut, None)
        first = reset_first(m)
        watch(m, first, dut.positions)
        bits = Signal(p.d * p.table_rows)
        rows = Signal.like(dut.rows)
        low, high = Signal(p.position), Signal(p.position)
        scanning, scanned = Signal(), Signal()
        read = Signal.like(dut.row)  # the row whose bits are there
        m.d.sync += read.eq(dut.row)
        m.d.comb += [
            bits.eq(AnyConst(len(bits))),
            rows.eq(AnyConst(len(rows))),
            low.eq(AnyConst(len(low))),
            high.eq(AnyConst(len(high))),
            Assume(rows <= p.table_rows),
            Assume((low < high) & (high < p.positions)),
            dut.begin.eq(AnySeq(1) & ~scanning & ~first),
            dut.rows.eq(rows),
            dut.bits.eq(bits.word_select(read, p.d)),
        ]
        with m.If(dut.begin):
            m.d.sync += [scanning.eq(1), scanned.eq(1)]
        with m.Elif(scanning & dut.finished):
            m.d.sync += scanning.eq(0)

        port = dut.positions
        taken = Signal()
        m.d.comb += taken.eq(port.valid & port.ready & ~first)
        followed = []
        for position in (low, high):
            seen = Signal()
            here = taken & (port.payload == position)
            is_set = bits.bit_select(position, 1) & (position < rows * p.d)
            with m.If(dut.begin):
                m.d.sync += seen.eq(0)
            with m.Elif(here):
                m.d.sync += seen.eq(1)
            followed.append((position, seen, here, is_set))
            with m.If(~first):
                m.d.comb += [
                    Assert(~here | is_set, "a position whose bit is not set"),
                    Assert(~here | ~seen, "a position twice"),
                    Assert(
                        ~(scanned & dut.finished & ~scanning) | (seen == is_set),
                        "a position is left out",
                    ),
                ]
        (_, seen_low, here_low, set_low), (_, seen_high, *_) = followed
        with m.If(~first):
            m.d.comb += Assert(~here_low | ~seen_high, "not ascending")
            if self._invariant:
                self._invariants(m, fragment, scanning, scanned, read, rows, followed)
        m.d.comb += Cover(
            dut.finished & seen_low & seen_high & (rows == p.table_rows), "both were output"
        )
        return m

    def _invariants(self, m, fragment, scanning, scanned, read, rows, followed):
        dut, p = self._dut, self._dut.parameters
        state, left = (Internals(fragment).signal(name) for name in ("fsm_state", "left"))
        row = dut.row
        m.d.comb += [
            Assert(row <= rows),
            Assert((state == IDLE) | (scanning & ~dut.finished)),
            Assert((state != IDLE) | ~scanning | dut.finished),
            Assert(~scanning | scanned),
            Assert((state != TAKE) | ((read == row) & (row < rows))),
            Assert((state != OUTPUT) | (row != 0)),
        ]
        (low, seen_low, _, set_low), (high, seen_high, *_) = followed
        m.d.comb += Assert(~scanned | ~seen_high | ~set_low | seen_low)
        for position, seen, _, is_set in followed:
            place = position >> p.element_bits
            in_row = left.bit_select(position[: p.element_bits], 1)
            before = Mux(state == OUTPUT, place + 1 < row, place < row)
            m.d.comb += [
                Assert(~scanned | ~seen | is_set),
                Assert(~scanned | (state == IDLE) | ~before | (seen == is_set)),
                Assert(~scanned | (state == IDLE) | (place < row) | ~seen),
                Assert((state != IDLE) | ~scanned | (seen == is_set)),
                Assert((state != OUTPUT) | (place + 1 != row) | (in_row == (is_set & ~seen))),
            ]


FAULTS = {
    "the highest bit is dropped": ("left & (left - 1)", "left[:-1] & (left - 1)", "left out"),
    "rows begin with the second one": ("row.eq(0)", "row.eq(1)", "left out|not set"),
    "a stalled position is lost": ("m.Elif(positions.ready)", "m.Else()", "left out|changed"),
    "the last row is not read": ("row == self.rows", "row + 1 == self.rows", "left out|not set"),
}
"""Source line, what stands there instead, the assertion that is to fail."""


def test_proof():
    prove_block(ScanSpec(PositionScan(SIZE)), "position_scan", depth=2)


def test_cover():
    prove_block(ScanSpec(PositionScan(SIZE), False), "position_scan", "cover", depth=22)


@pytest.mark.parametrize("fault", FAULTS)
def test_injected_fault_is_found(fault):
    line, instead, found_by = FAULTS[fault]
    spec = ScanSpec(with_fault(position_scan, line, instead).PositionScan(SIZE), False)
    find_fault(spec, f"position_scan_{fault.replace(' ', '_')}", found_by, depth=20)
