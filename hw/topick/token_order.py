"""The order in which a lane examines its tokens (Token-Picker, section 3.1)."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, enum

from hw.component import Component
from hw.layout import FLAG, count, position
from hw.ports import Ports, stream_in, stream_out


class Next(enum.Enum, shape=2):
    """Which row comes next."""

    NEWEST = 0
    FIRST = 1
    DESCENDING = 2


class TokenOrder(Component[None]):
    """The newest token, then the first one, then the others from new to old.

    These tend to have the largest probabilities, so the denominator grows early. A lane has some of
    a head's tokens, its rows, in ascending order; so row `tokens` - 1 is the newest token if the
    lane holds that, and row 0 the first one if it holds that.

    Example: 5 rows, both held: 4, 0, 3, 2, 1. Neither held: 4, 3, 2, 1, 0.

    Latency: 1 cycle. Throughput: a row per cycle; the next head's rows follow without a gap.
    """

    def __init__(self, row_bits: int):
        self._row_bits = row_bits
        super().__init__()

    def ports(self) -> Ports:
        start = data.StructLayout(
            {"tokens": count(self._row_bits + 1), "newest": FLAG, "first": FLAG}
        )
        return {
            "start": stream_in(
                start,
                "``tokens``: rows, 0 for none. ``newest``, ``first``: the lane holds that token.",
            ),
            "token": stream_out(position(self._row_bits)),
        }

    def elaborate(self, platform):
        m = Module()
        start = self.start.payload
        # Section 3.2 of the paper: recent tokens and the first one have large scores. When they
        # come first, the denominator is large early, and the bound p < threshold prunes the others
        # sooner.
        left = Signal(self._row_bits + 1)  # rows to come, this one included
        highest = Signal(self._row_bits)  # of those in descending order
        first = Signal()
        which = Signal(Next)
        m.d.comb += [
            self.token.valid.eq(left != 0),
            self.start.ready.eq((left == 0) | ((left == 1) & self.token.ready)),
        ]
        with m.If(which != Next.FIRST):
            m.d.comb += self.token.payload.eq(highest)
        with m.If(self.token.valid & self.token.ready):
            m.d.sync += left.eq(left - 1)
            # Row 0 is output second; the descending order ends above it, as `left` counts all rows.
            with m.If((which == Next.NEWEST) & first):
                m.d.sync += which.eq(Next.FIRST)
            with m.Else():
                m.d.sync += which.eq(Next.DESCENDING)
            with m.If(which != Next.FIRST):
                m.d.sync += highest.eq(highest - 1)
        # The next head begins with the last row of this one, without a cycle between.
        with m.If(self.start.valid & self.start.ready):
            m.d.sync += [
                left.eq(start.tokens),
                highest.eq(start.tokens - 1),
                first.eq(start.first),
                which.eq(Next.DESCENDING),
            ]
            with m.If(start.newest):
                m.d.sync += which.eq(Next.NEWEST)
            with m.Elif(start.first):
                m.d.sync += which.eq(Next.FIRST)
        return m
