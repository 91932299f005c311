"""The centre with which a new key is most nearly collinear (LAD, Algorithm 1, EAS.5)."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal

from hw.arith.bits.order_key import is_nan
from hw.arith.divide import Divide, DivideParameters
from hw.arith.float_format import FP16
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.arith.tables.lines import nearest
from hw.component import Component
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import index
from hw.ports import Ports, wire_in, wire_out

DIVIDE_STAGES = 4


class NearestCentre(Component[LadTileParameters]):
    """Of products k . K[c], the one with the largest cosine: |k . K[c]| / (|k| |K[c]|).

    ::

        position ─→ norm[c] ─→ × norm ─→ / ─→ compare ─→ best
        dot ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─→↑

    Of equal cosines the lowest position wins; a NaN is ignored. With `divide` the same divider
    gives |k| / |K[best]| instead, negative if k points the other way.

    Latency: 6 cycles from a product to `best`; with `divide`, 6 to `quotient`. Throughput: a
    product per cycle.
    """

    def __init__(self, parameters: LadTileParameters, collinear: float):
        self._collinear = collinear
        super().__init__(parameters)

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "begin": wire_in(1, "Forget all products."),
            "valid": wire_in(1, "The product with the centre at `position`."),
            "position": wire_in(p.position, "Position of that centre's key."),
            "dot": wire_in(FP16, "Product of the new key and the centre's key."),
            "norm": wire_in(FP16, "The new key's length."),
            "norm_row": wire_out(
                index(range(max(2, p.table_rows))), "A row of the centres' lengths is read;"
            ),
            "norms": wire_in(p.row_layout, "it is here in the next cycle."),
            "divide": wire_in(1),
            "idle": wire_out(1, "No product is under way."),
            "best": wire_out(p.position),
            "joins": wire_out(1, "Its cosine's magnitude is above `collinear`."),
            "quotient": wire_out(FP16),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        stages = 1 + DIVIDE_STAGES
        # What belongs to the quotient moves along with it.
        # Algorithm 1, lines 6 to 9: nothing here stalls, so a shift register of valid bits
        # suffices.
        valid = Signal(stages + 1)
        positions = [Signal(p.position, name=f"position_{n}") for n in range(stages + 1)]
        dots = [Signal(FP16, name=f"dot_{n}") for n in range(2)]
        m.d.sync += [
            valid.eq(Cat(self.valid, valid[:-1])),
            positions[0].eq(self.position),
            *(after.eq(before) for before, after in zip(positions, positions[1:], strict=False)),
            dots[0].eq(self.dot),
            dots[1].eq(dots[0]),
        ]
        # Cycle by cycle: read the centre's length, multiply by the new key's, divide.
        # While `divide` is high no product is under way, so the operands remain selected as long as
        # the divider needs and no state machine is necessary.
        lane = Signal(range(p.d))
        chosen = Signal(FP16)
        stored = Signal(FP16, reset_less=True)
        m.submodules.lengths = lengths = FloatMultiply(FloatMultiplyParameters(stages=1))
        m.submodules.divider = divider = Divide(DivideParameters(stages=DIVIDE_STAGES))
        m.d.comb += [
            self.norm_row.eq(Mux(self.divide, self.best, self.position) >> p.element_bits),
            lane.eq(Mux(self.divide, self.best, positions[0])),
            chosen.eq(Array(self.norms)[lane]),
            lengths.a.eq(self.norm),
            lengths.b.eq(chosen),
            divider.a.eq(Mux(self.divide, self.norm, dots[1])),
            divider.b.eq(Mux(self.divide, stored, lengths.o)),
        ]
        m.d.sync += stored.eq(chosen)

        magnitude = Signal(FP16.width - 1)  # bits of the largest cosine so far
        negative = Signal()
        found, here = divider.o[:-1], positions[stages]
        better = Signal()
        m.d.comb += [
            # Magnitudes compare as unsigned integers (line 8 compares |cos|). Products may come in
            # any order, so ties go to the lower position by comparison.
            better.eq(
                valid[stages]
                & ~is_nan(divider.o)
                & ((found > magnitude) | ((found == magnitude) & (here < self.best)))
            ),
            self.idle.eq(~valid.any() & ~self.valid),
            self.joins.eq(magnitude > nearest(self._collinear, FP16)),
            # Lines 12 and 15: dnorm is negative for a key that points the other way.
            self.quotient.eq(Cat(found, divider.o[-1] ^ negative)),
        ]
        with m.If(self.begin):
            m.d.sync += [magnitude.eq(0), self.best.eq(0), negative.eq(0)]
        with m.Elif(better):
            m.d.sync += [magnitude.eq(found), negative.eq(divider.o[-1]), self.best.eq(here)]
        return m
