"""The largest of a vector's scores and the sum of their exponentials, tile by tile (VEDA, IV-B)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP16
from hw.arith.leading_zeros import leading_one, shift_to_top
from hw.arith.order_key import is_nan
from hw.arith.reciprocal import double_reciprocal
from hw.arith.wide_exponent import EXPONENT, INVERSE, INVERSE_WIDTH, POWER, SIGNIFICAND
from hw.component import Component
from hw.stream.queue import Queue, QueueParameters
from hw.veda.binary_exponent import FARTHEST, WHOLE, BinaryExponent, Term

DROP = 5
"""Bits of the octaves that a sum is moved down by; from 2^DROP on, nothing is left of it."""

ENDED = 3
"""Cycles, besides those of the last tile, from a vector's last score to the one after `ended`."""


class SoftmaxReduction(Component):
    """origin = min of whole(x), total = sum of 2^(origin - exponent(x)), 1 / total.

    ::

        x ─→ exponent ─┬→ tile ─→ 2^(origin - exponent) ─→ total ─→ 1 / total
                       └→ minimum ──────────┘

    Scores wait in a FIFO until their tile is full or the vector at its end, while the lowest
    exponent is found (of 2^-exponent: the highest score). Then the tile is drained into the sum,
    one term a cycle, and the next tile fills. Where a tile lowers the origin, the sum so far is
    corrected by a power of two, which is exact but for what is cut off: a whole number of octaves
    is what e^(m_old - m_new) is rounded to, in the origin and so in the terms alike.

    The sum has `places` bits behind the point; terms and corrections are cut off there.

    Throughput: one score a cycle; not every cycle needs to bring one. A vector must not begin
    before the last one `ended`, and what is given out here stays until then.

    Members
    -------
    valid, last : :py:`In(1)`
        A score is there, the vector's last.
    x : :py:`In(16)`
        FP16.
    ended : :py:`Out(1)`
        The last term is taken from its tile: min(n, tile) + 2 cycles after the last of n scores
        if they come without a gap. From the next cycle on, the origin is final.
    origin : :py:`Out(signed(18))`
    inverse : :py:`Out(15)`
        2 / s in units of 2^-14, where the sum is s 2^order and 1 <= s < 2; 7 cycles after `ended`.
    order : :py:`Out(signed)`
        2 cycles before that.
    undefined, empty : :py:`Out(1)`
        There is a NaN or plus infinity; all scores are minus infinity. With `order`.
    """

    def __init__(self, length: int, tile: int):
        self._tile = tile
        self._log = (length - 1).bit_length()
        super().__init__(
            {
                "valid": In(1),
                "last": In(1),
                "x": In(FP16.width),
                "ended": Out(1),
                "origin": Out(WHOLE),
                "inverse": Out(INVERSE_WIDTH),
                "order": Out(EXPONENT),
                "undefined": Out(1),
                "empty": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.exponent = exponent = BinaryExponent()
        m.d.comb += exponent.x.eq(self.x)
        bad = is_nan(self.x) | (self.x == FP16.infinity)
        valid, last, bad = _delay(m, "score", Cat(self.valid, self.last, bad), 2)

        # Fill a tile.
        entry = data.StructLayout(
            {"fraction": POWER, "whole": WHOLE, "first": 1, "opening": 1, "last": 1}
        )
        m.submodules.tile = queue = Queue(QueueParameters(entry.size, self._tile + 1), shape=entry)
        number = Signal(range(self._tile))
        opening = Signal(init=1)
        lowest, lower, coming = (Signal(WHOLE, name=n) for n in ("lowest", "lower", "coming"))
        full, ready = Signal(), Signal(range(self._tile + 1))
        pop = Signal()
        undefined = Signal()
        m.d.comb += [
            lower.eq(Mux(opening | (exponent.whole < lowest), exponent.whole, lowest)),
            full.eq(valid & (last | (number == self._tile - 1))),
            queue.i.valid.eq(valid),
            queue.i.payload.fraction.eq(exponent.fraction),
            queue.i.payload.whole.eq(exponent.whole),
            queue.i.payload.first.eq(number == 0),
            queue.i.payload.opening.eq(opening),
            queue.i.payload.last.eq(last),
        ]
        with m.If(valid):
            m.d.sync += [
                number.eq(Mux(full, 0, number + 1)),
                opening.eq(last),
                lowest.eq(lower),
                undefined.eq(bad | (undefined & ~opening)),
            ]
        with m.If(full):
            m.d.sync += coming.eq(lower)
        m.d.sync += ready.eq(ready + Mux(full, number + 1, 0) - pop)

        # Drain it.
        score = queue.o.payload
        current, drop = Signal(WHOLE), Signal(WHOLE.width)
        clear = Signal()
        m.submodules.term = term = Term()
        m.d.comb += [
            pop.eq(ready.any()),
            queue.o.ready.eq(pop),
            current.eq(Mux(score.first, coming, self.origin)),
            term.whole.eq(score.whole),
            term.origin.eq(current),
            term.fraction.eq(score.fraction),
            self.ended.eq(pop & score.last),
        ]
        with m.If(pop):
            m.d.sync += self.origin.eq(current)
        m.d.sync += [
            drop.eq(Mux(score.first, self.origin - coming, 0)),
            clear.eq(score.opening),
        ]
        adding, ending = _delay(m, "term_2", Cat(pop, self.ended), 2)
        correction, gone = Signal(DROP), Signal()
        m.d.sync += [correction.eq(drop), gone.eq(clear | drop[DROP:].any())]
        self._add(m, term, adding, ending, correction, gone, undefined)
        return m

    def _add(self, m: Module, term, adding, ending, correction, gone, undefined) -> None:
        places, log = 15 + self._log, self._log
        width = places + log
        addend, total = Signal(places, reset_less=True), Signal(width, reset_less=True)
        digits = Cat(Const(0, places - SIGNIFICAND), term.digits)
        m.d.sync += addend.eq(digits >> term.shift)
        adding, ending, gone = _delay(m, "addend", Cat(adding, ending, gone), 1)
        moved = Signal(DROP, reset_less=True)
        m.d.sync += moved.eq(correction)
        rest = Signal(width)
        m.d.comb += rest.eq(Mux(gone, 0, total >> moved))
        with m.If(adding):
            m.d.sync += total.eq(rest + addend)
        done = _delay(m, "done", adding & ending, 1)
        with m.If(done):
            m.d.sync += [self.undefined.eq(undefined), self.empty.eq(self.origin == FARTHEST)]

        # Its leading one is one of the first bits: one term at least is not moved down.
        position = leading_one(m, total[places - 1 :])
        top = shift_to_top(m, total, position)
        fraction = Signal(12, reset_less=True)
        zeros = ~position
        m.d.sync += [fraction.eq(top[width - 13 : -1]), self.order.eq(log - 1 - zeros)]
        parts = []
        for n, part in enumerate(INVERSE.terms(m, double_reciprocal, fraction)):
            parts.append(Signal.like(part, name=f"inverse_{n}", reset_less=True))
            m.d.sync += parts[-1].eq(part)
        m.d.sync += self.inverse.eq(sum(parts, 0))


def _delay(m: Module, name: str, value, cycles: int) -> Signal:
    """`value` so many cycles later."""
    for n in range(cycles):
        register = Signal(len(value), name=f"{name}_{n + 1}")
        m.d.sync += register.eq(value)
        value = register
    return value
