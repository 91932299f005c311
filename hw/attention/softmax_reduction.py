"""The largest of a vector's scores and the sum of their exponentials, tile by tile (VEDA, IV-B)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data

from hw.arith.bits.leading_zeros import leading_one, shift_to_top
from hw.arith.bits.order_key import is_nan
from hw.arith.float_format import FP16
from hw.arith.reciprocal import double_reciprocal
from hw.arith.wide_exponent import EXPONENT, INVERSE, INVERSE_WIDTH, POWER, SIGNIFICAND
from hw.attention.binary_exponent import FARTHEST, OCTAVES, BinaryExponent, Term
from hw.attention.delay import delay
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out
from hw.stream.queue import Queue, QueueParameters

CORRECTION_BITS = 5
"""Bits of the shift that corrects a sum; a sum moved down by 32 octaves or more becomes 0."""

LAST_TILE_CYCLES = 3
"""Cycles from a vector's last score to the cycle after `ended`, besides one a score of its tile."""


class SoftmaxReduction(Component[None]):
    """origin = min of octaves(x), total = sum of 2^(origin - exponent(x)), 1 / total.

    ::

        x ─→ exponent ─┬→ tile FIFO ─→ 2^(origin - exponent) ─→ total ─→ 1 / total
                       └→ minimum ───────────┘

    Scores wait in a FIFO until their tile is full or the vector ends, while the tile's least
    exponent is found (e^x = 2^-exponent, so that is the highest score). Then the tile is drained
    into the sum, one term a cycle, and the next tile fills. Where a tile lowers the origin, the sum
    so far is shifted right by the difference: e^(m_old - m_new) is rounded to a whole number of
    octaves, in the origin and so in all terms alike, and the shift is exact but for the bits that
    it cuts off.

    The sum has 15 + ceil(log2 length) fraction bits; terms and corrections are cut off there.

    Throughput: one score a cycle; there may be cycles without a score between. The next vector must
    not begin before `ended`, and results are held until then.
    """

    def __init__(self, length: int, tile: int):
        self._tile = tile
        self._length_bits = (length - 1).bit_length()
        super().__init__()

    def ports(self) -> Ports:
        return {
            "valid": wire_in(1, "`x` is a score."),
            "last": wire_in(1, "It is the vector's last."),
            "x": wire_in(FP16.width, "FP16."),
            "ended": wire_out(
                1,
                "The last term leaves the FIFO: min(n, self._tile) + 2 cycles after the last of n "
                "scores if they come without a gap. From the next cycle on, the origin is "
                "final.",
            ),
            "origin": wire_out(OCTAVES, "Octaves of the highest score."),
            "inverse_sum": wire_out(
                INVERSE_WIDTH,
                "2 / s in units of 2^-14, where the sum is s 2^sum_exponent and 1 <= s < 2; 7 "
                "cycles after `ended`.",
            ),
            "sum_exponent": wire_out(EXPONENT, "2 cycles earlier."),
            "undefined": wire_out(1, "With `sum_exponent`: a score is NaN or plus infinity."),
            "empty": wire_out(1, "All are minus infinity."),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.exponent = exponent = BinaryExponent()
        m.d.comb += exponent.x.eq(self.x)
        not_allowed = is_nan(self.x) | (self.x == FP16.infinity)
        valid, last, not_allowed = delay(m, "score", Cat(self.valid, self.last, not_allowed), 2)

        # Fill a tile, and find the least exponent of the vector so far. `tile_first` marks a tile's
        # first score, `vector_first` a vector's.
        entry = data.StructLayout(
            {"fraction": POWER, "octaves": OCTAVES, "tile_first": 1, "vector_first": 1, "last": 1}
        )
        m.submodules.tile = queue = Queue(QueueParameters(entry.size, self._tile + 1), shape=entry)
        filled = Signal(range(self._tile))  # scores in the tile that fills
        vector_first = Signal(init=1)
        lowest = Signal(OCTAVES)  # of the scores before
        lowest_now = Signal(OCTAVES)  # with this one
        tile_origin = Signal(OCTAVES)  # of the last full tile
        lower = Signal()
        full = Signal()
        drainable = Signal(range(self._tile + 1))  # scores of full tiles in the FIFO
        pop = Signal()
        undefined = Signal()
        m.d.comb += [
            lower.eq(vector_first | (exponent.octaves < lowest)),
            lowest_now.eq(Mux(lower, exponent.octaves, lowest)),
            full.eq(valid & (last | (filled == self._tile - 1))),
            queue.i.valid.eq(valid),
            queue.i.payload.fraction.eq(exponent.fraction),
            queue.i.payload.octaves.eq(exponent.octaves),
            queue.i.payload.tile_first.eq(filled == 0),
            queue.i.payload.vector_first.eq(vector_first),
            queue.i.payload.last.eq(last),
        ]
        with m.If(valid):
            m.d.sync += [
                filled.eq(Mux(full, 0, filled + 1)),
                vector_first.eq(last),
                lowest.eq(lowest_now),
                undefined.eq(not_allowed | (undefined & ~vector_first)),
            ]
        with m.If(full):
            m.d.sync += tile_origin.eq(lowest_now)
        m.d.sync += drainable.eq(drainable + Mux(full, filled + 1, 0) - pop)

        # Drain it, one score a cycle, into 2^(origin - exponent). With a tile's first score the
        # origin changes, and the sum is corrected by `drop` octaves.
        score = queue.o.payload
        origin_now = Signal(OCTAVES)
        drop = Signal(OCTAVES.width)
        clear = Signal()
        m.submodules.term = term = Term()
        m.d.comb += [
            pop.eq(drainable.any()),
            queue.o.ready.eq(pop),
            origin_now.eq(Mux(score.tile_first, tile_origin, self.origin)),
            term.octaves.eq(score.octaves),
            term.origin.eq(origin_now),
            term.fraction.eq(score.fraction),
            self.ended.eq(pop & score.last),
        ]
        with m.If(pop):
            m.d.sync += self.origin.eq(origin_now)
        m.d.sync += [
            drop.eq(Mux(score.tile_first, self.origin - tile_origin, 0)),
            clear.eq(score.vector_first),
        ]
        # The term takes 2 cycles: the flags and the correction go with it.
        add, end = delay(m, "term", Cat(pop, self.ended), 2)
        correction = Signal(CORRECTION_BITS)
        clear_sum = Signal()
        m.d.sync += [correction.eq(drop), clear_sum.eq(clear | drop[CORRECTION_BITS:].any())]
        self._add(m, term, add, end, correction, clear_sum, undefined)
        return m

    def _add(self, m: Module, term, add, end, correction, clear_sum, undefined) -> None:
        """Sum the terms, and take the reciprocal of the sum."""
        fraction_bits, integer_bits = 15 + self._length_bits, self._length_bits
        width = fraction_bits + integer_bits
        addend = Signal(fraction_bits, reset_less=True)
        total = Signal(width, reset_less=True)
        # Align the term; the sum is shifted by the correction in the next cycle.
        #   addend  .| digits (15) | 0…0 |  >> shift         fraction_bits
        #   total   | integer_bits . fraction_bits |  >> correction
        digits = Cat(Const(0, fraction_bits - SIGNIFICAND), term.digits)
        m.d.sync += addend.eq(digits >> term.shift)
        add, end, clear_sum = delay(m, "addend", Cat(add, end, clear_sum))
        sum_shift = Signal(CORRECTION_BITS, reset_less=True)
        m.d.sync += sum_shift.eq(correction)
        corrected = Signal(width)
        m.d.comb += corrected.eq(Mux(clear_sum, 0, total >> sum_shift))
        with m.If(add):
            m.d.sync += total.eq(corrected + addend)
        done = delay(m, "done", add & end)
        with m.If(done):
            m.d.sync += [self.undefined.eq(undefined), self.empty.eq(self.origin == FARTHEST)]

        # Normalise the sum: | 1 | 12 bits index the table of reciprocals | cut off |. The leading
        # one is one of the integer_bits + 1 highest bits, because one term at least has a shift of
        # 0.
        position = leading_one(m, total[fraction_bits - 1 :])
        normal = shift_to_top(m, total, position)
        fraction = Signal(12, reset_less=True)
        zeros = ~position
        m.d.sync += [
            fraction.eq(normal[width - 13 : -1]),
            self.sum_exponent.eq(integer_bits - 1 - zeros),
        ]
        parts = []
        for n, part in enumerate(INVERSE.terms(m, double_reciprocal, fraction)):
            parts.append(Signal.like(part, name=f"inverse_{n}", reset_less=True))
            m.d.sync += parts[-1].eq(part)
        m.d.sync += self.inverse_sum.eq(sum(parts, 0))
