"""Factors and products of a PE as an FPGA has them, see :mod:`hw.attention.unpacked_sum`."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.arith.bits.leading_zeros import leading_one, shift_to_top
from hw.arith.bits.one_hot_shift import leading_one_hot, on_multipliers
from hw.arith.datapath import Datapath
from hw.arith.float_format import FP16, FloatFormat
from hw.attention.packed_sum import WideProductParameters
from hw.ports import Ports, wire_in, wire_out

FACTOR = data.StructLayout(
    {"significand": FP16.precision, "exponent": 6, "special": 1, "nan": 1, "sign": 1}
)
"""An FP16 number, significand * 2^(exponent - 41); the top bit is 1 unless it is zero."""

EXPONENT = 7
"""Bits of a sum's exponent."""


def sum_layout(fmt: FloatFormat) -> data.StructLayout:
    """A sum with the precision of `fmt`; ``special`` is infinity, and with ``nan`` NaN."""
    fields = {"significand": fmt.precision, "exponent": EXPONENT}
    return data.StructLayout(fields | {"special": 1, "nan": 1, "sign": 1})


def unpack_factor(m: Module, platform, number: Value, name: str) -> data.View:
    """The FP16 `number` as a FACTOR, subnormals normalised."""
    fraction, field = number[: FP16.mantissa], number[FP16.mantissa : -1]
    factor = Signal(FACTOR, name=f"{name}_unpacked")
    significand = Signal(FP16.precision, name=f"{name}_significand")
    hidden = Signal(name=f"{name}_hidden")
    m.d.comb += [hidden.eq(field.any()), significand.eq(Cat(fraction, hidden))]
    # The exponent is the field plus 16; a subnormal number's, with a field of 0, is 17 less its
    # leading zeros.
    normal_exponent = Cat(field[:-1], ~field[-1], field[-1])
    if on_multipliers(platform):
        zeros = leading_one_hot(m, significand, f"{name}_zeros")
        m.d.comb += factor.significand.eq((significand * zeros)[: FP16.precision])
        constants = Cat(
            Cat(zeros[n] for n in range(1, FP16.precision) if 17 - n >> bit & 1).any()
            for bit in range(len(normal_exponent))
        )
        exponent = normal_exponent & Cat(hidden.replicate(5), 1) | constants
    else:
        # Its place is 15 less them.
        place = leading_one(m, significand, f"{name}_leading")
        m.d.comb += factor.significand.eq(shift_to_top(m, significand, place, f"{name}_normal"))
        low, (middle, high) = place[:1], place[2:]
        next_place = Cat(low, ~place[1], middle ^ place[1], high ^ (middle & place[1]))
        past = high & middle & place[1]
        exponent = Mux(hidden, normal_exponent, Cat(next_place, past))
    m.d.comb += [
        factor.exponent.eq(exponent),
        factor.special.eq(field.all()),
        factor.nan.eq(factor.special & fraction.any()),
        factor.sign.eq(number[-1]),
    ]
    return factor


class UnpackedProduct(Datapath[WideProductParameters]):
    """o = a b of FP16 numbers: exact with FP32's precision, else rounded to nearest even.

    Latency: `stages`, 0 or 1; the register is behind the multiplier.

    ::

        product     | 1 | x … x | x |       2 and more: exponent + 1
                    | 0 | 1 | x … x |       below 2: a zero is appended
    """

    def operation(self) -> Ports:
        p = self.parameters
        layout = sum_layout(p.float_format)
        return {
            "a": wire_in(FACTOR),
            "b": wire_in(FACTOR),
            "o": wire_out(layout),
        }

    def elaborate(self, platform):
        m = Module()
        a, b = self.a, self.b
        product = Signal(2 * FP16.precision)
        m.d.comb += product.eq(a.significand * b.significand)
        special = a.special | b.special
        zero = ~(a.significand[-1] & b.significand[-1])
        product, exponents, special, nan, sign = self.registers(m)(
            "reduced",
            product=product,
            exponents=Cat(a.exponent, b.exponent),
            special=special,
            nan=a.nan | b.nan | special & zero,
            sign=a.sign ^ b.sign,
        )
        two = product[-1]
        normal = Signal.like(product, name="normal")
        exponent = Signal(EXPONENT)
        half = len(exponents) // 2
        m.d.comb += [
            normal.eq(Mux(two, product, product << 1)),
            # A pair of equal bits below the exponents is the carry into their sum.
            exponent.eq((Cat(two, exponents[:half]) + Cat(two, exponents[half:]))[1:]),
        ]
        precision = self.parameters.float_format.precision
        cut = len(normal) - precision
        if cut <= 0:
            m.d.comb += [
                self.o.significand.eq(Cat(Const(0, -cut), normal)),
                self.o.exponent.eq(exponent),
            ]
        else:
            # Rounded as one integer with the exponent; a carry leaves a fraction of zeros.
            up = normal[cut - 1] & (normal[: cut - 1].any() | normal[cut])
            rounded = Signal(precision - 1 + EXPONENT)
            m.d.comb += [
                rounded.eq(Cat(normal[cut:-1], exponent) + up),
                self.o.significand.eq(Cat(rounded[: precision - 1], normal[-1])),
                self.o.exponent.eq(rounded[precision - 1 :]),
            ]
        m.d.comb += [self.o.special.eq(special), self.o.nan.eq(nan), self.o.sign.eq(sign)]
        return m
