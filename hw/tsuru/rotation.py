"""Rows of FP16 numbers times a Hadamard matrix."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.component import Component
from hw.layout import FLAG
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.tsuru.rotation_lane import ALIGNED, RotationLane
from hw.tsuru.row_ring import connect_ring


@dataclasses.dataclass(frozen=True)
class RotationParameters(Parameters):
    """
    d
        Elements of a row; a power of two.
    lanes
        Elements that are aligned, and then rounded, in a cycle; divides d.
    """

    d: int = 64
    lanes: int = 16

    def __post_init__(self):
        require(self.d >= 2 and not self.d & self.d - 1, "d must be a power of two", self.d)
        rule = f"lanes must divide d, {self.d}"
        require(self.lanes >= 1 and self.d % self.lanes == 0, rule, self.lanes)

    @classmethod
    def presets(cls) -> dict[str, "RotationParameters"]:
        return {
            "small": cls(d=8, lanes=4),
            "default": cls(),
            "wide": cls(d=128, lanes=32),
        }

    @property
    def ranks(self) -> int:
        """Ranks of butterflies, log2 d."""
        return self.d.bit_length() - 1

    @property
    def odd(self) -> bool:
        """Whether the root of d is no power of two."""
        return bool(self.ranks % 2)

    @property
    def sum_bits(self) -> int:
        """Width of an element of a rotated row, an integer."""
        return ALIGNED + self.ranks

    @property
    def passes(self) -> int:
        """Cycles in which all elements pass the lanes."""
        return self.d // self.lanes

    @property
    def latency(self) -> int:
        return 2 * self.passes + self.ranks + 3

    def cycles(self, rows: int) -> int:
        """Cycles from the first row offered to the last one taken, without stalls."""
        return rows * (self.latency + 1)

    @property
    def input_layout(self) -> data.StructLayout:
        """A row.

        ``x``: its elements. ``back``, if log2 d is odd: it is divided by the smaller power of two.
        """
        back = {"back": FLAG} if self.odd else {}
        return data.StructLayout({"x": data.ArrayLayout(FP16, self.d), **back})

    @property
    def output_layout(self) -> data.StructLayout:
        """A rotated row; ``x``: its elements."""
        return data.StructLayout({"x": data.ArrayLayout(FP16, self.d)})


class Rotation(Component[RotationParameters]):
    """Rotate a row: o = H x / 2^h, rounded to FP16.

    H is the Hadamard matrix in its natural order, of +1 and -1, which is symmetric and its own
    inverse but for a factor of d. So rows that are rotated twice come back, and inner products of
    rotated rows are those of the rows, if what both are divided by multiplies to d. If log2 d is
    even, h = log2(d) / 2 for all rows. If it is odd, h is half of it, rounded up for K and V, and
    rounded down for rows that meet them, which have `back` set: q, and o on its way back. No
    product by a root is needed.

    ::

        x ─→ align ─→ butterflies, log2 d times ─→ round ─→ o
             lanes             d                  lanes

    Elements are aligned to the exponent of the row's largest: integers of 11 bits, 4 more below
    them and a sign, rounded to nearest, halves away from zero. Sums are exact. The result is
    rounded to nearest even; subnormal numbers are kept, too large ones become infinities. Error
    before the last rounding: at most 2^-15 of the row's largest power of two for each element,
    times d / 2^h. A row with an infinity or a NaN becomes NaN in all elements.

    Latency: 2 d / lanes + log2 d + 3 cycles: one for the largest exponent, d / lanes for the
    alignment, log2 d for the butterflies, d / lanes + 1 for rounding. Throughput: a row in
    latency + 1 cycles, because one row of d adders serves all ranks; a step has few rows to rotate
    and many to read. All outputs depend on registers only.

    Source: this project's own; rotated rows of few bits are QuaRot's (Ashkboos et al.,
    arXiv:2404.00456).

    Examples
    --------
    >>> from hw.tsuru.rotation import Rotation, RotationParameters
    >>> parameters = RotationParameters(d=64, lanes=16)
    >>> parameters.latency, parameters.sum_bits, parameters.odd
    (17, 22, False)
    """

    summary = "Rows of FP16 numbers times a Hadamard matrix"
    source = "library"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Rows."),
            "o": stream_out(p.output_layout, "Rotated rows, in the same order."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        accept = Signal()
        m.d.comb += accept.eq(self.i.valid & self.i.ready)
        elements = [
            Signal(signed(p.sum_bits), name=f"element_{n}", reset_less=True) for n in range(p.d)
        ]
        top = Signal(FP16.exponent, reset_less=True)  # the largest exponent field, at least 1
        find, move, rank, rounded = (Signal(name=n) for n in ("find", "move", "rank", "rounded"))
        self._sequence(m, find, move, rank, rounded)

        largest = _largest(m, [element[FP16.mantissa : FP16.width - 1] for element in elements])
        with m.If(find):
            m.d.sync += top.eq(Cat(largest[0] | ~largest.any(), largest[1:]))
        lanes = self._lanes(m, elements[: p.lanes], top, accept)

        # The same wires for all ranks; after log2 d of them the order is the natural one.
        half = p.d // 2
        pairs = zip(elements[:half], elements[half:], strict=True)
        sums = [value for a, b in pairs for value in (a + b, a - b)]
        new = [Mux(rounded, lane.o, lane.aligned) for lane in lanes]
        connect_ring(m, elements, self.i.payload.x, new, accept, move, (rank, sums))
        for number, element in enumerate(elements):
            m.d.comb += self.o.payload.x[number].eq(element[: FP16.width])
        return m

    def _sequence(
        self, m: Module, find: Signal, move: Signal, rank: Signal, rounded: Signal
    ) -> None:
        """A row's way: its largest exponent, alignment, ranks, rounding. One row at a time."""
        p = self.parameters
        left = Signal(range(max(p.passes, p.ranks) + 1), reset_less=True)
        m.d.sync += left.eq(left - 1)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid):
                    m.next = "LARGEST"
            with m.State("LARGEST"):
                m.d.comb += find.eq(1)
                m.d.sync += left.eq(p.passes - 1)
                m.next = "ALIGN"
            with m.State("ALIGN"):
                m.d.comb += move.eq(1)
                with m.If(left == 0):
                    m.d.sync += left.eq(p.ranks - 1)
                    m.next = "RANKS"
            with m.State("RANKS"):
                m.d.comb += rank.eq(1)
                with m.If(left == 0):
                    m.d.sync += left.eq(p.passes)
                    m.next = "ROUND"
            with m.State("ROUND"):
                # A cycle more, as the lanes have a register: what comes in first is no result,
                # and goes out with the last move.
                m.d.comb += [move.eq(1), rounded.eq(1)]
                with m.If(left == 0):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "IDLE"

    def _lanes(
        self, m: Module, elements: list[Signal], top: Signal, accept: Signal
    ) -> list[RotationLane]:
        """The lanes, at the first elements, and what they have to know of the row."""
        p = self.parameters
        less = Signal(reset_less=True)  # the row is divided by the smaller power of two
        if p.odd:
            with m.If(accept):
                m.d.sync += less.eq(self.i.payload.back)
        # A sum of integers of weight 2^(top - 29) that is divided by 2^h; registers, for they have
        # many cycles until the first sum is rounded.
        highest = Signal(FP16.exponent + 1, reset_less=True)
        stop = Signal(p.sum_bits, reset_less=True)
        m.d.sync += [
            highest.eq(top + p.ranks // 2 + less),
            stop.eq(Cat(highest == p.sum_bits - n for n in range(p.sum_bits))),
        ]
        lanes = [RotationLane(p.ranks) for _ in elements]
        for number, (lane, element) in enumerate(zip(lanes, elements, strict=True)):
            m.submodules[f"lane_{number}"] = lane
            m.d.comb += [
                lane.x.eq(element[: FP16.width]),
                lane.top.eq(top),
                lane.sum.eq(element),
                lane.highest.eq(highest),
                lane.stop.eq(stop),
            ]
        return lanes


def _largest(m: Module, values: list[Value]) -> Signal:
    """The largest of unsigned numbers: a balanced tree of comparisons."""
    level = 0
    while len(values) > 1:
        found: list[Value] = []
        for number, (a, b) in enumerate(zip(values[::2], values[1::2], strict=True)):
            larger = Signal(len(a), name=f"largest_{level}_{number}")
            m.d.comb += larger.eq(Mux(a > b, a, b))
            found.append(larger)
        values, level = found, level + 1
    assert isinstance(values[0], Signal)
    return values[0]
