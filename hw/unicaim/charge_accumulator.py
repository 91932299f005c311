"""Accumulated scores of rows by charge sharing (UniCAIM, section III-B4)."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.arith.population_count import PopulationCount, PopulationCountParameters
from hw.component import Component
from hw.parameters import Parameters, require
from hw.unicaim.eviction_sense import planes_layout

SHARE, START, CLEAR, RACE = range(4)
"""What a beat asks for."""


@dataclasses.dataclass(frozen=True)
class ChargeAccumulatorParameters(Parameters):
    """
    rows
        Capacitors, 2 or more.
    score_bits
        Of a signed score, 2 to 24.
    fraction
        Bits of an accumulation below a step of the scores, 0 to 16.
    share
        A line's capacitor is a part 2^-share of both, 0 to 16.
    """

    rows: int = 64
    score_bits: int = 10
    fraction: int = 8
    share: int = 4

    def __post_init__(self):
        require(self.rows >= 2, "rows must be at least 2", self.rows)
        for name, least, most in (("score_bits", 2, 24), ("fraction", 0, 16), ("share", 0, 16)):
            value = getattr(self, name)
            rule = f"{name} must be between {least} and {most}"
            require(least <= value <= most, rule, value)

    @classmethod
    def presets(cls) -> dict[str, "ChargeAccumulatorParameters"]:
        return {
            "small": cls(rows=8, score_bits=6, fraction=3, share=2),
            "default": cls(),
            "paper": cls(rows=576, score_bits=11),
        }

    @property
    def width(self) -> int:
        """Of an accumulation."""
        return self.score_bits + self.fraction

    @property
    def planes(self) -> int:
        """Steps of a race."""
        return self.width + 1

    @property
    def latency(self) -> int:
        """Cycles from RACE to the race's first step."""
        return 1

    @property
    def mean_cycles(self) -> int:
        """Cycles for which a START from the mean keeps the accumulator busy, its own included."""
        return self.planes + 3

    @property
    def input_layout(self) -> data.StructLayout:
        """A beat.

        ``op`` SHARE, START, CLEAR or RACE; ``row`` to START, from the ``mean`` or from 0;
        ``values`` scores of all rows to SHARE.
        """
        values = data.ArrayLayout(signed(self.score_bits), self.rows)
        return data.StructLayout({"op": 2, "row": range(self.rows), "mean": 1, "values": values})


class ChargeAccumulator(Component):
    """Every row's accumulation moves towards its score, and tells how small it is.

        SHARE:  acc[r] <- acc[r] + floor((value[r] - acc[r]) 2^-share + 1/2)
        START:  acc[row] <- floor(mean of acc over the other rows in use), or 0
        RACE:   all acc as planes of bits, the highest place first

    An accumulation is a score in fixed point with `fraction` bits, and the equation above is in
    these. It is never further from the exact one of III-B4 than 2^(share - 1 - fraction) scores.

    SHARE is of all rows at once. START begins a row, which is in use from then on; after CLEAR none
    is. START from the mean of no rows is from 0. The mean is a long division: R the remainder, n
    the rows, each place of all accumulations is counted, R <- 2 R + count, and n is taken off
    twice, once or not at all, which is a digit of the quotient, 2, 1 or 0.

    RACE gives `o` the rows that are not in use, as high, then the planes of the accumulations,
    counted from the lowest possible one so that none is negative, unused rows high:
    :class:`EvictionSense` finds the smallest from that.

    Overflow: none; an accumulation stays between the scores that it has met.

    Timing: SHARE, CLEAR and START from 0 take a cycle each, START from the mean width + 4; RACE a
    cycle and width + 1 for the steps, the first one the cycle after it. `i` is ready when nothing
    of that goes on. All outputs depend on registers only.

    Members
    -------
    i : :py:`In(stream.Signature(parameters.input_layout))`
    o : :py:`Out(stream.Signature(planes_layout(rows)))`
        Steps of races.
    """

    summary = "Accumulated scores of rows by charge sharing"
    source = "UniCAIM, section III-B4"

    def __init__(self, parameters: ChargeAccumulatorParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "i": In(stream.Signature(p.input_layout)),
                "o": Out(stream.Signature(planes_layout(p.rows))),
            }
        )

    @property
    def parameters(self) -> ChargeAccumulatorParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        i = self.i.payload
        used = Signal(p.rows)
        place = Signal(p.width, reset_less=True)  # one-hot, none in a first step
        first = Signal()
        step = Signal()
        share = Signal()
        selected = Signal(p.rows)
        starting = Signal(p.rows)  # rows that begin in this cycle, one at most
        row = Signal(range(p.rows), reset_less=True)
        start = Signal(p.width)

        bits = Signal(p.rows)
        for number in range(p.rows):
            m.submodules[f"row_{number}"] = capacitor = AccumulatorRow(p)
            m.d.comb += [
                capacitor.share.eq(share),
                capacitor.value.eq(i.values[number]),
                capacitor.starting.eq(starting[number]),
                capacitor.start.eq(start),
                capacitor.place.eq(place),
                bits[number].eq(capacitor.bit),
            ]
        m.d.comb += [
            first.eq(~place.any()),
            self.o.payload.high.eq(~used | bits),
            self.o.payload.last.eq(place[0]),
        ]
        with m.If(step):
            m.d.sync += place.eq(Cat(place[1:], first))
        mean = self._mean(m, first, used & (bits | first.replicate(p.rows)))

        zero = 1 << (p.width - 1)
        m.d.comb += start.eq(zero)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += [place.eq(0), row.eq(i.row)]
                with m.If(self.i.valid):
                    with m.Switch(i.op):
                        with m.Case(SHARE):
                            m.d.comb += share.eq(1)
                        with m.Case(START):
                            m.d.comb += selected.eq(1 << i.row)
                            with m.If(i.mean):
                                # So that the mean is of the others.
                                m.d.sync += used.eq(used & ~selected)
                                m.next = "MEAN"
                            with m.Else():
                                m.d.comb += starting.eq(selected)
                        with m.Case(CLEAR):
                            m.d.sync += used.eq(0)
                        with m.Case(RACE):
                            m.next = "RACE"
            with m.State("MEAN"):
                m.d.comb += step.eq(1)
                with m.If(place[0]):
                    m.next = "DIVIDE"
            with m.State("DIVIDE"):
                m.next = "START"
            with m.State("START"):
                m.d.comb += [starting.eq(1 << row), start.eq(mean)]
                m.next = "IDLE"
            with m.State("RACE"):
                m.d.comb += [self.o.valid.eq(1), step.eq(self.o.ready)]
                with m.If(self.o.ready & place[0]):
                    m.next = "IDLE"
        with m.If(starting.any()):
            m.d.sync += used.eq(used | starting)
        return m

    def _mean(self, m: Module, first: Signal, marked) -> Signal:
        """The mean of accumulations, two cycles after their last plane.

        `marked` are in the `first` step the rows that count, then those of them with a 1.
        """
        p = self._parameters
        m.submodules.counter = count = PopulationCount(PopulationCountParameters(n=p.rows))
        ones = Signal(range(p.rows + 1), reset_less=True)
        counts_rows = Signal(reset_less=True)
        number = Signal(range(p.rows + 1), reset_less=True)
        rest = Signal(range(p.rows), reset_less=True)  # less than `number`
        quotient = Signal(p.width, reset_less=True)
        dividend = Signal(range(3 * p.rows))
        less_one = Signal(range(-p.rows, 3 * p.rows))
        less_two = Signal(range(-2 * p.rows, 3 * p.rows))
        once, twice = Signal(), Signal()
        m.d.comb += [
            count.i.eq(marked),
            dividend.eq((rest << 1) + ones),
            less_one.eq(dividend - number),
            less_two.eq(dividend - (number << 1)),
            once.eq(less_one >= 0),
            twice.eq(less_two >= 0),
        ]
        m.d.sync += [ones.eq(count.o), counts_rows.eq(first)]
        with m.If(counts_rows):
            m.d.sync += [number.eq(ones), rest.eq(0)]
        with m.Else():
            m.d.sync += [
                rest.eq(Mux(twice, less_two, Mux(once, less_one, dividend))),
                quotient.eq(Cat(once & ~twice, quotient + twice)),
            ]
        mean = Signal(p.width)
        m.d.comb += mean.eq(Mux(number.any(), quotient, 1 << (p.width - 1)))
        return mean


class AccumulatorRow(Component):
    """One accumulation.

    Members
    -------
    share : :py:`In(1)`
        Move towards `value`.
    value : :py:`In(signed(score_bits))`
    starting : :py:`In(1)`
        Become `start`.
    start : :py:`In(width)`
        Counted from the lowest possible accumulation.
    place : :py:`In(width)`
        One-hot or 0.
    bit : :py:`Out(1)`
        The accumulation's bit there, counted from the lowest possible one.
    """

    def __init__(self, parameters: ChargeAccumulatorParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "share": In(1),
                "value": In(signed(p.score_bits)),
                "starting": In(1),
                "start": In(p.width),
                "place": In(p.width),
                "bit": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        held = Signal(p.width, reset_less=True)
        target = Signal(p.width)
        distance = Signal(signed(p.width + 1))
        m.d.comb += [
            target.eq(Cat(Const(0, p.fraction), self.value[:-1], ~self.value[-1])),
            distance.eq(target - held),
            self.bit.eq((held & self.place).any()),
        ]
        half = (1 << p.share) >> 1
        with m.If(self.share):
            m.d.sync += held.eq(held + ((distance + half) >> p.share))
        with m.If(self.starting):
            m.d.sync += held.eq(self.start)
        return m
