"""Which keys have exact scores: those of M, then the window (LAD, section IV-B, part 2)."""

from amaranth.hdl import Module, Mux, Signal

from hw.component import Component
from hw.lad.position_scan import PositionScan
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import index
from hw.ports import Ports, stream_out, wire_in, wire_out


class ExactKeys(Component[LadTileParameters]):
    """Positions of M, from a bit for each position, then positions of the window, and their number.

    Cycles: :class:`hw.lad.position_scan.PositionScan`; the window's a position per cycle.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "restart": wire_in(1, "A new head: the counts become 0; its scan begins with `go`."),
            "go": wire_in(1, "The bits are there."),
            "old": wire_in(range(p.positions + 1), "Number of positions before the window."),
            "n": wire_in(p.number, "Number of all positions."),
            "row": wire_out(index(range(p.table_rows + 1)), "The row of bits that is read."),
            "bits": wire_in(p.d, "The row's bits, in the cycle after `row`."),
            "position": stream_out(p.position),
            "large": wire_out(range(p.positions + 1), "Number of positions of M so far."),
            "emitted": wire_out(range(p.positions + 1), "Number of all positions so far."),
            "finished": wire_out(1, "All positions have been accepted."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.scan = scan = PositionScan(p)
        # Two sources in ascending order of positions: M by its bits, then the window, all of whose
        # keys are exact because their modes have not settled (LAD, III-E).
        scanned = Signal()  # the scan has begun
        in_window = Signal()  # which follows the positions of M
        windowed = Signal(range(p.positions + 1))  # the next position of the window
        position = self.position
        m.d.comb += [
            scan.begin.eq(self.go & ~scanned),
            # Only rows with positions before the window: later bits are not set in this head.
            scan.rows.eq((self.old + (p.d - 1)) >> p.element_bits),
            scan.bits.eq(self.bits),
            self.row.eq(scan.row),
            in_window.eq(scanned & scan.finished),
            position.valid.eq(scan.positions.valid | (in_window & (windowed != self.n))),
            position.payload.eq(Mux(in_window, windowed, scan.positions.payload)),
            scan.positions.ready.eq(position.ready),
            self.finished.eq(in_window & ~position.valid),
        ]
        with m.If(scan.begin):
            m.d.sync += [scanned.eq(1), windowed.eq(self.old)]
        # The counts are reported with the head, after its last score.
        with m.If(self.restart):
            m.d.sync += [scanned.eq(0), self.large.eq(0), self.emitted.eq(0)]
        with m.If(position.valid & position.ready):
            m.d.sync += [
                self.emitted.eq(self.emitted + 1),
                self.large.eq(self.large + ~in_window),
                windowed.eq(windowed + in_window),
            ]
        return m
