"""The order in which a lane examines its tokens (Token-Picker, section 3.1)."""

from amaranth.hdl import Module, Mux, Signal

from hw.component import Component
from hw.layout import FLAG, count, position
from hw.ports import Ports, wire_in, wire_out


class TokenOrder(Component[None]):
    """The newest token, then the first one, then the others from new to old.

    These tend to have the largest probabilities, so the denominator grows early. A lane has some of
    a head's tokens, its rows, in ascending order; so row `tokens` - 1 is the newest token if the
    lane holds that, and row 0 the first one if it holds that.

    Example: 5 rows, both held: 4, 0, 3, 2, 1. Neither held: 4, 3, 2, 1, 0.

    Latency: 1 cycle from ``start`` to the first row. Throughput: a row per cycle; a head may start
    in the cycle in which the last row is taken. After `tokens` rows ``row`` has no meaning.
    """

    def __init__(self, row_bits: int, first: bool):
        self._row_bits = row_bits
        self._first = first
        super().__init__()

    def ports(self) -> Ports:
        return {
            "start": wire_in(1, "A head begins."),
            "tokens": wire_in(count(self._row_bits + 1), "Its rows."),
            "newest": wire_in(
                FLAG, "The lane holds the newest token; only looked at with `first`."
            ),
            "take": wire_in(1, "The row is taken."),
            "row": wire_out(position(self._row_bits)),
        }

    def elaborate(self, platform):
        m = Module()
        # Section 3.2 of the paper: recent tokens and the first one have large scores. When they
        # come first, the denominator is large early, and the bound p < threshold prunes the others
        # sooner.
        highest = Signal(self._row_bits)  # of the rows in descending order
        zero = Signal()  # row 0 comes next
        then_zero = Signal()  # row 0 comes after the next one
        m.d.comb += self.row.eq(Mux(zero, 0, highest))
        with m.If(self.take & ~zero):
            # The descending order ends above row 0 if that was second, as the taker counts rows.
            m.d.sync += highest.eq(highest - 1)
        with m.If(self.start):
            m.d.sync += highest.eq(self.tokens - 1)
        # Without the first token the newest one is the highest row anyway.
        if self._first:
            with m.If(self.take):
                m.d.sync += [zero.eq(then_zero), then_zero.eq(0)]
            with m.If(self.start):
                m.d.sync += [zero.eq(~self.newest), then_zero.eq(self.newest)]
        return m
