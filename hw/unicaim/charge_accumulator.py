"""Accumulated scores of rows by charge sharing (UniCAIM, section III-B4)."""

import dataclasses
import functools

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, enum

from hw.arith.population_count import PopulationCount, PopulationCountParameters
from hw.component import Component
from hw.layout import FLAG, index, integer
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.unicaim.eviction_sense import planes_layout


class AccumulatorOp(enum.IntEnum, shape=2):
    """The operation of a beat."""

    SHARE = 0
    START = 1
    CLEAR = 2
    SEARCH = 3


@dataclasses.dataclass(frozen=True)
class ChargeAccumulatorParameters(Parameters):
    """
    rows
        Rows, each with an accumulator, 2 or more.
    score_bits
        Width of a signed score, 2 to 24.
    fraction
        Fraction bits of an accumulation, 0 to 16.
    share
        A line's capacitor is a part 2^-share of it and the accumulator's together, 0 to 16.
    contexts
        Sets of accumulations, 1 to 256, of which a beat uses one.
    """

    rows: int = 64
    score_bits: int = 10
    fraction: int = 8
    share: int = 4
    contexts: int = 1

    def __post_init__(self):
        require(self.rows >= 2, "rows must be at least 2", self.rows)
        for name, least, most in (("score_bits", 2, 24), ("fraction", 0, 16), ("share", 0, 16)):
            value = getattr(self, name)
            rule = f"{name} must be between {least} and {most}"
            require(least <= value <= most, rule, value)
        contexts = self.contexts
        require(1 <= contexts <= 256, "contexts must be between 1 and 256", contexts)

    @classmethod
    def presets(cls) -> dict[str, "ChargeAccumulatorParameters"]:
        return {
            "small": cls(rows=8, score_bits=6, fraction=3, share=2),
            "default": cls(),
            "paper": cls(rows=576, score_bits=11),
        }

    @property
    def width(self) -> int:
        """Width of an accumulation."""
        return self.score_bits + self.fraction

    @property
    def planes(self) -> int:
        """Steps of a minimum search: the unused rows, then one for each bit."""
        return self.width + 1

    @property
    def latency(self) -> int:
        """Cycles from SEARCH to the search's first step."""
        return 1

    def cycles(self, op: int, mean: bool = False) -> int:
        """Cycles from a beat to the next one, without stalls: of an operation, its steps included.

        mean
            Whether a START takes the mean of the others.
        """
        if op == AccumulatorOp.SEARCH:
            return 1 + self.planes
        # The beat, a cycle for each plane, one for the last digit, one to store the mean.
        return self.planes + 3 if op == AccumulatorOp.START and mean else 1

    @functools.cached_property
    def input_layout(self) -> data.StructLayout:
        """A beat.

        ``op``: see :class:`AccumulatorOp`. ``context``, if there are several: the set of rows.
        ``row``: the row to START, from the ``mean`` or from 0. ``values``: scores of all rows to
        SHARE.
        """
        values = data.ArrayLayout(integer(signed(self.score_bits)), self.rows)
        context = {"context": index(range(self.contexts))} if self.contexts > 1 else {}
        fields = {**context, "row": index(range(self.rows)), "mean": FLAG, "values": values}
        return data.StructLayout({"op": AccumulatorOp, **fields})


class ChargeAccumulator(Component[ChargeAccumulatorParameters]):
    """Accumulate the scores of all rows, and send the accumulations as bit planes for a search.

        SHARE:   acc[r] <- acc[r] + floor((value[r] - acc[r]) 2^-share + 1/2)
        START:   acc[row] <- floor(mean of acc over the other rows in use), or 0
        CLEAR:   no row is in use
        SEARCH:  output all acc as bit planes, the most significant plane first

    An accumulation is a score in fixed point with `fraction` fraction bits, and the equation of
    SHARE is in units of its last bit. It is never further from the exact one of III-B4 than
    2^(share - 1 - fraction) scores. Example with share = 2, fraction = 3 (units of 1/8): from 0
    towards a score of 5, that is 40 units, an accumulation goes 0, 10, 18, 24, 28 units.

    SHARE acts on all rows at once. START puts a row in use; the mean of no rows is 0. The mean is
    a long division of the sum by the number n of rows, on bit planes: with the remainder R, each
    plane gives R <- 2 R + (ones in the plane), then n is subtracted twice, once or not at all,
    which makes a digit 2, 1 or 0 of the quotient.

    SEARCH outputs first the unused rows, as high, then the planes of the accumulations in offset
    binary, so that none is negative, with unused rows high:
    :class:`hw.unicaim.eviction_sense.EvictionSense` finds the smallest from that.

    With several `contexts` there are as many sets of accumulations, which share adders and search.

    Overflow: none; an accumulation is always within the range of the scores it has received.

    Timing: SHARE, CLEAR and START from 0 take a cycle each, START from the mean width + 4; SEARCH a
    cycle and width + 1 for the steps, the first one in the cycle after it. `i` is ready when none
    of these is in progress. All outputs depend on registers only.

    Examples
    --------
    >>> from hw.unicaim.charge_accumulator import AccumulatorOp, ChargeAccumulatorParameters
    >>> parameters = ChargeAccumulatorParameters(score_bits=10, fraction=8)
    >>> parameters.width, parameters.planes
    (18, 19)
    >>> parameters.cycles(AccumulatorOp.SHARE), parameters.cycles(AccumulatorOp.START, mean=True)
    (1, 22)
    """

    summary = "Accumulated scores of rows by charge sharing"
    source = "UniCAIM, section III-B4"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Scores of all rows and what to do with them."),
            "o": stream_out(planes_layout(p.rows), "Steps of searches."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        i = self.i.payload
        # The context of the beat, later the context of the operation in progress.
        context = Signal(range(max(2, p.contexts)))
        if p.contexts > 1:
            held = Signal.like(context, reset_less=True)
            m.d.comb += context.eq(Mux(self.i.ready, i.context, held))
            m.d.sync += held.eq(context)
        sets = Array(Signal(p.rows, name=f"used_{number}") for number in range(p.contexts))
        used = Signal(p.rows)  # rows of the context that are in use
        m.d.comb += used.eq(sets[context])
        position = Signal(p.width, reset_less=True)  # one-hot: the plane of this step
        first = Signal()  # the step before the planes, of the unused rows; no position is set
        step = Signal()
        share = Signal()
        starting = Signal(p.rows)  # rows that start in this cycle, one at most
        start = Signal(p.width)

        bits = self._rows(m, context, share, starting, start, position)
        m.d.comb += [
            first.eq(~position.any()),
            self.o.payload.high.eq(~used | bits),
            self.o.payload.last.eq(position[0]),
        ]
        # From no position to the highest, then downwards.
        with m.If(step):
            m.d.sync += position.eq(Cat(position[1:], first))
        mean = self._mean(m, first, used & (bits | first.replicate(p.rows)))

        kept = Signal(p.rows)  # rows that remain in use
        m.d.comb += kept.eq(used)
        # Offset binary, so that the order of the numbers is the order of their bit planes and the
        # search needs no case for signs.
        zero = 1 << (p.width - 1)  # in offset binary
        m.d.comb += start.eq(zero)
        self._operate(m, position, used, mean, kept, step, share, starting, start)
        for number, rows in enumerate(sets):
            with m.If(context == number):
                m.d.sync += rows.eq(kept | starting)
        return m

    def _rows(
        self,
        m: Module,
        context: Signal,
        share: Signal,
        starting: Signal,
        start: Signal,
        position: Signal,
    ) -> Signal:
        """The accumulations; returns the plane at `position`, a bit of each."""
        p = self.parameters
        bits = Signal(p.rows)
        for number in range(p.rows):
            m.submodules[f"row_{number}"] = accumulator = AccumulatorRow(p)
            m.d.comb += [
                accumulator.context.eq(context),
                accumulator.share.eq(share),
                accumulator.value.eq(self.i.payload.values[number]),
                accumulator.starting.eq(starting[number]),
                accumulator.start.eq(start),
                accumulator.position.eq(position),
                bits[number].eq(accumulator.bit),
            ]
        return bits

    def _operate(
        self,
        m: Module,
        position: Signal,
        used: Signal,
        mean: Signal,
        kept: Signal,
        step: Signal,
        share: Signal,
        starting: Signal,
        start: Signal,
    ) -> None:
        """The state machine: what each operation asks of the rows, in one cycle or in several.

        position, used, mean
            One-hot, of the plane; the rows in use; the mean of the planes since the first one.
        kept, step, share, starting, start
            To the rows: those that remain in use; the next plane; all move towards their values;
            these take `start`.
        """
        i = self.i.payload
        selected = Signal(self.parameters.rows)
        row = Signal(range(self.parameters.rows), reset_less=True)
        with m.FSM():
            with m.State("IDLE"):
                # SHARE, CLEAR and START from 0 act in the cycle in which they are taken.
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += [position.eq(0), row.eq(i.row)]
                with m.If(self.i.valid):
                    with m.Switch(i.op):
                        with m.Case(AccumulatorOp.SHARE):
                            m.d.comb += share.eq(1)
                        with m.Case(AccumulatorOp.START):
                            m.d.comb += selected.eq(1 << i.row)
                            with m.If(i.mean):
                                # Not in use, so that it is not part of the mean.
                                m.d.comb += kept.eq(used & ~selected)
                                m.next = "MEAN"
                            with m.Else():
                                m.d.comb += starting.eq(selected)
                        with m.Case(AccumulatorOp.CLEAR):
                            m.d.comb += kept.eq(0)
                        with m.Case(AccumulatorOp.SEARCH):
                            m.next = "SEARCH"
            with m.State("MEAN"):
                # A plane per cycle, of all rows in use, the highest first.
                m.d.comb += step.eq(1)
                with m.If(position[0]):
                    m.next = "DIVIDE"
            with m.State("DIVIDE"):
                # The last plane's digit: a digit is a cycle behind its plane.
                m.next = "START"
            with m.State("START"):
                # The mean is complete, and the row takes it.
                m.d.comb += [starting.eq(1 << row), start.eq(mean)]
                m.next = "IDLE"
            with m.State("SEARCH"):
                # A step of the search for each plane that is taken.
                m.d.comb += [self.o.valid.eq(1), step.eq(self.o.ready)]
                with m.If(self.o.ready & position[0]):
                    m.next = "IDLE"

    def _mean(self, m: Module, first: Signal, marked) -> Signal:
        """The mean of accumulations, two cycles after their last plane.

        marked
            In the `first` step the rows that count, then the ones among them with a 1 in the plane.
        """
        p = self.parameters
        m.submodules.counter = count = PopulationCount(PopulationCountParameters(n=p.rows))
        ones = Signal(range(p.rows + 1), reset_less=True)
        counts_rows = Signal(reset_less=True)
        number = Signal(range(p.rows + 1), reset_less=True)
        rest = Signal(range(p.rows), reset_less=True)  # the remainder, below `number`
        quotient = Signal(p.width, reset_less=True)
        dividend = Signal(range(3 * p.rows))
        less_one = Signal(range(-p.rows, 3 * p.rows))
        less_two = Signal(range(-2 * p.rows, 3 * p.rows))
        once = Signal()
        twice = Signal()
        m.d.comb += [
            count.i.eq(marked),
            dividend.eq((rest << 1) + ones),
            less_one.eq(dividend - number),
            less_two.eq(dividend - (number << 1)),
            once.eq(less_one >= 0),
            twice.eq(less_two >= 0),
        ]
        # First cycle: count the ones of a plane. Second cycle: a digit of the quotient.
        m.d.sync += [ones.eq(count.o), counts_rows.eq(first)]
        with m.If(counts_rows):
            m.d.sync += [number.eq(ones), rest.eq(0)]
        with m.Else():
            m.d.sync += [
                rest.eq(Mux(twice, less_two, Mux(once, less_one, dividend))),
                # quotient <- 2 quotient + digit: the digit 2 carries into the bits above.
                quotient.eq(Cat(once & ~twice, quotient + twice)),
            ]
        mean = Signal(p.width)
        m.d.comb += mean.eq(Mux(number.any(), quotient, 1 << (p.width - 1)))
        return mean


class AccumulatorRow(Component[ChargeAccumulatorParameters]):
    """One accumulation."""

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "context": wire_in(range(max(2, p.contexts))),
            "share": wire_in(1, "Move towards `value` by a share of the distance."),
            "value": wire_in(signed(p.score_bits)),
            "starting": wire_in(1, "Take `start`."),
            "start": wire_in(p.width, "In offset binary: the accumulation plus 2^(width - 1)."),
            "position": wire_in(p.width, "One-hot or 0."),
            "bit": wire_out(1, "The bit at that position of the accumulation in offset binary."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        # In offset binary, of each context.
        stored = Array(
            Signal(p.width, name=f"held_{number}", reset_less=True) for number in range(p.contexts)
        )
        held = Signal(p.width)
        m.d.comb += held.eq(stored[self.context])
        target = Signal(p.width)  # | inverted sign | score | 0 … 0, `fraction` of them |
        distance = Signal(signed(p.width + 1))
        m.d.comb += [
            target.eq(Cat(Const(0, p.fraction), self.value[:-1], ~self.value[-1])),
            distance.eq(target - held),
            self.bit.eq((held & self.position).any()),
        ]
        half = (1 << p.share) >> 1  # rounds half up
        for number, accumulation in enumerate(stored):
            with m.If(self.context == number):
                with m.If(self.share):
                    m.d.sync += accumulation.eq(held + ((distance + half) >> p.share))
                with m.If(self.starting):
                    m.d.sync += accumulation.eq(self.start)
        return m
