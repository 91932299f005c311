"""The mean of a growing number of rows."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data

from hw.arith.bits.leading_zeros import leading_one, shift_to_top
from hw.arith.float_format import FP16, FP32
from hw.component import Component
from hw.layout import count
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.tsuru.mean_lane import ADD_STAGES, MEAN_STAGES, MeanLane
from hw.tsuru.row_ring import connect_ring

QUOTIENT_BITS = FP32.precision + 2
"""Bits of 1 / n: one above those of a significand, for 1, and one below, to round."""


@dataclasses.dataclass(frozen=True)
class ValueMeanParameters(Parameters):
    """
    d
        Elements of a row.
    lanes
        Elements that are added in a cycle; divides d.
    capacity
        Most rows of a mean.
    """

    d: int = 64
    lanes: int = 2
    capacity: int = 8192

    def __post_init__(self):
        require(self.d >= 1, "d must be at least 1", self.d)
        rule = f"lanes must divide d, {self.d}"
        require(self.lanes >= 1 and self.d % self.lanes == 0, rule, self.lanes)
        rule = "capacity must be between 1 and 65535"
        require(1 <= self.capacity < 1 << 16, rule, self.capacity)

    @classmethod
    def presets(cls) -> dict[str, "ValueMeanParameters"]:
        return {
            "small": cls(d=8, lanes=1, capacity=1000),
            "default": cls(),
            "wide": cls(d=128, lanes=4),
        }

    @property
    def passes(self) -> int:
        """Cycles in which all elements pass the lanes."""
        return self.d // self.lanes

    @property
    def latency(self) -> int:
        return QUOTIENT_BITS + self.passes + ADD_STAGES + MEAN_STAGES + 3

    def cycles(self, rows: int) -> int:
        """Cycles from the first row offered to the last one taken, without stalls."""
        return rows * (self.latency + 1)

    @property
    def input_layout(self) -> data.StructLayout:
        """A row that joins a sum.

        ``x``: its elements, FP16. ``sum``: the sum of the rows before it, FP32. ``number``: how
        many they are with it, at least 1; with 1, the sum does not matter.
        """
        fields = {"x": data.ArrayLayout(FP16, self.d), "sum": data.ArrayLayout(FP32, self.d)}
        return data.StructLayout({**fields, "number": count(range(self.capacity + 1))})

    @property
    def output_layout(self) -> data.StructLayout:
        """The sum with the row, FP32, and the mean, FP16."""
        fields = {"mean": data.ArrayLayout(FP16, self.d), "sum": data.ArrayLayout(FP32, self.d)}
        return data.StructLayout(fields)


class ValueMean(Component[ValueMeanParameters]):
    """Add a row to a sum of rows, and give the mean.

        sum' = sum + x        mean = sum' (1 / n)        1 / n rounded to FP32, the mean to FP16

    The sum is FP32 and goes to memory, two words of a row's width; on chip it would be two rows of
    every layer and kv head. Rows that are not chosen count with their mean, so it is of all rows
    after the first ones, whose V is exact.

    ::

        n ─→ 1 / n, a bit a cycle ─────────────┐
        x, sum ─→ lanes: x in FP32 ─→ + ─┬─→ × ┴─→ FP16 ─→ mean
                                         └──────────────→ sum

    Sum, product and conversion are each rounded correctly. The error of a sum of n rows is at most
    n 2^-24 times the largest sum on the way, so a mean of 8192 rows is at most 2^-11 of the mean
    magnitude off before it is rounded, half a unit in FP16's last place; as errors have both signs,
    it is a hundred times less. A mean in FP16 that is moved by (x - mean) / n is 1 to 2 % off then,
    as its steps are rounded away. Infinities and NaNs remain in the sum.

    Latency: 26 cycles for 1 / n, d / lanes + 7 for the elements, and 3: to normalise n, to round
    1 / n, and for the output. Throughput: a row in latency + 1 cycles. All outputs depend on
    registers only.

    Source: this project's own.

    Examples
    --------
    >>> from hw.tsuru.value_mean import ValueMean, ValueMeanParameters
    >>> ValueMeanParameters(d=64, lanes=2).latency
    68
    """

    summary = "The mean of a growing number of rows, from their sum in FP32"
    source = "library"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "A row, and the sum of those before it."),
            "o": stream_out(p.output_layout, "The sum with it, and the mean, in the same order."),
        }

    def elaborate(self, platform):
        m = Module()
        p, i, o = self.parameters, self.i.payload, self.o.payload
        accept = Signal()
        m.d.comb += accept.eq(self.i.valid & self.i.ready)
        normalise, divide, finish, add, move = (
            Signal(name=n) for n in ("normalise", "divide", "finish", "add", "move")
        )
        self._sequence(m, normalise, divide, finish, add, move)
        number = Signal(range(p.capacity + 1), reset_less=True)
        with m.If(accept):
            m.d.sync += number.eq(i.number)
        reciprocal = self._reciprocal(m, number, normalise, divide, finish)

        # What comes in before the lanes' first results goes out at the other end by the last move.
        lanes = [MeanLane() for _ in range(p.lanes)]
        means, sums = (
            [Signal(shape.width, name=f"{name}_{n}", reset_less=True) for n in range(p.d)]
            for name, shape in (("x", FP16), ("sum", FP32))
        )
        connect_ring(m, means, i.x, [lane.mean for lane in lanes], accept, move)
        connect_ring(m, sums, i.sum, [lane.sum for lane in lanes], accept, add)
        for number_of, lane in enumerate(lanes):
            m.submodules[f"lane_{number_of}"] = lane
            m.d.comb += [
                lane.x.eq(means[number_of]),
                lane.before.eq(sums[number_of]),
                lane.first.eq(number == 1),
                lane.reciprocal.eq(reciprocal),
            ]
        for number_of, (mean, total) in enumerate(zip(means, sums, strict=True)):
            m.d.comb += [o.mean[number_of].eq(mean), o.sum[number_of].eq(total)]
        return m

    def _sequence(
        self,
        m: Module,
        normalise: Signal,
        divide: Signal,
        finish: Signal,
        add: Signal,
        move: Signal,
    ) -> None:
        """A row's way: 1 / n, then its elements. One row at a time."""
        moves = self.parameters.passes + ADD_STAGES + MEAN_STAGES
        left = Signal(range(max(QUOTIENT_BITS, moves)), reset_less=True)
        m.d.sync += left.eq(left - 1)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid):
                    m.next = "NORMALISE"
            with m.State("NORMALISE"):
                m.d.comb += normalise.eq(1)
                m.d.sync += left.eq(QUOTIENT_BITS - 1)
                m.next = "DIVIDE"
            with m.State("DIVIDE"):
                m.d.comb += divide.eq(1)
                with m.If(left == 0):
                    m.next = "FINISH"
            with m.State("FINISH"):
                m.d.comb += finish.eq(1)
                m.d.sync += left.eq(moves - 1)
                m.next = "ADD"
            with m.State("ADD"):
                # Sums come back before means do, and then are where they belong.
                m.d.comb += [move.eq(1), add.eq(left >= MEAN_STAGES)]
                with m.If(left == 0):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "IDLE"

    def _reciprocal(
        self, m: Module, number: Signal, normalise: Signal, divide: Signal, finish: Signal
    ) -> Signal:
        """1 / n as FP32, to nearest: a long division of 1 by n between 1 and 2."""
        width = len(number)
        place = leading_one(m, number, "number")
        exponent = Signal(range(width), reset_less=True)
        divisor = Signal(width, reset_less=True)
        rest = Signal(width + 1, reset_less=True)  # below two divisors
        quotient = Signal(QUOTIENT_BITS, reset_less=True)
        fits = Signal()
        m.d.comb += fits.eq(rest >= divisor)
        with m.If(normalise):
            m.d.sync += [
                exponent.eq(place - ((1 << len(place)) - width)),
                divisor.eq(shift_to_top(m, number, place)),
                rest.eq(1 << width - 1),
            ]
        with m.If(divide):
            m.d.sync += [
                rest.eq(Cat(Const(0, 1), (rest - Mux(fits, divisor, 0))[:width])),
                quotient.eq(Cat(fits, quotient[:-1])),
            ]
        # Ties do not occur: only for powers of two does the division end.
        rounded = Signal(FP32.precision + 1)
        result = Signal(FP32.width, reset_less=True)
        one = quotient[-1]
        field = FP32.bias - 1 + one - exponent
        m.d.comb += rounded.eq(quotient[1:-1] + quotient[0])
        with m.If(finish):
            m.d.sync += result.eq(
                Cat(
                    rounded[: FP32.mantissa] & (~one).replicate(FP32.mantissa),
                    field[: FP32.exponent],
                    Const(0, 1),
                )
            )
        return result
