"""Rows of FP16 numbers to scales, fine codes and search codes."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.arith.bits.leading_zeros import leading_one, shift_to_top
from hw.arith.float_format import FP16
from hw.attention.delay import delay
from hw.component import Component
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.tsuru.encoder_lane import RECIPROCALS, TERM_BITS, EncoderLane
from hw.tsuru.row_format import (
    LARGEST_SCALE,
    NOT_FINITE,
    SCALE_BITS,
    SCALE_FRACTION,
    fine_layout,
    search_layout,
)
from hw.tsuru.row_ring import connect_ring

PAIRS = range(9, TERM_BITS // 2)
"""Pairs of bits of a mean square, in units of 2^-48, in which the leading one of a scale that is
above 0 may be."""
WINDOW = 10
"""Bits of a mean square, from that pair on, which decide the scale."""
MIDDLES = [(2 * n + 1) ** 2 for n in range(8, 16)]
"""Squares of the middles between a scale's significands n / 8, in units of 1/256."""


@dataclasses.dataclass(frozen=True)
class RowEncoderParameters(Parameters):
    """
    d
        Elements of a row; a power of two.
    lanes
        Elements that are squared, and then encoded, in a cycle; divides d.
    fraction
        Fraction bits of a fine code, which has 3 bits more.
    """

    d: int = 64
    lanes: int = 4
    fraction: int = 4

    def __post_init__(self):
        require(self.d >= 2 and not self.d & self.d - 1, "d must be a power of two", self.d)
        rule = f"lanes must divide d, {self.d}"
        require(self.lanes >= 1 and self.d % self.lanes == 0, rule, self.lanes)
        require(1 <= self.fraction <= 6, "fraction must be between 1 and 6", self.fraction)

    @classmethod
    def presets(cls) -> dict[str, "RowEncoderParameters"]:
        return {
            "small": cls(d=8, lanes=2),
            "default": cls(),
            "wide": cls(d=128, lanes=8),
        }

    @property
    def ranks(self) -> int:
        """log2 d."""
        return self.d.bit_length() - 1

    @property
    def passes(self) -> int:
        """Cycles in which all elements pass the lanes."""
        return self.d // self.lanes

    @property
    def latency(self) -> int:
        return 2 * self.passes + 7

    def cycles(self, rows: int) -> int:
        """Cycles from the first row offered to the last one taken, without stalls."""
        return rows * (self.latency + 1)

    @property
    def input_layout(self) -> data.StructLayout:
        """A row; ``x``: its elements."""
        return data.StructLayout({"x": data.ArrayLayout(FP16, self.d)})

    @property
    def output_layout(self) -> data.StructLayout:
        """A row.

        ``fine``: its scale and fine codes. ``search``: its search codes.
        """
        fine = fine_layout(self.d, self.fraction)
        return data.StructLayout({"fine": fine, "search": search_layout(self.d)})


class RowEncoder(Component[RowEncoderParameters]):
    """Encode a row: the formats of :mod:`hw.tsuru.row_format`.

        s = sqrt(Σ x² / d)         rounded to 4 significant bits, the nearest, halves up
        fine code of x             the level nearest to |x| / s, halves away from zero
        search code of x           large if |x| ≥ s

    ::

        x ─→ lanes: x² ─→ Σ ─→ leading pair of bits ─→ 8 comparisons ─→ s ─→ o
               ↑      ·  1 / significand of s ──────────────────────────┘
               └── x ──── lanes: | x | / s, rounded ─→ codes ─→ o

    All of it is exact, so codes are those of the real numbers. The sum of squares has all 80 + log2
    d bits that it may have. No root is taken: eight comparisons of the mean square with squares of
    the middles between two scales find the nearest scale. A quotient by a scale's significand, 8 to
    15, has all the bits that a level needs in its integer bits, and a product with a table's number
    has those exactly; they are shifted by the difference of the exponents.

    A root mean square that rounds to less than 2^-14 makes the scale 0, one that rounds to more
    than 15360 makes it that; elements beyond the largest level saturate. Fine and search codes of
    a row whose scale is 0 are 0 but for the signs. A row with an infinity or a NaN has such codes
    and the scale 255.

    Latency: 2 d / lanes + 7 cycles: d / lanes for the squares, two until the last is added, three
    for the scale, d / lanes + 1 for the codes, one for the output. Throughput: a row in latency + 1
    cycles. All outputs depend on registers only.

    Source: this project's own.

    Examples
    --------
    >>> from hw.tsuru.row_encoder import RowEncoder, RowEncoderParameters
    >>> parameters = RowEncoderParameters(d=64, lanes=4)
    >>> parameters.latency, parameters.output_layout.size
    (39, 584)
    """

    summary = "Rows of FP16 numbers to a scale, fine codes and search codes"
    source = "library"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Rows, rotated."),
            "o": stream_out(p.output_layout, "Encoded rows, in the same order."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        accept = Signal()
        m.d.comb += accept.eq(self.i.valid & self.i.ready)
        elements = [Signal(FP16.width, name=f"element_{n}", reset_less=True) for n in range(p.d)]
        square, encode, look, weigh = (
            Signal(name=n) for n in ("square", "encode", "look", "weigh")
        )
        self._sequence(m, square, encode, look, weigh)

        first = elements[: p.lanes]
        lanes = [EncoderLane(p.fraction) for _ in first]
        new = [Mux(encode, lane.code, x) for lane, x in zip(lanes, first, strict=True)]
        connect_ring(m, elements, self.i.payload.x, new, accept, square | encode)

        special = Signal(reset_less=True)
        with m.If(accept):
            m.d.sync += special.eq(0)
        with m.Elif(square):
            m.d.sync += special.eq(special | Cat(lane.special for lane in lanes).any())
        total = Signal(TERM_BITS + p.ranks, reset_less=True)
        squared = delay(m, "squared", square, 2)
        with m.If(accept):
            m.d.sync += total.eq(0)
        with m.Elif(squared):
            m.d.sync += total.eq(total + sum(lane.term for lane in lanes))
        scale, present = self._scale(m, total, special, look, weigh)

        reciprocal = Signal.like(lanes[0].reciprocal, reset_less=True)
        with m.Switch(scale[:SCALE_FRACTION]):
            for fraction, number in enumerate(RECIPROCALS):
                with m.Case(fraction):
                    m.d.sync += reciprocal.eq(number)
        for number, (lane, element) in enumerate(zip(lanes, first, strict=True)):
            m.submodules[f"lane_{number}"] = lane
            m.d.comb += [
                lane.x.eq(element),
                lane.square.eq(square),
                lane.reciprocal.eq(reciprocal),
                lane.scale.eq(scale),
                lane.present.eq(present),
            ]
        self._output(m, elements, scale)
        return m

    def _sequence(
        self, m: Module, square: Signal, encode: Signal, look: Signal, weigh: Signal
    ) -> None:
        """A row's way: squares, their sum, the scale, codes. One row at a time."""
        p = self.parameters
        left = Signal(range(p.passes + 2), reset_less=True)
        m.d.sync += left.eq(left - 1)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += left.eq(p.passes - 1)
                with m.If(self.i.valid):
                    m.next = "SQUARES"
            with m.State("SQUARES"):
                m.d.comb += square.eq(1)
                with m.If(left == 0):
                    m.d.sync += left.eq(1)
                    m.next = "SUM"
            with m.State("SUM"):
                # The last squares are on their way through the lanes' registers.
                with m.If(left == 0):
                    m.next = "LOOK"
            with m.State("LOOK"):
                m.d.comb += look.eq(1)
                m.next = "WEIGH"
            with m.State("WEIGH"):
                m.d.comb += weigh.eq(1)
                m.next = "RECIPROCAL"
            with m.State("RECIPROCAL"):
                m.d.sync += left.eq(p.passes)
                m.next = "CODES"
            with m.State("CODES"):
                # A cycle more, as the lanes have a register: what comes in first is no code, and
                # goes out with the last move.
                m.d.comb += encode.eq(1)
                with m.If(left == 0):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "IDLE"

    def _scale(
        self, m: Module, total: Signal, special: Signal, look: Signal, weigh: Signal
    ) -> tuple[Signal, Signal]:
        """Registers of the scale, and of whether there is one."""
        p = self.parameters
        # The mean square lies between 4^n and 4^(n + 1), and its root in one octave: n is the
        # exponent. So bits are looked at in pairs.
        below = WINDOW // 2 - 1
        first = p.ranks + 2 * (PAIRS.start - below)
        halves = [total[first + odd : p.ranks + TERM_BITS : 2] for odd in (0, 1)]
        place = leading_one(m, (halves[0] | halves[1])[below:], "pair")
        assert len(PAIRS) == (1 << len(place)) - 1  # so that 0 means no pair
        even, odd = (
            shift_to_top(m, half, place, name)[-WINDOW // 2 :]
            for half, name in zip(halves, ("even", "odd"), strict=True)
        )
        exponent = Signal.like(place, reset_less=True)
        window = Signal(WINDOW, reset_less=True)
        with m.If(look):
            m.d.sync += [
                exponent.eq(place),
                window.eq(Cat(bit for pair in zip(even, odd, strict=True) for bit in pair)),
            ]

        steps = Signal(range(len(MIDDLES) + 1))
        raw = Signal(SCALE_BITS + 1)  # of a scale of half the size, so that 0 and less fit
        scale = Signal(SCALE_BITS, reset_less=True)
        present = Signal(reset_less=True)
        one = 1 << SCALE_FRACTION
        m.d.comb += [
            steps.eq(sum(window >= middle for middle in MIDDLES)),
            raw.eq(exponent * one + steps),
        ]
        with m.If(weigh):
            m.d.sync += present.eq(~special & (raw >= 2 * one))
            with m.If(special):
                m.d.sync += scale.eq(NOT_FINITE)
            with m.Elif(raw < 2 * one):
                m.d.sync += scale.eq(0)
            with m.Elif(raw > LARGEST_SCALE + one):
                m.d.sync += scale.eq(LARGEST_SCALE)
            with m.Else():
                m.d.sync += scale.eq(raw - one)
        return scale, present

    def _output(self, m: Module, elements: list[Signal], scale: Value) -> None:
        fraction, o = self.parameters.fraction, self.o.payload
        m.d.comb += o.fine.scale.eq(scale)
        for number, element in enumerate(elements):
            sign, large = element[fraction + 2], element[fraction + 3]
            m.d.comb += [
                o.fine.codes[number].eq(element[: fraction + 3]),
                o.search[number].eq(Cat(large, sign)),
            ]
