"""Estimates of the scores of all rows, by search codes: 8 rows and several heads a cycle."""

import dataclasses
import math
from functools import cached_property

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.component import Component
from hw.layout import FLAG, count, mask
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.tsuru.estimate import (
    ESTIMATE,
    FRACTION,
    clipped,
    delayed,
    saturated,
    sum_of,
)
from hw.tsuru.query_integers import CYCLES, FIELD, QueryIntegers
from hw.tsuru.row_format import (
    NOT_FINITE,
    SCALE_BITS,
    SCALE_FRACTION,
    SEARCH_BITS,
    SEARCH_ROWS,
    RowFormat,
)

PLANES = 4
"""Search codes of a sink, of weights 1, 4, 16 and 64, which make eight bits."""
MOST_SINKS = SEARCH_ROWS // PLANES
"""The planes of sinks are in the first tile."""
FACTOR_FRACTION = 7
FACTORS = [round((1 + n / 8) * math.log2(math.e) * 2**FACTOR_FRACTION) for n in range(8)]
"""log2(e) times the significand of a scale."""
GROUP = 8
"""Elements whose products are added in the first stage."""
STAGES = 5
"""Cycles from a word of codes to its estimates."""


@dataclasses.dataclass(frozen=True)
class RowSearchParameters(Parameters):
    """
    d
        Elements of a row: a power of two from 8 to 256.
    capacity
        Slots at most: a power of two from 16 to 4096.
    parallel
        Query heads at the same time, at most.
    query_bits
        Bits of an element of a query, its sign included, 4 to 11.
    sinks
        Rows at the start that have PLANES slots each, 0 to 2.
    """

    d: int = 64
    capacity: int = 1024
    parallel: int = 3
    query_bits: int = 8
    sinks: int = 1

    def __post_init__(self):
        power = 8 <= self.d <= 256 and not self.d & self.d - 1
        require(power, "d must be a power of two from 8 to 256", self.d)
        power = 16 <= self.capacity <= 4096 and not self.capacity & self.capacity - 1
        require(power, "capacity must be a power of two from 16 to 4096", self.capacity)
        require(1 <= self.parallel <= 16, "parallel must be between 1 and 16", self.parallel)
        rule = "query_bits must be between 4 and 11"
        require(4 <= self.query_bits <= 11, rule, self.query_bits)
        rule = f"sinks must be between 0 and {MOST_SINKS}"
        require(0 <= self.sinks <= MOST_SINKS, rule, self.sinks)

    @classmethod
    def presets(cls) -> dict[str, "RowSearchParameters"]:
        return {
            "small": cls(d=8, capacity=32, parallel=2),
            "default": cls(),
            "wide": cls(d=128, capacity=4096, parallel=4),
        }

    @cached_property
    def format(self) -> RowFormat:
        return RowFormat(self.d)

    @property
    def latency(self) -> int:
        return STAGES

    @property
    def rows(self) -> int:
        """Rows at most."""
        return self.capacity

    @property
    def slots(self) -> int:
        """Slots of that many rows: a sink has several."""
        return self.capacity + (PLANES - 1) * self.sinks

    @cached_property
    def batch_layout(self) -> data.StructLayout:
        """``heads`` of a batch, and the number of ``slots`` to search."""
        return data.StructLayout(
            {
                "heads": count(range(self.parallel + 1)),
                "slots": count(range(self.slots + 1)),
            }
        )

    @cached_property
    def tile_layout(self) -> data.StructLayout:
        """Estimates ``e`` of SEARCH_ROWS slots, and of each head, 0 elsewhere; which
        slots are a row's, and whether the tile is the batch's ``last``."""
        of_slot = data.ArrayLayout(ESTIMATE, self.parallel)
        return data.StructLayout(
            {
                "e": data.ArrayLayout(of_slot, SEARCH_ROWS),
                "present": mask(SEARCH_ROWS),
                "last": FLAG,
            }
        )

    @cached_property
    def word_layout(self) -> data.StructLayout:
        """A word of memory, and whether it is a batch's ``last``."""
        return data.StructLayout({"data": data.ArrayLayout(FP16, self.d), "last": FLAG})

    def words(self, slots: int) -> int:
        """Words of that many slots: scales and codes."""
        return -(-slots // self.format.search_rows) - (-slots // SEARCH_ROWS)

    def cycles(self, batches: list[tuple[int, int]]) -> int:
        """Cycles from the first batch offered to the last estimates taken, without stalls.

        batches
            Heads and slots of each.
        """
        return sum(self.batch_cycles(heads, slots) for heads, slots in batches) + STAGES

    def batch_cycles(self, heads: int, slots: int) -> int:
        """Cycles from a batch to the next."""
        return 1 + heads + CYCLES + self.words(slots)


class RowSearch(Component[RowSearchParameters]):
    """e_hr = log2(e) s_r sum over c of q_hc v_rc,   v of -3/2, -1/2, 1/2 and 3/2.

    ::

        q ─→ integers of `query_bits`, one exponent a head ──┐
        words: codes of 8 rows ─→ ± q, ± 3 q ─→ sums ─→ × s log2(e) ─→ shift ─→ e
               scales of the block's rows ────────────────────┘           └→ planes of sinks added

    A batch is up to `parallel` query heads on the rows of a kv head. Its words are search blocks as
    :mod:`hw.tsuru.row_format` has them: a word of scales, then words of codes of 8 slots each. A
    slot is a row, but for sinks: each of the first `sinks` rows has four, whose codes are the
    digits of its elements to the base of 4. Their estimates are added in the first slot, so the
    estimate of a sink, which often has most of the probability, is as exact as the query's
    integers.

    An estimate has 6 fraction bits, is rounded down and saturates at 16 bits. Error: a product's
    factor log2(e) s is rounded to 9 bits.

    Errors: a row whose scale says that it was not finite has the largest estimate.

    Latency: 5 cycles from a word of codes to its estimates. Throughput: a word a cycle; between the
    last word of a batch and the first of the next are heads + 3 cycles.

    Handshake: a batch is accepted while nothing is in progress, then its queries, then its words.
    ``words.ready`` depends combinationally on ``o.ready``; so do all stages.

    Examples
    --------
    >>> from hw.tsuru.row_search import RowSearchParameters
    >>> RowSearchParameters().words(1024), RowSearchParameters().batch_cycles(3, 1024)
    (136, 142)
    """

    summary = "Scores of all rows estimated by codes of two bits, 8 rows a cycle"
    source = "library"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "batch": stream_in(p.batch_layout, "What to search."),
            "q": stream_in(
                data.ArrayLayout(FP16, p.d), "Queries of a batch, times the scale of scores."
            ),
            "words": stream_in(p.word_layout, "Search blocks."),
            "o": stream_out(p.tile_layout, "Estimates."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        advance = Signal()  # the pipeline moves
        m.d.comb += advance.eq(~self.o.valid | self.o.ready)
        queries, tops = self._load(m)

        # The first stage: a word of scales is kept, and moves on with each word of codes.
        scales = Signal(p.format.word_bits, reset_less=True)
        place = Signal(range(p.format.search_words))  # of the word in its block
        taken = Signal()
        is_codes = Signal()
        m.d.comb += [
            taken.eq(self.words.valid & self.words.ready),
            is_codes.eq(place.any()),
            self.words.ready.eq(advance & self._searching),
        ]
        with m.If(taken):
            ends = place == p.format.search_words - 1
            m.d.sync += place.eq(Mux(ends | self.words.payload.last, 0, place + 1))
            with m.If(is_codes):
                m.d.sync += scales.eq(scales >> SEARCH_ROWS * SCALE_BITS)
            with m.Else():
                m.d.sync += scales.eq(Value.cast(self.words.payload.data))
        valid, first, last, present = self._tiles(m, taken & is_codes)
        of_tile = [scales[n * SCALE_BITS :][:SCALE_BITS] for n in range(SEARCH_ROWS)]

        flags = Cat(valid, first, last, present, self._used)
        flags, of_tile, dots = self._dots(m, advance, flags, of_tile, queries)
        flags, estimates = self._scaled(m, advance, flags, of_tile, dots, tops)
        self._planes(m, advance, flags, estimates)
        return m

    def _load(self, m: Module) -> tuple[list, list]:
        """Accept a batch and its queries; returns registers of the integers and exponents."""
        p, batch = self.parameters, self.batch
        m.submodules.aligner = aligner = QueryIntegers(p.d, p.query_bits)
        layout = data.ArrayLayout(signed(p.query_bits), p.d)
        queries = [Signal(layout, name=f"query_{n}", reset_less=True) for n in range(p.parallel)]
        tops = [Signal(FIELD, name=f"top_{n}", reset_less=True) for n in range(p.parallel)]
        self._searching = searching = Signal()
        self._slots = Signal(range(p.slots + 1), reset_less=True)  # of words to come
        self._first = Signal(reset_less=True)  # no tile has been taken
        self._used = Signal(p.parallel, reset_less=True)  # heads of the batch
        waiting = Signal(range(p.parallel + 1))  # queries to accept
        entering = Signal(CYCLES)  # a query is on its way to its register
        number = Signal(range(p.parallel), reset_less=True)  # of its register
        busy = Signal()
        m.d.comb += [
            aligner.q.eq(self.q.payload),
            batch.ready.eq(~busy),
            self.q.ready.eq(waiting.any()),
        ]
        accepted = self.q.valid & self.q.ready
        m.d.sync += entering.eq(Cat(accepted, entering))
        with m.If(accepted):
            m.d.sync += waiting.eq(waiting - 1)
        with m.If(batch.valid & batch.ready):
            m.d.sync += [
                busy.eq(1),
                waiting.eq(batch.payload.heads),
                number.eq(0),
                self._slots.eq(batch.payload.slots),
                self._first.eq(1),
                self._used.eq(Cat(batch.payload.heads > n for n in range(p.parallel))),
            ]
        with m.If(entering[-1]):
            m.d.sync += number.eq(number + 1)
            with m.Switch(number):
                for n, (query, top) in enumerate(zip(queries, tops, strict=True)):
                    with m.Case(n):
                        m.d.sync += [query.eq(aligner.integers), top.eq(aligner.top)]
            # Words wait for the last query.
            with m.If(~waiting.any() & ~entering[:-1].any()):
                m.d.sync += searching.eq(1)
        with m.If(self.words.valid & self.words.ready & self.words.payload.last):
            m.d.sync += [searching.eq(0), busy.eq(0)]
        return queries, tops

    def _tiles(self, m: Module, taken: Value) -> tuple[Value, Value, Value, Value]:
        """Flags of the word of codes that is `taken`: valid, first, last, slots present."""
        sinks = self.parameters.sinks
        present = Signal(SEARCH_ROWS)
        for n in range(SEARCH_ROWS):
            plane = self._first if n < sinks * PLANES and n % PLANES else Const(0)
            m.d.comb += present[n].eq((self._slots > n) & ~plane)
        with m.If(taken):
            m.d.sync += [self._first.eq(0), self._slots.eq(self._slots - SEARCH_ROWS)]
        return taken, self._first, self.words.payload.last, present

    def _dots(self, m: Module, advance, flags, scales: list, queries: list):
        """Two stages: sums of GROUP products, then of all, an integer for each slot and head."""
        p = self.parameters
        word = Value.cast(self.words.payload.data)
        codes = [
            [word[(n * p.d + c) * SEARCH_BITS :][:SEARCH_BITS] for c in range(p.d)]
            for n in range(SEARCH_ROWS)
        ]
        width = p.query_bits + 2
        parts, counts = [], []
        for n, row in enumerate(codes):
            # -x is ~x + 1: the ones are counted for all heads at once.
            negative = Signal(range(p.d + 1), name=f"negative_{n}", reset_less=True)
            with m.If(advance):
                m.d.sync += negative.eq(sum_of([code[1] for code in row]))
            counts.append(negative)
            parts.append(
                [self._groups(m, advance, row, q, f"{n}_{h}") for h, q in enumerate(queries)]
            )
        dots: list[list[Signal]] = []
        for n, of_slot in enumerate(parts):
            dots.append([])
            for h, of_head in enumerate(of_slot):
                dot = Signal(
                    signed(width + (p.d - 1).bit_length()), name=f"dot_{n}_{h}", reset_less=True
                )
                with m.If(advance):
                    m.d.sync += dot.eq(sum_of([*of_head, counts[n]]))
                dots[-1].append(dot)
        for stage in range(2):
            flags, scales = delayed(m, advance, f"dot_{stage}", flags, scales)
        return flags, scales, dots

    def _groups(self, m: Module, advance, row: list, query, name: str) -> list:
        """Sums of GROUP codes times elements of a query, each one too small if it is negative."""
        width = self.parameters.query_bits + 2
        found = []
        for first in range(0, len(row), GROUP):
            terms = []
            for code, q in zip(
                row[first : first + GROUP], query[first : first + GROUP], strict=True
            ):
                size = Signal(signed(width), name="size")
                m.d.comb += size.eq(Mux(code[0], 3 * q, q))
                terms.append((size ^ code[1].replicate(width))[:width].as_signed())
            part = Signal(signed(width + 3), name=f"part_{name}_{first}", reset_less=True)
            with m.If(advance):
                m.d.sync += part.eq(sum_of(terms))
            found.append(part)
        return found

    def _scaled(self, m: Module, advance, flags, scales: list, dots: list, tops: list):
        """Two stages: times the scale's factor, then shifted by its exponent and the query's."""
        p = self.parameters
        # Units: 2^-1 of a code, 2^-15 of a scale, 2^(drop - 25) of a query.
        drop = FP16.precision + 1 - p.query_bits
        most = 41 + FACTOR_FRACTION - FRACTION - drop
        table = Array(FACTORS)
        # The next batch's queries may come while the last tiles of this one wait.
        for stage in range(2):
            later = [
                Signal.like(top, name=f"top_{h}_{stage}", reset_less=True)
                for h, top in enumerate(tops)
            ]
            with m.If(advance):
                m.d.sync += [to.eq(of) for to, of in zip(later, tops, strict=True)]
            tops = later
        results: list[list[Signal]] = []
        for n, (scale, row) in enumerate(zip(scales, dots, strict=True)):
            factor = Signal(FACTORS[-1].bit_length(), name=f"factor_{n}")
            field = scale[SCALE_FRACTION:]
            not_finite = Signal(name=f"not_finite_{n}", reset_less=True)
            m.d.comb += factor.eq(Mux(field.any(), table[scale[:SCALE_FRACTION]], 0))
            with m.If(advance):
                m.d.sync += not_finite.eq(scale == NOT_FINITE)
            results.append([])
            for h, (dot, top) in enumerate(zip(row, tops, strict=True)):
                product = Signal(
                    signed(len(dot) + len(factor)), name=f"product_{n}_{h}", reset_less=True
                )
                right = Signal(signed(7), name=f"right_{n}_{h}", reset_less=True)
                result = Signal(ESTIMATE.as_shape(), name=f"estimate_{n}_{h}", reset_less=True)
                with m.If(advance):
                    m.d.sync += [product.eq(dot * factor), right.eq(most - field - top)]
                    m.d.sync += result.eq(saturated(m, product, right, not_finite))
                results[-1].append(result)
        for stage in range(2):
            flags, _ = delayed(m, advance, f"scale_{stage}", flags, [])
        return flags, results

    def _planes(self, m: Module, advance, flags, estimates: list) -> None:
        """The last stage: of the first tile, a sink's four estimates are added."""
        p, o = self.parameters, self.o
        valid, first, last = flags[0], flags[1], flags[2]
        present, used = flags[3 : 3 + SEARCH_ROWS], flags[3 + SEARCH_ROWS :]
        for n, row in enumerate(estimates):
            for h, e in enumerate(row):
                if n < p.sinks * PLANES and n % PLANES == 0:
                    total = Signal(signed(len(e) + 2), name=f"total_{n}_{h}")
                    of_sink = [estimates[n + plane][h] for plane in range(PLANES)]
                    m.d.comb += total.eq(sum_of(of_sink))
                    e = Mux(first, clipped(m, total), e)
                there = (present[n] & used[h]).replicate(len(e))
                with m.If(advance):
                    m.d.sync += o.payload.e[n][h].eq(e & there)
        with m.If(advance):
            m.d.sync += [o.valid.eq(valid), o.payload.last.eq(last), o.payload.present.eq(present)]
