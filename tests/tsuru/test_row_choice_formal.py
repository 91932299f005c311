"""Rows and rests of the choice keep the rules of streams; unbounded proof, and a fault it finds."""

import pytest
from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Cat, Cover, Elaboratable, Module, Mux, Signal, Value

from hw.tsuru import row_choice
from hw.tsuru.row_choice import RowChoice, RowChoiceParameters
from hw.tsuru.row_format import SEARCH_ROWS
from hw.tsuru.row_search import PLANES
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

P = RowChoiceParameters(d=8, capacity=16, parallel=1, sinks=1)


class RulesSpec(Elaboratable):
    """Batches of one arbitrary length: as many tiles as it has, and no row after the newest.

    inductive
        Whether it asserts the induction's invariants; estimates are 0 without.

    Attributes
    ----------
    newest : Signal
        Slot of the newest row.
    last_tile, tile : Signal
        Number of a batch's last tile, and of the next to come in.
    beyond : Signal
        Slots of the last tile that have no row as they are after the newest.
    """

    def __init__(self, dut, inductive: bool = True):
        self.dut, self._inductive = dut, inductive
        self.newest = Signal(dut.parameters.slot_bits)
        self.last_tile, self.tile = Signal(len(self.newest) - 3), Signal(len(self.newest) - 3)
        self.beyond = Signal(SEARCH_ROWS)

    def elaborate(self, platform):
        m = Module()
        p, dut = self.dut.parameters, self.dut
        first, internals = surround(m, dut, leave=["i"])
        slots = Signal.like(dut.batch.payload.slots)
        i = dut.i.payload
        if self._inductive:
            estimates = Value.cast(i.e)
            m.d.comb += estimates.eq(AnySeq(len(estimates)))
        m.d.comb += [
            dut.i.valid.eq(AnySeq(1)),
            i.present.eq(AnySeq(SEARCH_ROWS)),
            i.last.eq(self.tile == self.last_tile),
            slots.eq(AnyConst(len(slots))),
            Assume((slots > 0) & (slots <= p.slots)),
            self.newest.eq(Mux(slots <= p.sinks * PLANES, 0, slots - 1)),
            self.last_tile.eq(self.newest[3:]),
            self.beyond.eq(Cat(self.newest[:3] < n for n in range(SEARCH_ROWS))),
            Assume(dut.batch.payload.slots == slots),
            Assume(~i.last | ~(i.present & self.beyond).any()),
        ]
        with m.If(dut.i.valid & dut.i.ready & ~first):
            m.d.sync += self.tile.eq(Mux(i.last, 0, self.tile + 1))
        if self._inductive:
            with m.If(~first):
                self._invariants(m, internals)
        m.d.comb += [
            Cover(~first & dut.o.valid & ~dut.o.ready & (dut.o.payload.row == 2), "a stalled row"),
            Cover(~first & dut.rest.valid & ~dut.rest.ready, "a stalled rest"),
        ]
        return m

    def _invariants(self, m: Module, internals) -> None:
        """Tiles follow one another until the last, and nothing is left when a rest is made."""
        end = self.last_tile
        names = "busy reading looked left next_tile of_looked tile_number ending chosen newest tile"
        busy, reading, looked, left, to_read, of_looked, number, ending, chosen, newest, filling = (
            internals.signal(name) for name in names.split()
        )
        active = reading | looked | left.any()
        m.d.comb += [
            Assert(filling == self.tile),
            Assert(self.tile <= end),
            Assert(~(active | ending) | busy),
            Assert(~(active & ending)),
            Assert(~busy | (newest == self.newest)),
            Assert(~reading | (to_read <= end)),
            Assert(~looked | (of_looked + 1 == Mux(reading, to_read, end + 1))),
            Assert(~(looked & (of_looked == end)) | ~(chosen & self.beyond).any()),
            Assert(~(left.any() & (number == end)) | ~(left & self.beyond).any()),
        ]
        with m.If(left.any()):
            following = Mux(looked, of_looked, Mux(reading, to_read, end + 1))
            m.d.comb += Assert(number + 1 == following)
        # Memories have no reset: a buffer's last tile is known once it is full.
        into, of = internals.signal("buffer"), internals.signal("chosen_buffer")
        m.d.comb += Assert((into ^ of) == busy)
        for buffer, known in ((into, internals.signal("full")), (of, busy)):
            row = internals.row(m, "estimates", Cat(buffer, end))
            m.d.comb += Assert(~known | ~(row[-SEARCH_ROWS:] & self.beyond).any())


def test_stream_rules():
    prove_block(RulesSpec(RowChoice(P)), "tsuru_row_choice_rules", depth=2)


@pytest.mark.campaign
def test_cover():
    spec = RulesSpec(RowChoice(P), inductive=False)
    prove_block(spec, "tsuru_row_choice_cover", "cover", depth=26, seconds=900)


test_injected_fault_is_found = fault_test(
    row_choice,
    {
        "a tile moves on when its last row is stalled": (
            "(goes & (left == lowest))",
            "(left == lowest)",
            "a stalled",
        )
    },
    lambda m: RulesSpec(m.RowChoice(P), inductive=False),
    depth=19,
)
