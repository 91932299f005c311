"""Factors, products and sums of a PE in standard formats, as a library of cells has them."""

import dataclasses
from typing import Any, ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from hw.arith.bits.partial_products import pack, product_columns, reduce_columns, rows, unpack
from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.fixed_to_float import normalise
from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32, FloatFormat
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.ports import Ports, wire_in, wire_out

ACCUMULATORS = {
    "fp16": FP16,
    "fp20": FloatFormat(exponent=8, mantissa=11),
    "fp22": FloatFormat(exponent=8, mantissa=13),
    "fp24": FloatFormat(exponent=8, mantissa=15),
    "fp32": FP32,
}
"""Formats of sums. Those between FP16 and FP32 are FP32 with a shorter fraction."""


OPERAND = data.StructLayout(
    {
        "significand": FP16.precision,
        "exponent": signed(FP16.exponent + 1),
        "special": 1,
        "sign": 1,
    }
)
"""An unpacked FP16 number, significand * 2^(exponent - 25); the top bit is 1 unless it is zero.

``special``: NaN if the significand has a fraction, infinity if not.
"""


def unpack_fp16(m: Module, number: Value, name: str) -> Any:
    """The FP16 `number` as an OPERAND, subnormals normalised."""
    fraction, field = number[: FP16.mantissa], number[FP16.mantissa : -1]
    hidden = Signal(name=f"{name}_hidden")
    operand = Signal(OPERAND, name=f"{name}_unpacked")
    m.d.comb += hidden.eq(field.any())
    # A subnormal is shifted up until its leading one is at the top. Its field counts as 1.
    normal, zeros = normalise(m, Cat(fraction, hidden), Const(0, 1))
    m.d.comb += [
        operand.significand.eq(normal),
        operand.exponent.eq(Cat(field[0] | ~hidden, field[1:]) - zeros),
        operand.special.eq(field.all()),
        operand.sign.eq(number[-1]),
    ]
    return operand


@dataclasses.dataclass(frozen=True)
class WideProductParameters(DatapathParameters):
    """
    format
        Format of the product: one of :data:`ACCUMULATORS` but ``fp16``.
    stages
        0 or 1: the pipeline register is before the final addition of the partial products.
    """

    CUTS: ClassVar = ((), ("reduced",))

    format: str = "fp32"

    @property
    def float_format(self) -> FloatFormat:
        return ACCUMULATORS[self.format]


class WideProduct(Datapath[WideProductParameters]):
    """o = a b of FP16 numbers: exact in FP32, rounded to nearest even in a shorter format.

    The exact significand has at most 22 bits, and the smallest product, 2^-48, is a normal number
    of all these formats, so neither shifter nor subnormal case is needed.
    """

    def operation(self) -> Ports:
        p = self.parameters
        width = p.float_format.width
        return {
            "a": wire_in(OPERAND),
            "b": wire_in(OPERAND),
            "o": wire_out(width),
        }

    def elaborate(self, platform):
        m = Module()
        a, b = self.a, self.b
        # Booth partial products of the significands, compressed to two addends.
        columns = reduce_columns(m, product_columns(m, platform, a.significand, b.significand), 2)
        # Meanwhile the exponent and the special cases. NaN: an operand is, or infinity times zero.
        lower = Signal(FP32.exponent)
        special = Signal()
        zero = Signal()
        nan = Signal()
        fractions = [x.special & x.significand[:-1].any() for x in (a, b)]
        m.d.comb += [
            # The exponent field if the product of significands is below 2^21.
            lower.eq(a.exponent + b.exponent + (FP32.bias - 30)),
            special.eq(a.special | b.special),
            zero.eq(~a.significand[-1] | ~b.significand[-1]),
            nan.eq(fractions[0] | fractions[1] | special & zero),
        ]
        # The pipeline register, if there is one.
        bits, lower, special, zero, nan, sign = self.registers(m)(
            "reduced",
            columns=pack(columns),
            lower=lower,
            special=special,
            zero=zero,
            nan=nan,
            sign=a.sign ^ b.sign,
        )
        # Add, and normalise by one bit: the product of significands is in [1, 4).
        #   2 and more   | 1 | fraction (21)        |   field = lower + 1
        #   below 2      | 0 | 1 | fraction (20)    |   field = lower; a 0 is appended
        addends = rows(unpack(columns, bits))
        product = Signal(2 * FP16.precision)
        upper = Signal(FP32.exponent)
        field = Signal(FP32.exponent)
        fraction = Signal(len(product) - 1)
        m.d.comb += [
            product.eq(addends[0] + addends[1]),
            upper.eq(lower + 1),
            field.eq(Mux(product[-1], upper, lower)),
            fraction.eq(Mux(product[-1], product[:-1], Cat(0, product[:-2]))),
        ]
        # Zero: all 0. Infinity: field all ones, fraction 0. NaN: the fraction's top bit set too.
        kept = fraction & (~special).replicate(len(fraction))
        exponent = field & (~zero).replicate(len(field)) | special.replicate(len(field))
        # FP32 appends zeros; a shorter format rounds, to nearest even.
        #   | field (8) | kept: mantissa | guard | sticky |
        mantissa = self.parameters.float_format.mantissa
        cut = len(fraction) - mantissa
        if cut <= 0:
            magnitude = Cat(Const(0, -cut), kept[:-1], kept[-1] | nan, exponent)
        else:
            # The carry of the fraction goes into the exponent field. It cannot reach infinity.
            up = kept[cut - 1] & (kept[: cut - 1].any() | kept[cut])
            magnitude = (Cat(kept[cut:-1], kept[-1] | nan, exponent) + up)[: mantissa + len(field)]
        m.d.comb += self.o.eq(Cat(magnitude, sign & ~nan))
        return m


class RoundedProductParameters(FloatMultiplyParameters):
    """Without a register at the output: the PE has one."""

    CUTS: ClassVar = ((), ("product",))


class LoopAddParameters(FloatAddParameters):
    """Of any format in :data:`ACCUMULATORS`, without a register at the output: the PE has one at
    the inputs."""

    CUTS: ClassVar = ((), ("sum",), ("align", "sum"), ("swap", "align", "sum"))

    def __post_init__(self):
        DatapathParameters.__post_init__(self)

    @property
    def float_format(self) -> FloatFormat:
        return ACCUMULATORS[self.format]


@dataclasses.dataclass(frozen=True)
class PackedSums:
    """What a PE is made of, for sums in the standard format `accumulator`.

    The other parameters are as in :class:`hw.attention.pe.PeParameters`.
    """

    accumulator: str
    multiply_stages: int
    add_stages: int

    @property
    def float_format(self) -> FloatFormat:
        return ACCUMULATORS[self.accumulator]

    @property
    def wide(self) -> bool:
        """Whether sums have more bits than FP16."""
        return self.accumulator != "fp16"

    @property
    def factor(self):
        """Shape of a factor: unpacked for :class:`WideProduct`, else FP16."""
        return OPERAND if self.wide else FP16.width

    @property
    def width(self) -> int:
        return self.float_format.width

    @property
    def negative_zero(self) -> Const:
        """-0, the neutral element of addition: x + -0 = x for every x, +0 and -0 included."""
        return Const(1 << (self.width - 1), self.width)

    def unpack(self, m: Module, platform, number: Value, name: str) -> Any:
        """The FP16 `number` as a factor."""
        return unpack_fp16(m, number, name) if self.wide else number

    def multiplier(self) -> Datapath:
        """Product ``o`` of the factors ``a`` and ``b``."""
        stages = self.multiply_stages - 1
        if self.wide:
            return WideProduct(WideProductParameters(format=self.accumulator, stages=stages))
        return FloatMultiply(RoundedProductParameters(stages=stages))

    def adder(self) -> Datapath:
        """Sum ``o`` of ``a`` and ``b``."""
        # Wide products are multiples of 2^-48, and so are their sums: none is subnormal.
        stages = self.add_stages - 1
        return FloatAdd(LoopAddParameters(self.accumulator, self.wide, stages=stages))

    def to_fp16(self, m: Module, platform, total: Value) -> Value:
        """A sum rounded to FP16. A short format is FP32 with zeros appended."""
        if not self.wide:
            return total
        m.submodules.convert = convert = FloatConvert(FloatConvertParameters())
        m.d.comb += convert.a.eq(Cat(Const(0, FP32.width - self.width), total))
        return convert.o

    def finite(self, total: Value) -> Value:
        return ~total[self.float_format.mantissa : -1].all()
