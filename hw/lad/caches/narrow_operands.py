"""Operands of AC in FP16: FP32 caches and sums divided by powers of two (LAD, Algorithm 2)."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data

from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.arith.reciprocal import Reciprocal, ReciprocalParameters
from hw.component import Component
from hw.lad.powers import (
    HALF,
    POWER_BITS,
    SHIFT,
    exponent_of,
    least,
    narrow_numbers,
    power_of,
    significand_of,
    times_power,
)
from hw.lad.tile_parameters import LadTileParameters
from hw.lad.tile_sizes import LANES
from hw.ports import Ports, wire_in, wire_out

RECIPROCAL_STAGES = 2
"""Pipeline stages of the reciprocal."""


class NarrowOperands(Component[LadTileParameters]):
    """A vector for each lane and a scalar, to be multiplied in FP16.

    ::

        bases ─→ / 2^p ─→ vectors        `divides`, lane 0:  total   ─→ / 2^e       ─→ vectors[0]
        E     ─→ / 2^p ─→ e                                  total_s ─→ significand ─→ reciprocal

    2^p is the product of the powers of two at or below F and the magnitude of m, 2^31 at most; e is
    the exponent of total_s, whose significand is 0.5 to 1.

    Latency: 0 cycles to the vectors, 1 to e, RECIPROCAL_STAGES from total_s to its reciprocal.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "bases": wire_in(data.ArrayLayout(p.wide_row_layout, LANES), "Columns or vectors."),
            "scalars": wire_in(data.ArrayLayout(FP32, 2), "E, F."),
            "maximum": wire_in(FP16, "m of the head."),
            "scale": wire_in(1, "Take p from F and m, in the next cycle and until `normalise`."),
            "divides": wire_in(1, "Numerator and denominator take the place of lane 0's base."),
            "total": wire_in(p.wide_row_layout, "Numerator."),
            "total_s": wire_in(FP32, "Denominator."),
            "normalise": wire_in(1, "Take e from `total_s` as the power, likewise."),
            "power": wire_out(POWER_BITS, "p."),
            "vectors": wire_out(data.ArrayLayout(p.row_layout, LANES)),
            "e": wire_out(FP16, "E in the cycle before, divided by 2^p."),
            "reciprocal": wire_out(FP16),
            "bad": wire_out(1, "With `divides`: the denominator is not a number above 0."),
        }

    def elaborate(self, platform):
        m = Module()
        # Divided by 2^power: the caches' sums, and in lane 0 later the numerator.
        power = Signal(SHIFT, reset_less=True)
        of_sums = power[:POWER_BITS]
        # F bounds the other sums, as no intercept is below its slope, and m the products with B and
        # E: dividing by both keeps operands and products inside FP16 (65504).
        with m.If(self.scale):
            m.d.sync += power.eq(least(power_of(self.scalars[1]) + power_of(self.maximum, FP16)))
        # From here on the caches are not multiplied in this head: the register is free for the
        # quotient.
        with m.If(self.normalise):
            m.d.sync += power.eq(exponent_of(self.total_s) - HALF)
        # Converters are shared: lane 0's narrows a column, B or the numerator, whichever the state
        # needs.
        wide = [Signal.like(base) for base in self.bases]
        m.d.comb += wide[0].eq(Mux(self.divides, self.total.as_value(), self.bases[0].as_value()))
        for lane in range(1, LANES):
            m.d.comb += wide[lane].eq(self.bases[lane])
        m.d.comb += self.power.eq(of_sums)
        for lane, (vector, numbers) in enumerate(zip(self.vectors, wide, strict=True)):
            power_of_lane = of_sums if lane else power
            m.d.comb += vector.eq(narrow_numbers(m, f"lane_{lane}", numbers, power_of_lane))
        # The scalar: E, or the denominator, whose reciprocal follows.
        m.submodules.narrow_scalar = scalar = FloatConvert(FloatConvertParameters())
        # Not by the name of the port, which would get a number in the Verilog.
        m.submodules.denominator = reciprocal = Reciprocal(
            ReciprocalParameters(stages=RECIPROCAL_STAGES)
        )
        # den becomes 0.5 to 1, which fits FP16 however many positions it sums; the same power of
        # two is taken from the numerator, so the quotient is unchanged.
        scaled = times_power(m, "e", self.scalars[0], -of_sums)
        narrow = Signal(FP16)
        magnitude = narrow[:-1]  # a significand: zero, infinite or NaN like the denominator
        m.d.comb += [
            scalar.a.eq(Mux(self.divides, significand_of(self.total_s), scaled)),
            narrow.eq(scalar.o),
            reciprocal.x.eq(narrow),
            self.reciprocal.eq(reciprocal.o),
            self.bad.eq(narrow[-1] | (magnitude == 0) | (magnitude >= FP16.infinity)),
        ]
        # E is there when its product with m begins.
        e = Signal(FP16, reset_less=True)
        m.d.sync += e.eq(narrow)
        m.d.comb += self.e.eq(e)
        return m
