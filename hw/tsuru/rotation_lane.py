"""An element of a row that is rotated: to an integer before the transform, to FP16 after it."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed

from hw.arith.fixed_to_float import normalise
from hw.arith.float_format import FP16
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out

GUARD = 4
"""Bits of an aligned element below those of the row's largest number."""
ALIGNED = 1 + FP16.precision + GUARD
"""Bits of an aligned element, with its sign."""


class RotationLane(Component[None]):
    """One of the lanes of :class:`hw.tsuru.rotation.Rotation`, which has the equations.

    Latency: `aligned` depends on the inputs of the same cycle, `o` on those of the cycle before.
    Throughput: one element of each kind a cycle.

    ranks
        Ranks of the transform.
    """

    def __init__(self, ranks: int):
        self._sum_bits = ALIGNED + ranks
        super().__init__()

    def ports(self) -> Ports:
        return {
            "x": wire_in(FP16, "An element of a row."),
            "top": wire_in(FP16.exponent, "The row's largest exponent field, at least 1."),
            "sum": wire_in(signed(self._sum_bits), "An element of a rotated row."),
            "highest": wire_in(
                FP16.exponent + 1, "Exponent field of a sum whose highest magnitude bit is one."
            ),
            "stop": wire_in(
                self._sum_bits, "A one where the leading one of FP16's least normal number is."
            ),
            "aligned": wire_out(signed(ALIGNED), "`x` in units of the row."),
            "o": wire_out(FP16, "`sum` rounded to FP16; NaN if `top` is all ones."),
        }

    def elaborate(self, platform):
        m = Module()
        self._align(m)
        self._round(m)
        return m

    def _align(self, m: Module) -> None:
        field = self.x[FP16.mantissa : -1]
        normal = field.any()
        significand = Cat(self.x[: FP16.mantissa], normal)
        distance = Signal(FP16.exponent)
        shifted = Signal(ALIGNED)  # the magnitude, and below it the bit that rounds it
        negative = self.x[-1]
        m.d.comb += [
            distance.eq(self.top - (field | ~normal)),
            shifted.eq(Cat(Const(0, GUARD + 1), significand) >> distance),
            # -(n + r) = ~n + 1 - r, so one carry does for the sign and for rounding. Rounding up
            # never overflows, because only shifted numbers have a bit to round.
            self.aligned.eq(
                Cat(shifted[1:] ^ negative.replicate(ALIGNED - 1), negative)
                + (negative ^ shifted[0])
            ),
        ]

    def _round(self, m: Module) -> None:
        """As :class:`hw.arith.fixed_to_float.FixedToFloat` does, in units that vary."""
        width = self._sum_bits
        negative = self.sum[-1]
        # One's complement instead of a negation; the carry that is missing rounds.
        digits = Cat(negative, self.sum[:-1] ^ negative.replicate(width - 1))
        normal, zeros = normalise(m, digits, negative, self.stop)
        field = Signal(FP16.exponent + 2)
        m.d.comb += field.eq(self.highest - zeros)
        padding = max(FP16.mantissa + 3 - width, 0)
        exact = Cat(negative.replicate(padding), normal[:-1])

        # Registers between normalising and rounding.
        names = ("fraction", "rest", "power", "minus", "large")
        hidden = normal[-1]
        values = (
            exact[-FP16.mantissa :],
            exact[: -FP16.mantissa],
            field[: FP16.exponent] & hidden.replicate(FP16.exponent),
            negative,
            hidden & (field > FP16.largest >> FP16.mantissa),
        )
        fraction, rest, power, minus, large = registers = [
            Signal(len(value), name=name, reset_less=True)
            for name, value in zip(names, values, strict=True)
        ]
        m.d.sync += [register.eq(value) for register, value in zip(registers, values, strict=True)]

        # To nearest even. An endless row of ones follows the digits of a negative sum, so the
        # bits below its guard bit are never all zero.
        up = Signal()
        guard, sticky = rest[-1], rest[:-1]
        if_positive = guard & (sticky.any() | fraction[0])
        if_negative = guard | sticky.all() & fraction[0]
        magnitude = Signal(FP16.width - 1)
        m.d.comb += [
            up.eq(Mux(minus, if_negative, if_positive)),
            magnitude.eq(Cat(fraction, power) + up),
        ]
        nan = self.top.all()
        with m.If(nan):
            m.d.comb += self.o.eq(FP16.quiet_nan)
        with m.Elif(large):
            m.d.comb += self.o.eq(Cat(Const(FP16.infinity, FP16.width - 1), minus))
        with m.Else():
            m.d.comb += self.o.eq(Cat(magnitude, minus))
