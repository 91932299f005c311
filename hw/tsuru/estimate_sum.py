"""The sum of powers of two of a head's estimates, a tile at a time, and single powers."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from hw.attention.delay import delay
from hw.component import Component
from hw.layout import count, mask
from hw.ports import Ports, wire_in, wire_out
from hw.tsuru.estimate import ESTIMATE, FRACTION
from hw.tsuru.row_format import SEARCH_ROWS

SUM_FRACTION = 24
"""Fraction bits of a sum of powers: terms of 2^-24 of the largest still count."""
POWER_BITS = 8
POWERS = [round(2.0 ** (POWER_BITS + n / (1 << FRACTION))) for n in range(1 << FRACTION)]
"""2^f of an estimate's fraction, in units of 2^-POWER_BITS."""
TERM = POWERS[-1].bit_length() + SUM_FRACTION - POWER_BITS
"""Bits of a term."""
OCTAVES = signed(ESTIMATE.width - FRACTION)
LOWEST = -(1 << OCTAVES.width - 1)
SUM_CYCLES = 6
"""Cycles from a tile to the sum with its terms."""


class EstimateSum(Component[None]):
    """total = sum of 2^(e - origin),   origin the octaves of the highest estimate so far.

    The terms of a tile are relative to the highest octave up to it. A tile that raises the origin
    shifts the sum of the tiles before, which cuts off bits, so tiles come in order.

    Latency: SUM_CYCLES. Throughput: a tile a cycle. There is no handshake.

    Parameters
    ----------
    width : int
        Bits of the sum.
    """

    def __init__(self, width: int):
        self._width = width
        super().__init__()

    def ports(self) -> Ports:
        return {
            "e": wire_in(data.ArrayLayout(ESTIMATE, SEARCH_ROWS), "Estimates of a tile."),
            "present": wire_in(mask(SEARCH_ROWS), "Which of them count."),
            "valid": wire_in(1, "A cycle later: they were a tile."),
            "clear": wire_in(1, "A new sum begins; no tile is on its way."),
            "origin": wire_out(count(OCTAVES), "Octaves of the highest estimate."),
            "total": wire_out(count(self._width), "The sum, with SUM_FRACTION fraction bits."),
        }

    def elaborate(self, platform):
        m = Module()
        # 1: the tile's highest octave.
        level = []
        for n, e in enumerate(self.e):
            octaves = Signal(OCTAVES, name=f"octaves_{n}")
            m.d.comb += octaves.eq(Mux(self.present[n], Value.cast(e)[FRACTION:], LOWEST))
            level.append(octaves)
        while len(level) > 1:
            pairs = [level[n : n + 2] for n in range(0, len(level), 2)]
            level = [Signal(OCTAVES, name=f"higher_{len(pairs)}_{n}") for n in range(len(pairs))]
            for higher, (a, b) in zip(level, pairs, strict=True):
                m.d.comb += higher.eq(Mux(a > b, a, b))
        highest = Signal(OCTAVES, reset_less=True)
        entry = Cat(self.e, self.present)
        first = delay(m, "entry", entry, 2, reset=False)
        m.d.sync += highest.eq(level[0])
        # 2: the highest so far, and by how much it rose.
        origin = Signal(OCTAVES, name="highest_origin", init=LOWEST)
        drop = Signal(OCTAVES.width, reset_less=True)
        rises = Signal()
        m.d.comb += [rises.eq(highest > origin), self.origin.eq(origin)]
        m.d.sync += drop.eq(Mux(rises, highest - origin, 0))
        with m.If(self.valid & rises):
            m.d.sync += origin.eq(highest)
        # 3 and 4: terms, relative to it.
        width = ESTIMATE.width
        terms = [
            power(m, first[n * width :][:width], origin, first[n - SEARCH_ROWS], f"{n}")
            for n in range(SEARCH_ROWS)
        ]
        # 5: their sum.
        added = Signal(TERM + 3, reset_less=True)
        m.d.sync += added.eq(sum(terms, Const(0, TERM)))
        # 6: the sum of all tiles.
        shift = delay(m, "drop", drop, 3, reset=False)
        with m.If(delay(m, "valid", self.valid, 4)):
            # A shift by 64 leaves nothing of a sum.
            far = shift[6:].any()
            m.d.sync += self.total.eq(Mux(far, 0, self.total >> shift[:6]) + added)
        with m.If(self.clear):
            m.d.sync += [origin.eq(LOWEST), self.total.eq(0)]
        return m


def power(m: Module, e: Value, origin: Value, present: Value, name: str) -> Signal:
    """2^(e - origin) in units of 2^-SUM_FRACTION, two cycles later; 0 if not `present`."""
    far = Signal(OCTAVES.width, name=f"far_{name}")
    distance = Signal(5, name=f"distance_{name}", reset_less=True)
    digits = Signal(POWERS[-1].bit_length(), name=f"digits_{name}", reset_less=True)
    term = Signal(TERM, name=f"term_{name}", reset_less=True)
    m.d.comb += far.eq(origin - e[FRACTION:].as_signed())
    # A shift by 31 is more than all of the term's bits.
    m.d.sync += [
        distance.eq(far[:5] | far[5:].any().replicate(5)),
        digits.eq(Mux(present, Array(POWERS)[e[:FRACTION]], 0)),
        term.eq(Cat(Const(0, SUM_FRACTION - POWER_BITS), digits) >> distance),
    ]
    return term
