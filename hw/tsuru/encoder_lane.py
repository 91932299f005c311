"""An element of a row that is encoded: its square, and then its codes."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed

from hw.arith.float_format import FP16
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out
from hw.tsuru.row_format import SCALE_BITS, SCALE_FRACTION

TERM_BITS = 2 * FP16.precision + 2 * (FP16.largest >> FP16.mantissa) - 2
"""A square of an FP16 number, in units of 2^-48: 80 bits."""
RECIPROCAL_BITS = 15
"""A product by 2^15 / n, rounded up, has above these bits the integer bits of a quotient by n."""
RECIPROCALS = [-(-(1 << RECIPROCAL_BITS) // n) for n in range(8, 16)]
"""By a scale's fraction."""
# It is exact: what rounding up adds to the quotient is less than 1 / n, for numbers below 2^12.
assert all((r * n - (1 << RECIPROCAL_BITS)) << 12 < 1 << RECIPROCAL_BITS
           for n, r in enumerate(RECIPROCALS, 8))  # fmt: skip


class EncoderLane(Component[None]):
    """One of the lanes of :class:`hw.tsuru.row_encoder.RowEncoder`, which has the equations.

    Latency: two cycles to `term`, one to `code`. Throughput: an element a cycle; one multiplier
    serves squares and quotients.

    fraction
        Fraction bits m of the fine code.
    """

    def __init__(self, fraction: int):
        self._fraction = fraction
        super().__init__()

    def ports(self) -> Ports:
        return {
            "x": wire_in(FP16, "An element of a row."),
            "square": wire_in(1, "Multiply it by itself, else by `reciprocal`."),
            "reciprocal": wire_in(RECIPROCALS[0].bit_length(), "One of RECIPROCALS."),
            "scale": wire_in(SCALE_BITS, "The row's."),
            "present": wire_in(1, "The row has a scale; else its codes are 0 but for signs."),
            "special": wire_out(1, "`x` is not finite."),
            "term": wire_out(TERM_BITS, "The square, in units of 2^-48."),
            "code": wire_out(
                self._fraction + 4, "Fine code, and above it whether the search code is large."
            ),
        }

    def elaborate(self, platform):
        m = Module()
        field = self.x[FP16.mantissa : -1]
        normal = field.any()
        significand = Signal(FP16.precision)
        factor = Signal.like(self.reciprocal)
        m.d.comb += [
            self.special.eq(field.all()),
            significand.eq(Cat(self.x[: FP16.mantissa], normal)),
            factor.eq(Mux(self.square, significand, self.reciprocal)),
        ]
        product = Signal(len(significand) + len(factor), reset_less=True)
        power = Signal(FP16.exponent, reset_less=True)
        negative = Signal(reset_less=True)
        m.d.sync += [
            product.eq(significand * factor),
            power.eq(field | ~normal),
            negative.eq(self.x[-1]),
        ]

        # A square is 2 power - 2 bits above the least one. All of them fit, so sums are exact.
        above = Signal(FP16.exponent)
        m.d.comb += above.eq(power - 1)
        m.d.sync += self.term.eq(product[: 2 * FP16.precision] << Cat(Const(0, 1), above))
        size, large = self._level(m, product, power)
        m.d.comb += self.code.eq(
            Cat(size & self.present.replicate(len(size)), negative, large & self.present)
        )
        return m

    def _level(self, m: Module, product: Signal, power: Signal) -> tuple[Signal, Signal]:
        """The nearest level's code without its sign, and whether the quotient is at least 1.

        ``halves`` is the quotient in halves of the distance of the least levels, rounded down::

            quotient      code                 rounded by
            | 0 0 0 x x … | h |                h       less than 1: e is 0 or 1
            | 0 0 1 x …   | h l |              h       e = 2
            | 0 1 x …     | h l l |            h       e = 3
            | 1 …                              largest
        """
        fraction = self._fraction
        # | integer bits | fraction bits, which no level needs |; less than 2^8, or 2^9 if m is
        # 6, where a level needs a bit more.
        more = max(fraction - 5, 0)
        quotient = product[RECIPROCAL_BITS - more : RECIPROCAL_BITS + 8]
        left = fraction - 3 - more
        placed = Cat(Const(0, left), quotient) if left > 0 else quotient[-left:]
        assert len(placed) == fraction + 5

        distance = Signal(signed(FP16.exponent + 2))
        halves = Signal(fraction + 5)
        large = Signal()
        most = Signal()
        m.d.comb += [
            distance.eq(self.scale[SCALE_FRACTION:] + 2 - power),
            halves.eq(placed >> distance[: FP16.exponent]),
            most.eq((distance < 0) | halves[fraction + 4]),
            large.eq(most | halves[fraction + 2 : fraction + 4].any()),
        ]
        code = Signal(fraction + 2)
        up = Signal()
        with m.If(halves[fraction + 3]):
            m.d.comb += [code.eq(Cat(halves[3 : fraction + 3], Const(3, 2))), up.eq(halves[2])]
        with m.Elif(halves[fraction + 2]):
            m.d.comb += [code.eq(Cat(halves[2 : fraction + 2], Const(2, 2))), up.eq(halves[1])]
        with m.Else():
            m.d.comb += [code.eq(halves[1 : fraction + 2]), up.eq(halves[0])]
        # A carry into e is right: the next level is the least one of the next e.
        rounded = Signal(fraction + 3)
        size = Signal(fraction + 2)
        m.d.comb += [
            rounded.eq(code + up),
            size.eq(Mux(most | rounded[-1], (1 << fraction + 2) - 1, rounded)),
        ]
        return size, large
