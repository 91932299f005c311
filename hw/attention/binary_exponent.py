"""FP16 scores as exponents of two, for a softmax in powers of two (VEDA, section IV-B)."""

from amaranth.hdl import Cat, Const, Module, Signal, signed

from hw.arith.exp2_fixed import significands
from hw.arith.float_format import FP16
from hw.arith.tables.split_table import fit
from hw.arith.wide_exponent import LOG2_E, POWER, SIGNIFICAND
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out

OCTAVES = signed(18)
"""Shape of an exponent's integer part. FP16's largest number gives -94502."""

FARTHEST = (1 << 17) - 1
"""Octaves of minus infinity, of plus infinity and of NaN: e^x = 2^-131071."""

SHIFT = 6
"""Bits of a shift in octaves. It saturates at 63: 2^-63 is below the last bit of every sum."""


class BinaryExponent(Component[None]):
    """octaves + fraction 2^-12 = -x log2(e), rounded down, so that e^x = 2^-(octaves + fraction).

    log2(e) is 1.2e-6 too small, which scales all differences between scores alike. Infinities and
    NaN give FARTHEST octaves.

    Latency: 2 cycles. Throughput: one number per cycle. There is no handshake.
    """

    def ports(self) -> Ports:
        return {
            "x": wire_in(FP16.width, "FP16."),
            "octaves": wire_out(OCTAVES, "Integer part."),
            "fraction": wire_out(POWER, "Fraction, unsigned."),
        }

    def elaborate(self, platform):
        m = Module()
        mantissa, exponent = self.x[: FP16.mantissa], self.x[FP16.mantissa : -1]
        # Stage 1: significand times log2(e). The hidden bit is set in subnormals too: the result
        # of both is 0 octaves and a fraction that is cut off.
        significand = Cat(mantissa, 1)
        product = Signal(FP16.precision + 20, reset_less=True)
        distance = Signal(FP16.exponent, reset_less=True)  # octaves below the largest exponent
        negated = Signal(reset_less=True)
        not_finite = Signal(reset_less=True)
        m.d.sync += [
            product.eq(significand * LOG2_E),
            distance.eq(~exponent),
            negated.eq(~self.x[-1] & self.x[:-1].any()),
            not_finite.eq(exponent.all()),
        ]
        # Stage 2: align to the point, and negate where x > 0. One's complement of the magnitude
        # is -magnitude - 1 unit: rounded down.
        #
        #   product    | 31 bits              |
        #   >> distance      |  octaves (17)  . fraction (12) | cut off
        magnitude = Signal(OCTAVES.width - 1 + POWER)
        result = Signal(len(magnitude) + 1)
        m.d.comb += magnitude.eq(product[1:] >> distance)
        with m.If(not_finite):
            m.d.comb += result.eq((1 << len(magnitude)) - 1)
        with m.Else():
            m.d.comb += result.eq(Cat(magnitude, Const(0, 1)) ^ negated.replicate(len(result)))
        m.d.sync += Cat(self.fraction, self.octaves).eq(result)
        return m


class Term(Component[None]):
    """2^-(octaves - origin + fraction 2^-12) = digits 2^-(15 + shift): one exponential of a sum.

    Latency: 2 cycles. Throughput: one term per cycle. There is no handshake.
    """

    def ports(self) -> Ports:
        return {
            "octaves": wire_in(OCTAVES, "The score's integer part, and the least one so far."),
            "origin": wire_in(OCTAVES, "`origin` is at most `octaves`."),
            "fraction": wire_in(POWER, "The score's fraction."),
            "digits": wire_out(SIGNIFICAND, "The highest and the lowest bit are one."),
            "shift": wire_out(SHIFT, "``octaves - origin``, at most 63."),
        }

    def elaborate(self, platform):
        m = Module()
        distance = Signal(OCTAVES.width, reset_less=True)
        saturated = Signal()
        m.d.sync += distance.eq(self.octaves - self.origin)
        m.d.comb += saturated.eq(distance[SHIFT:].any())

        def table_registers(**entries):
            """The pipeline stage between the table's two halves and their sum."""
            registers = [
                Signal.like(e, name=f"{n}_entry", reset_less=True) for n, e in entries.items()
            ]
            m.d.sync += [r.eq(e) for r, e in zip(registers, entries.values(), strict=True)]
            return registers

        # 2^-f in units of 2^-(POWER + 2), one unit too small on average: a one is appended. The
        # tables take seconds to fit, so that is done only when a design is elaborated.
        significand = fit(significands(POWER, POWER + 2)).read(m, self.fraction, table_registers)
        m.d.sync += [
            self.digits.eq(Cat(1, significand)),
            self.shift.eq(distance[:SHIFT] | saturated.replicate(SHIFT)),
        ]
        return m
