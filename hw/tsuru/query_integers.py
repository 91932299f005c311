"""Queries as integers of few bits with a common exponent, for products with search codes."""

from functools import reduce

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out

FIELD = FP16.exponent
CYCLES = 2
"""Cycles from a query to its integers."""


class QueryIntegers(Component[None]):
    """Elements of a query in units of a power of two that its largest element's exponent sets.

    An element is rounded to the nearest, halves away from zero, and saturates at the largest
    integer. Infinities and NaN count as if their exponent were one more than the largest.

    Latency: 2 cycles. Throughput: a query a cycle. There is no handshake.

    Parameters
    ----------
    d, bits : int
        Number of elements, and bits of an integer with its sign, 3 to 11.
    """

    def __init__(self, d: int, bits: int):
        self._d, self._bits = d, bits
        super().__init__()

    def ports(self) -> Ports:
        return {
            "q": wire_in(data.ArrayLayout(FP16, self._d), "The query."),
            "integers": wire_out(
                data.ArrayLayout(signed(self._bits), self._d), "Its elements, of either sign."
            ),
            "top": wire_out(FIELD, "Highest exponent field, 1 for subnormals."),
        }

    def elaborate(self, platform):
        m = Module()
        fields = [element[FP16.mantissa : -1] for element in self.q]
        # A subnormal's field counts as 1, so its significand has the same weight.
        counted = [Cat(field[0] | ~field.any(), field[1:]) for field in fields]

        def larger(a, b):
            result = Signal(FIELD, name="larger")
            m.d.comb += result.eq(Mux(a > b, a, b))
            return result

        level = counted
        while len(level) > 1:
            level = [reduce(larger, level[n : n + 2]) for n in range(0, len(level), 2)]
        row = Signal.like(self.q, reset_less=True)
        top = Signal(FIELD, reset_less=True)
        m.d.sync += [row.eq(self.q), top.eq(level[0])]
        # | significand (11) | >> distance, and to `bits` - 1 bits and one below them
        most = (1 << self._bits - 1) - 1
        for element, integer in zip(row, self.integers, strict=True):
            field = element[FP16.mantissa : -1]
            hidden = field.any()
            significand = Cat(element[: FP16.mantissa], hidden)
            distance = (top - Cat(field[0] | ~hidden, field[1:]))[:FIELD]
            half = Signal(self._bits, name="half")
            rounded = Signal(self._bits, name="rounded")
            size = Signal(self._bits - 1, name="size")
            m.d.comb += [
                half.eq(significand[FP16.precision - self._bits :] >> distance),
                rounded.eq((half + 1) >> 1),
                # Half of all ones rounds up to one more than fits.
                size.eq(Mux(rounded > most, most, rounded)),
            ]
            m.d.sync += integer.eq(Mux(element[-1], -size, size))
        m.d.sync += self.top.eq(top)
        return m
