"""The largest of a vector's scores and the sum of their exponentials, tile by tile (VEDA, IV-B)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring

from hw.arith.bits.leading_zeros import leading_one, shift_to_top
from hw.arith.bits.order_key import is_nan
from hw.arith.float_format import FP16
from hw.arith.reciprocal import double_reciprocal
from hw.arith.wide_exponent import EXPONENT, INVERSE, INVERSE_WIDTH, POWER, SIGNIFICAND
from hw.attention.binary_exponent import FARTHEST, OCTAVES, BinaryExponent, Term
from hw.attention.delay import delay
from hw.component import Component
from hw.layout import FLAG
from hw.ports import Ports, stream_out, wire_in, wire_out
from hw.stream.queue import Queue, QueueParameters

CORRECTION_BITS = 5
"""Bits of the shift that corrects a sum; a sum moved down by 32 octaves or more becomes 0."""

LAST_TILE_CYCLES = 3
"""Cycles from a vector's last score to the cycle after `ended`, besides one a score of its tile."""

SUM_CYCLES = 7
"""Cycles from `ended` to the sum's reciprocal."""

SUM = data.StructLayout(
    {"inverse": INVERSE_WIDTH, "exponent": EXPONENT, "undefined": FLAG, "empty": FLAG}
)
"""A sum is s 2^exponent, 1 <= s < 2, and ``inverse`` 2 / s in units of 2^-14. ``undefined``: a
score is NaN or plus infinity; ``empty``: all are minus infinity."""


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

    Results wait in two queues, as the origin is known 6 cycles before the sum's reciprocal, and the
    elements are normalised meanwhile.

    Throughput: one score a cycle; there may be cycles without a score between, and the next vector
    may follow at once, if less than `vectors` have not ended or wait with their results.

    Parameters
    ----------
    length, tile, vectors : int
        See :class:`hw.attention.special_function_unit.SpecialFunctionUnitParameters`.
    """

    def __init__(self, length: int, tile: int, vectors: int = 1):
        self._tile = tile
        self._length_bits = (length - 1).bit_length()
        self._vectors = vectors
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
            "origins": stream_out(
                OCTAVES,
                "Octaves of the highest score of each vector, from the cycle after `ended`.",
            ),
            "sums": stream_out(
                SUM, f"Reciprocal of each vector's sum, {SUM_CYCLES} cycles after `ended`."
            ),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.exponent = exponent = BinaryExponent()
        m.d.comb += exponent.x.eq(self.x)
        not_allowed = is_nan(self.x) | (self.x == FP16.infinity)
        valid, last, not_allowed = delay(m, "score", Cat(self.valid, self.last, not_allowed), 2)

        # Fill a tile, and find the least exponent of the vector so far. `tile_first` marks a tile's
        # first score, `vector_first` a vector's.
        names = ("tile_first", "vector_first", "last", "undefined")
        entry = data.StructLayout(
            {"fraction": POWER, "octaves": OCTAVES} | dict.fromkeys(names, FLAG)
        )
        m.submodules.tile = queue = Queue(QueueParameters(entry.size, self._tile + 1), shape=entry)
        # Least exponents of full tiles. While one is drained, another one may fill, and as many
        # short ones as vectors may end.
        size = QueueParameters(OCTAVES.width, self._vectors + 1)
        m.submodules.tile_origins = tile_origins = Queue(size, shape=OCTAVES)
        filled = Signal(range(self._tile))  # scores in the tile that fills
        vector_first = Signal(init=1)
        lowest = Signal(OCTAVES)  # of the scores before
        lowest_now = Signal(OCTAVES)  # with this one
        lower = Signal()
        full = Signal()
        drainable = Signal(range(self._tile + 1))  # scores of full tiles in the FIFO
        pop = Signal()
        undefined = Signal()  # of the vector so far
        undefined_now = Signal()
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
            undefined_now.eq(not_allowed | (undefined & ~vector_first)),
            queue.i.payload.undefined.eq(undefined_now),
            tile_origins.i.valid.eq(full),
            tile_origins.i.payload.eq(lowest_now),
        ]
        with m.If(valid):
            m.d.sync += [
                filled.eq(Mux(full, 0, filled + 1)),
                vector_first.eq(last),
                lowest.eq(lowest_now),
                undefined.eq(undefined_now),
            ]
        m.d.sync += drainable.eq(drainable + Mux(full, filled + 1, 0) - pop)
        m.d.comb += pop.eq(drainable.any())
        self._drain(m, pop, queue.o, tile_origins.o)
        return m

    def _drain(self, m: Module, pop: Signal, scores, tile_origins) -> None:
        """Turn a tile's scores, one a cycle, into 2^(origin - exponent).

        With a tile's first score the origin changes, and the sum is corrected by `drop` octaves.
        """
        score = scores.payload
        origin = Signal(OCTAVES)
        origin_now = Signal(OCTAVES)
        drop = Signal(OCTAVES.width)
        clear = Signal()
        m.submodules.term = term = Term()
        m.d.comb += [
            scores.ready.eq(pop),
            tile_origins.ready.eq(pop & score.tile_first),
            origin_now.eq(Mux(score.tile_first, tile_origins.payload, origin)),
            term.octaves.eq(score.octaves),
            term.origin.eq(origin_now),
            term.fraction.eq(score.fraction),
            self.ended.eq(pop & score.last),
        ]
        with m.If(pop):
            m.d.sync += origin.eq(origin_now)
        m.d.sync += [
            drop.eq(Mux(score.tile_first, origin - origin_now, 0)),
            clear.eq(score.vector_first),
        ]
        # The term takes 2 cycles: the flags and the correction go with it.
        empty = origin_now == FARTHEST
        flags = Cat(pop, self.ended, score.undefined, empty)
        add, end, *found = delay(m, "term", flags, 2)
        correction = Signal(CORRECTION_BITS)
        clear_sum = Signal()
        m.d.sync += [correction.eq(drop), clear_sum.eq(clear | drop[CORRECTION_BITS:].any())]

        # The results of vectors that have ended and whose elements are not all normalised yet.
        size = QueueParameters(OCTAVES.width, self._vectors + 1)
        m.submodules.origin_queue = origins = Queue(size, shape=OCTAVES)
        size = QueueParameters(SUM.size, self._vectors + 1)
        m.submodules.sum_queue = sums = Queue(size, shape=SUM)
        wiring.connect(m, origins.o, wiring.flipped(self.origins))
        wiring.connect(m, sums.o, wiring.flipped(self.sums))
        m.d.comb += [origins.i.valid.eq(self.ended), origins.i.payload.eq(origin_now)]
        self._add(m, term, Cat(add, clear_sum, end, *found), correction, sums.i)

    def _add(self, m: Module, term, flags, correction, result) -> None:
        """Sum the terms, and take the reciprocal of the sum.

        `flags` of the term: valid; the sum begins with it; it ends the vector; the vector is
        undefined; it is empty.
        """
        fraction_bits, integer_bits = 15 + self._length_bits, self._length_bits
        width = fraction_bits + integer_bits
        addend = Signal(fraction_bits, reset_less=True)
        total = Signal(width, reset_less=True)
        # Align the term; the sum is shifted by the correction in the next cycle.
        #   addend  .| digits (15) | 0…0 |  >> shift         fraction_bits
        #   total   | integer_bits . fraction_bits |  >> correction
        digits = Cat(Const(0, fraction_bits - SIGNIFICAND), term.digits)
        m.d.sync += addend.eq(digits >> term.shift)
        add, clear_sum, end, undefined, empty = delay(m, "addend", flags)
        sum_shift = Signal(CORRECTION_BITS, reset_less=True)
        m.d.sync += sum_shift.eq(correction)
        corrected = Signal(width)
        m.d.comb += corrected.eq(Mux(clear_sum, 0, total >> sum_shift))
        with m.If(add):
            m.d.sync += total.eq(corrected + addend)
        # The sum is complete 1 cycle later, its exponent is known 2 and its reciprocal 3 later: the
        # queue is the register that takes it.
        done, undefined, empty = delay(m, "done", Cat(add & end, undefined, empty), 3)

        # Normalise the sum: | 1 | 12 bits index the table of reciprocals | cut off |. The leading
        # one is one of the integer_bits + 1 highest bits, because one term at least has a shift of
        # 0.
        position = leading_one(m, total[fraction_bits - 1 :])
        normal = shift_to_top(m, total, position)
        fraction = Signal(12, reset_less=True)
        sum_exponent = Signal(EXPONENT, reset_less=True)
        zeros = ~position
        m.d.sync += [
            fraction.eq(normal[width - 13 : -1]),
            sum_exponent.eq(integer_bits - 1 - zeros),
        ]
        parts = []
        for n, part in enumerate(INVERSE.terms(m, double_reciprocal, fraction)):
            parts.append(Signal.like(part, name=f"inverse_{n}", reset_less=True))
            m.d.sync += parts[-1].eq(part)
        m.d.comb += [
            result.valid.eq(done),
            result.payload.inverse.eq(sum(parts, 0)),
            result.payload.exponent.eq(delay(m, "sum_exponent", sum_exponent)),
            result.payload.undefined.eq(undefined),
            result.payload.empty.eq(empty),
        ]
