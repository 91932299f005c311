"""The choice of rows by their estimates, and the probability of the others (ToPick's rule)."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, memory

from hw.arith.float_format import FP16
from hw.arith.log2_fixed import Log2Fixed, Log2FixedParameters
from hw.attention.delay import delay
from hw.component import Component
from hw.layout import FLAG, FixedPoint, count, index
from hw.ports import Ports, stream_in, stream_out
from hw.tsuru.estimate import ESTIMATE, FRACTION
from hw.tsuru.estimate_sum import SUM_CYCLES, SUM_FRACTION, TERM, EstimateSum, power
from hw.tsuru.rest_score import LOG_STAGES, SCORE_CYCLES, RestScore
from hw.tsuru.row_format import SEARCH_ROWS
from hw.tsuru.row_search import PLANES, RowSearchParameters

SUM_PRECISION = 8
THRESHOLD = FixedPoint(unsigned(8 + FRACTION), FRACTION)
"""-log2 of the least probability of a chosen row."""
TERM_CYCLES = 3
"""Cycles from a chosen row to the sum without its terms."""
LOOK_CYCLES = 3
"""Cycles from a choice's start to the first tile being looked at."""


@dataclasses.dataclass(frozen=True)
class RowChoiceParameters(RowSearchParameters):
    """
    d, query_bits
        Only for the layouts of the search.
    capacity, parallel, sinks
        As of :class:`hw.tsuru.row_search.RowSearchParameters`.
    """

    @cached_property
    def choice_layout(self) -> data.StructLayout:
        """``heads`` of a batch, ``slots``, and the ``threshold``."""
        return data.StructLayout(
            {
                "heads": count(range(self.parallel + 1)),
                "slots": count(range(self.slots + 1)),
                "threshold": THRESHOLD,
            }
        )

    @property
    def slot_bits(self) -> int:
        return (self.slots - 1).bit_length()

    @property
    def row_bits(self) -> int:
        return (self.capacity - 1).bit_length()

    @cached_property
    def rows_layout(self) -> data.StructLayout:
        """The number of a ``row``, and whether it is the batch's ``last``."""
        return data.StructLayout({"row": index(self.row_bits), "last": FLAG})

    @cached_property
    def rest_layout(self) -> data.ArrayLayout:
        """A score for each head, 0 where a batch has none."""
        return data.ArrayLayout(FP16, self.parallel)

    @property
    def sum_bits(self) -> int:
        """Bits of a sum of `capacity` terms."""
        return TERM + self.row_bits

    @property
    def sum_steps(self) -> int:
        """Cycles from a batch's last tile to its choice, besides one."""
        return SUM_CYCLES - 1 + self.parallel + LOG_STAGES

    @property
    def latency(self) -> int:
        """Cycles from a batch's last tile to its first row, if that is in the first tile."""
        return self.sum_steps + LOOK_CYCLES + 1

    @property
    def rest_cycles(self) -> int:
        """Cycles from a batch's last row to its rest."""
        return TERM_CYCLES + self.parallel + LOG_STAGES + SCORE_CYCLES

    def choice_cycles(self, chosen: Sequence[int]) -> int:
        """Cycles from a choice's start to its last row, of chosen slots in each tile."""
        return LOOK_CYCLES + sum(max(1, rows) for rows in chosen) - 1

    def cycles(self, batches: Sequence[Sequence[int]]) -> int:
        """Cycles from the first tile offered to the last rest taken, without stalls.

        batches
            Chosen slots in each tile of each batch.
        """
        fill = idle = ended = 0  # when tiles may come, when a choice may start, the last rest
        for chosen in batches:
            start = max(fill + len(chosen) + self.sum_steps, idle)
            ended = start + self.choice_cycles(chosen) + self.rest_cycles
            fill, idle = start + 1, ended + 1
        return ended + 1


class RowChoice(Component[RowChoiceParameters]):
    """A row is chosen if 2^e > x sum of 2^e for any of the heads; R = sum of 2^e of the others.

    ::

        i ─┬→ estimates (two buffers) ──→ e > log2 sum - threshold ─→ numbers ─→ o
           └→ sum of 2^(e - m) ─→ log2 ─────────┘     sum - chosen ─→ ln R ─→ rest

    This is ToPick's rule with estimates in place of bounds, for all heads of a batch at once: the
    sinks and the newest row are chosen always. Rows come out in order, but for the sinks; after
    them, for each head, the score ln R of all rows that are not chosen, minus infinity if R is 0.

    The sum has 24 fraction bits below the highest estimate's octave; a tile that raises the octave
    shifts what has been added so far. Terms of chosen rows are taken from the sum, so there is one
    power a head and cycle for them; where rounding makes that negative, R is 0.

    While rows of a batch are chosen, the next batch's estimates enter the other buffer.

    Errors: none. A threshold above the estimates' range chooses all rows that are in it.

    Latency: `latency` cycles from the last tile to the first tile looked at. Throughput: a tile a
    cycle in; out a tile or a chosen row a cycle. The rest follows the last row after
    parallel + 7 cycles.

    Handshake: a batch is accepted with the start of its choice, after its tiles. ``i.ready``
    depends on registers only; ``o`` on registers, and so does ``rest``.

    Examples
    --------
    >>> from hw.tsuru.row_choice import RowChoiceParameters
    >>> RowChoiceParameters().sum_bits
    35
    """

    summary = "Rows whose estimated probability is above a threshold, and what is left"
    source = "ToPick, section III, on estimates"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "batch": stream_in(p.choice_layout, "What to choose of."),
            "i": stream_in(p.tile_layout, "Estimates."),
            "o": stream_out(p.rows_layout, "Chosen rows after the sinks."),
            "rest": stream_out(p.rest_layout, "Scores of all other rows."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        shape = unsigned(p.tile_layout.size - 1)
        depth = 2 * -(-p.slots // SEARCH_ROWS)
        m.submodules.estimates = estimates = memory.Memory(shape=shape, depth=depth, init=[])
        start = Signal()  # a batch's choice begins
        idle = Signal()  # no choice is in progress
        origins, totals, least = self._sum(m, estimates.write_port(), start, idle)
        self._choose(m, estimates, start, idle, origins, totals, least)
        return m

    def _sum(self, m: Module, write, start: Signal, idle: Signal) -> tuple[list, list, list]:
        """Store tiles and add their terms; then the logarithms of the sums, head by head.

        Returns, of each head, the octaves of the highest estimate, the sum, and the estimate above
        which a row is chosen.
        """
        p, i = self.parameters, self.i
        tile = Signal(p.slot_bits - 3)
        buffer = Signal()
        full = Signal()  # all tiles of a batch are in
        taken = Signal()
        m.d.comb += [
            i.ready.eq(~full),
            taken.eq(i.valid & i.ready),
            write.en.eq(taken),
            write.addr.eq(Cat(buffer, tile)),  # tiles need not be a power of two
            write.data.eq(Cat(Value.cast(i.payload.e), i.payload.present)),
        ]
        with m.If(taken):
            m.d.sync += tile.eq(Mux(i.payload.last, 0, tile + 1))
            with m.If(i.payload.last):
                m.d.sync += full.eq(1)
        # A step of the sequence a cycle: the last terms are added, then a head's logarithm.
        steps = p.sum_steps
        step = Signal(range(steps + 1))
        with m.If(full & self.batch.valid & (step != steps)):
            m.d.sync += step.eq(step + 1)
        m.d.comb += [
            start.eq(full & (step == steps) & idle & self.batch.valid),
            self.batch.ready.eq(start),
        ]
        with m.If(start):
            m.d.sync += [full.eq(0), step.eq(0), buffer.eq(~buffer)]

        valid = delay(m, "tile_valid", taken)
        origins, totals = [], []
        for h in range(p.parallel):
            m.submodules[f"sum_{h}"] = unit = EstimateSum(p.sum_bits)
            m.d.comb += [
                Cat(unit.e).eq(Cat(i.payload.e[n][h] for n in range(SEARCH_ROWS))),
                unit.present.eq(i.payload.present),
                unit.valid.eq(valid),
                unit.clear.eq(start),
            ]
            origins.append(unit.origin)
            totals.append(unit.total)
        number = Signal(range(steps + 1))
        m.d.comb += number.eq(step - (SUM_CYCLES - 1))
        return origins, totals, self._thresholds(m, number, origins, totals)

    def _thresholds(self, m: Module, number: Value, origins: list, totals: list) -> list:
        """log2 of x times the sum of each head, head `number` in a cycle."""
        p = self.parameters
        m.submodules.sum_logarithm = unit = Log2Fixed(
            Log2FixedParameters(p.sum_bits, SUM_PRECISION, FRACTION, "down", stages=LOG_STAGES)
        )
        m.d.comb += unit.x.eq(Array(totals)[number])
        least = []
        for h, origin in enumerate(origins):
            limit = Signal(signed(ESTIMATE.width + 3), name=f"least_{h}", reset_less=True)
            base = (origin - SUM_FRACTION) << FRACTION
            with m.If(number == h + LOG_STAGES):
                m.d.sync += limit.eq(base + unit.y - self.batch.payload.threshold)
            least.append(limit)
        return least

    def _choose(self, m, estimates, start, idle, origins, totals, least) -> None:
        """Look at the tiles of a batch once more, and give the numbers of its chosen rows."""
        p, batch = self.parameters, self.batch.payload
        read = estimates.read_port()
        kept = []  # of the batch in progress
        for name, values in (("origin", origins), ("total", totals), ("least", least)):
            of_kept = signed(len(values[0]) + (name == "total"))  # a sum may become negative
            kept.append(
                [
                    Signal(of_kept, name=f"kept_{name}_{h}", reset_less=True)
                    for h in range(p.parallel)
                ]
            )
            with m.If(start):
                m.d.sync += [to.eq(of) for to, of in zip(kept[-1], values, strict=True)]
        origins, totals, least = kept
        used = [Signal(name=f"used_{h}", reset_less=True) for h in range(p.parallel)]
        newest = Signal(p.slot_bits, reset_less=True)
        end = Signal(p.slot_bits)
        buffer = Signal(name="chosen_buffer")
        busy = Signal()
        m.d.comb += end.eq(batch.slots - 1)
        with m.If(start):
            m.d.sync += [busy.eq(1), newest.eq(end)]
            m.d.sync += [of.eq(batch.heads > h) for h, of in enumerate(used)]
            # A sink that is the newest row is in the first of its slots.
            with m.If(batch.slots <= p.sinks * PLANES):
                m.d.sync += newest.eq(Cat(Const(0, 2), end[2:]))

        # Tiles are read, then looked at; a tile moves on when the one before has no row left.
        tile = Signal(p.slot_bits - 3, name="next_tile")  # to read
        reading = Signal()
        looked = Signal()  # the tile that was read is there
        of_looked = Signal(p.slot_bits - 3, reset_less=True)
        moves = Signal()  # it moves on
        fetch = Signal()
        final = newest[3:]
        m.d.comb += [
            fetch.eq(reading & (~looked | moves)),
            read.en.eq(fetch),
            read.addr.eq(Cat(buffer, tile)),
        ]
        with m.If(start):
            m.d.sync += [reading.eq(1), tile.eq(0)]
        with m.Elif(fetch):
            m.d.sync += [tile.eq(tile + 1), reading.eq(tile != final), of_looked.eq(tile)]
        with m.If(fetch):
            m.d.sync += looked.eq(1)
        with m.Elif(moves):
            m.d.sync += looked.eq(0)

        chosen = self._compared(m, read.data, of_looked, newest, used, least)
        taken = self._emit(m, chosen, read.data, of_looked, looked, moves, newest)
        ended = Signal()
        self._rest(m, used, taken, ended, origins, totals)
        m.d.comb += idle.eq(~busy)
        with m.If(ended):
            m.d.sync += [busy.eq(0), buffer.eq(~buffer)]

    def _compared(self, m: Module, tile, number, newest, used: list, least: list) -> Signal:
        """Which slots of the `tile` of that number are chosen."""
        p = self.parameters
        width = ESTIMATE.width
        e = [
            [tile[(n * p.parallel + h) * width :][:width].as_signed() for h in range(p.parallel)]
            for n in range(SEARCH_ROWS)
        ]
        present = tile[-SEARCH_ROWS:]
        chosen = Signal(SEARCH_ROWS)
        for n in range(SEARCH_ROWS):
            above = Signal(name=f"above_{n}")
            of_heads = Cat(used[h] & (e[n][h] > least[h]) for h in range(p.parallel))
            m.d.comb += above.eq(of_heads.any())
            always = newest == Cat(Const(n, 3), number)
            if n < p.sinks * PLANES:
                always |= number == 0
            m.d.comb += chosen[n].eq(present[n] & (above | always))
        return chosen

    def _emit(self, m, chosen, tile, of_looked, looked, moves, newest):
        """A chosen row a cycle, of a tile in a register of its own.

        Returns (row taken, its estimates, last).
        """
        p, o = self.parameters, self.o
        left = Signal(SEARCH_ROWS)  # rows of the tile to come
        kept = Signal(len(tile), reset_less=True)
        number = Signal(p.slot_bits - 3, name="tile_number", reset_less=True)
        lowest = Signal(SEARCH_ROWS)
        place = Signal(3)
        goes = Signal()
        is_sink = Signal()
        slot = Signal(p.slot_bits)
        m.d.comb += [
            lowest.eq(left & (~left + 1)[:SEARCH_ROWS]),
            place.eq(
                Cat(
                    lowest[1::2].any(),
                    Cat(lowest[2:4], lowest[6:8]).any(),
                    lowest[4:].any(),
                )
            ),
            slot.eq(Cat(place, number)),
            is_sink.eq((number == 0) & (place < p.sinks * PLANES) if p.sinks else 0),
            o.valid.eq(left.any() & ~is_sink),
            o.payload.row.eq(slot - (PLANES - 1) * p.sinks),
            o.payload.last.eq(slot == newest),
            goes.eq(left.any() & (is_sink | o.ready)),
            moves.eq(looked & (~left.any() | (goes & (left == lowest)))),
        ]
        with m.If(goes):
            m.d.sync += left.eq(left & ~lowest)
        with m.If(moves):
            m.d.sync += [left.eq(chosen), kept.eq(tile), number.eq(of_looked)]
        width = ESTIMATE.width
        e = []
        for h in range(p.parallel):
            value = Signal(ESTIMATE.as_shape(), name=f"chosen_{h}")
            of_rows = [kept[(n * p.parallel + h) * width :][:width] for n in range(SEARCH_ROWS)]
            picked = [of & lowest[n].replicate(width) for n, of in enumerate(of_rows)]
            joined = picked[0]
            for more in picked[1:]:
                joined = joined | more
            m.d.comb += value.eq(joined)
            e.append(value)
        return goes, e, goes & (slot == newest)

    def _rest(self, m, used, taken, ended, origins: list, totals: list) -> None:
        """Take the chosen rows' terms from the sums; then the logarithms, head by head."""
        p, rest = self.parameters, self.rest
        goes, e, last = taken
        valid = delay(m, "taken_valid", goes, TERM_CYCLES - 1)
        left = []
        for h, (total, origin) in enumerate(zip(totals, origins, strict=True)):
            term = power(m, e[h], origin, Const(1, 1), f"taken_{h}")
            with m.If(valid):
                m.d.sync += total.eq(total - term)
            # The sum was cut off where its origin rose, so it may be less than its terms.
            left.append(Mux(total[-1], 0, total[: p.sum_bits]))

        steps = TERM_CYCLES - 1 + p.parallel + LOG_STAGES + SCORE_CYCLES
        step = Signal(range(steps + 1))
        ending = Signal()
        with m.If(last):
            m.d.sync += [ending.eq(1), step.eq(0)]
        with m.Elif(ending & (step != steps)):
            m.d.sync += step.eq(step + 1)
        m.d.comb += [
            rest.valid.eq(ending & (step == steps)),
            ended.eq(rest.valid & rest.ready),
        ]
        with m.If(ended):
            m.d.sync += ending.eq(0)

        number = Signal(range(steps + 1))
        m.d.comb += number.eq(step - (TERM_CYCLES - 1))
        m.submodules.score = score = RestScore(p.sum_bits)
        m.d.comb += [
            score.total.eq(Array(left)[number]),
            score.origin.eq(Array(origins)[(number - LOG_STAGES)[: len(number)]]),
        ]
        for h in range(p.parallel):
            with m.If(number == h + LOG_STAGES + SCORE_CYCLES):
                m.d.sync += rest.payload[h].eq(Mux(used[h], score.score, 0))
