"""UniCAIM's array with few adders: rows are in a memory and are scored some at a time."""

import dataclasses
from collections.abc import Mapping
from typing import Self

from amaranth.hdl import Cat, Const, Module, Signal, Value, unsigned
from amaranth.lib import memory

from hw.arith.bits.carry_save import add_rows
from hw.arith.datapath import Registers
from hw.arith.population_count import PopulationCount, PopulationCountParameters
from hw.parameters import require
from hw.unicaim.array import ArrayParameters, BitLines, UnicaimArray
from hw.unicaim.digital_array import product_term
from hw.unicaim.threshold_search import threshold_search


@dataclasses.dataclass(frozen=True)
class SerialArrayParameters(ArrayParameters):
    """
    rows, d, key_bits, query_bits, contexts
        As in :class:`hw.unicaim.array.ArrayParameters`.
    parallel
        Rows scored in a cycle, a power of two, 2 or more, that divides `rows` and is less.
    """

    parallel: int = 8

    def __post_init__(self):
        super().__post_init__()
        parallel = self.parallel
        power = parallel >= 2 and parallel & (parallel - 1) == 0
        divides = power and self.rows > parallel and self.rows % parallel == 0
        require(divides, "parallel must be a power of two from 2 that divides rows", parallel)

    @classmethod
    def presets(cls) -> Mapping[str, Self]:
        return {
            "small": cls(rows=8, d=4, query_bits=2, parallel=2),
            "default": cls(),
            "paper": cls(rows=576, d=128),
        }

    @property
    def words(self) -> int:
        """Words of the memory for one context, of `parallel` rows each."""
        return self.rows // self.parallel

    @property
    def latency(self) -> int:
        """Cycles from a query's last plane to the first step of its search."""
        return self.words + 3

    def cycles(self, beats: int, steps: int) -> int:
        """Cycles from the first beat to the last step, without stalls.

        beats
            On the bit lines.
        steps
            Number of steps of all searches together.
        """
        return beats + steps + steps // self.steps * (self.latency - 1)


class SerialArray(UnicaimArray):
    """Score all rows against a query, `parallel` of them a cycle, then search bit by bit.

        score[r] = sum over planes p of 2^p (sum over cells c of key[r, c] digit[p, c])

    Ports, beats, handshake and search are as in :class:`hw.unicaim.digital_array.DigitalArray`, for
    a small part of its area: keys are in a memory of `parallel` rows a word, and the planes of a
    query are kept until the last one, when all rows are read and scored, a word a cycle::

        i ─→ keys ─→ word ─┐
        └──→ planes ───────┴─→ `parallel` carry-save additions ─→ scores ─→ search

    Overflow: none. Key levels must be within the cells' limits and digits within -1 to 1.

    Latency: rows / parallel + 3 cycles from a query's last plane to `values` and the first step.
    Throughput: one row written or one plane per cycle; one step per cycle if its answer arrives in
    the same cycle.

    Paper: the array's function is described in III-B2 and III-B3; scanning its rows is this
    project's addition.

    Examples
    --------
    >>> from hw.unicaim.serial_array import SerialArrayParameters
    >>> parameters = SerialArrayParameters(rows=576, d=128, parallel=8)
    >>> parameters.latency, parameters.steps
    (75, 11)
    """

    summary = "Score rows of keys from a memory, some a cycle, and search for the largest scores"
    source = "UniCAIM, sections III-B2 and III-B3"

    def _scores(self, m: Module, bus: BitLines, scoring: Signal, begin: Signal) -> list:
        p = self.parameters
        row_bits = p.d * (p.key_bits + 1)
        word_shape = unsigned(p.parallel * row_bits)
        keys = memory.Memory(shape=word_shape, depth=p.words * p.contexts, init=[])
        m.submodules.keys = keys
        write, read = keys.write_port(granularity=row_bits), keys.read_port()
        lane = (p.parallel - 1).bit_length()
        row = Value.cast(bus.beat.row)
        word = Signal(range(p.words))
        m.d.comb += [
            # A word holds `parallel` rows of one context; the low bits of a row's number select its
            # part.
            write.addr.eq(bus.context * p.words + row[lane:]),
            write.data.eq(Value.cast(bus.beat.levels).replicate(p.parallel)),
            write.en.eq((bus.write << row[:lane])[: p.parallel]),
            read.addr.eq(bus.context * p.words + word),
        ]

        # The planes of the query, the latest one first, and how many of their digits are negative.
        plane_bits = 2 * p.d
        planes = Signal(p.query_bits * plane_bits, reset_less=True)
        m.submodules.counter = count = PopulationCount(PopulationCountParameters(n=p.d))
        negatives = Signal(range(p.d * ((1 << p.query_bits) - 1) + 1), reset_less=True)
        # With a query's first plane the older planes are dropped.
        kept = (~bus.first).replicate(len(planes))
        m.d.comb += count.i.eq(Cat(digit.negative for digit in bus.drive))
        with m.If(bus.plane):
            m.d.sync += planes.eq(Cat(Value.cast(bus.drive), planes & kept))
            before = (negatives << 1) & (~bus.first).replicate(len(negatives) + 1)
            m.d.sync += negatives.eq(before + count.o)

        # In three cycles a word is read, its rows are scored, and the scores are stored.
        reading = Signal()
        read_word = Signal()
        storing = Signal()
        # The word's number accompanies it through the three cycles.
        at_read, at_store = (
            Signal(range(p.words), reset_less=True, name=name) for name in ("at_read", "at_store")
        )
        m.d.sync += [
            read_word.eq(reading),
            at_read.eq(word),
            storing.eq(read_word),
            at_store.eq(at_read),
        ]
        m.d.comb += [
            read.en.eq(reading),
            # The search may start when the last word's scores are stored.
            begin.eq(storing & (at_store == p.words - 1)),
        ]
        # Scoring starts with the query's last plane, when all digits are known.
        with m.If(bus.plane & bus.beat.last):
            m.d.sync += [scoring.eq(1), reading.eq(1), word.eq(0)]
        with m.If(reading):
            m.d.sync += word.eq(word + 1)
            with m.If(word == p.words - 1):
                m.d.sync += reading.eq(0)
        with m.If(begin):
            m.d.sync += scoring.eq(0)

        totals = [self._total(m, lane, read.data, planes, negatives) for lane in range(p.parallel)]
        scores = [Signal(p.score, name=f"score_{n}", reset_less=True) for n in range(p.rows)]
        # Scores are registers, because the search compares all of them with a threshold at once.
        for first in range(p.words):
            with m.If(storing & (at_store == first)):
                rows = scores[first * p.parallel : (first + 1) * p.parallel]
                m.d.sync += [score.eq(total) for score, total in zip(rows, totals, strict=True)]
        return scores

    def _search(self, m: Module, scores: list, used: Signal, begin: Signal, answered: Signal):
        threshold_search(m, self, scores, used, begin, answered)

    def _total(self, m: Module, lane: int, word: Value, planes: Value, negatives: Value) -> Signal:
        """The score of the word's row number `lane`, from a register."""
        p = self.parameters
        bits, width = p.key_bits + 1, p.score.width
        # One carry-save addition, as in a row of the digital array but of all planes together.
        terms = []
        for number in range(p.d):
            at = (lane * p.d + number) * bits
            for plane in range(p.query_bits):
                digit = planes[2 * (plane * p.d + number) :][:2]
                term = Signal(bits + plane, name=f"term_{lane}_{number}_{plane}")
                product = product_term(word[at : at + bits], digit[0], digit[1], bits)
                m.d.comb += term.eq(product << plane)
                terms.append(term)
        # Terms are in offset binary, so that none needs a sign extension; their offsets are
        # subtracted together.
        offset = p.d * ((1 << p.query_bits) - 1) << (bits - 1)
        excess = Const(-offset % (1 << width), width)
        total = add_rows(m, [*terms, negatives, excess], width, Registers(m, (), None))
        stored = Signal(width, name=f"total_{lane}", reset_less=True)
        m.d.sync += stored.eq(total)
        return stored
