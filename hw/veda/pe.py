"""Processing elements: a multiplier, one adder and a register (VEDA, Fig. 5(a))."""

import dataclasses
import enum
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.fixed_to_float import normalise
from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32, FloatFormat
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.arith.partial_products import booth_columns, pack, reduce_columns, rows, unpack
from hw.component import Component
from hw.parameters import Parameters, require

ADD_STAGES = (1, 2, 4)

SUMS = {
    "fp16": FP16,
    "fp20": FloatFormat(exponent=8, mantissa=11),
    "fp22": FloatFormat(exponent=8, mantissa=13),
    "fp24": FloatFormat(exponent=8, mantissa=15),
    "fp32": FP32,
}
"""Formats of sums. Those between FP16 and FP32 are FP32 with a shorter fraction."""


class Op(enum.IntEnum):
    """What a PE's adder begins.

    PASS adds up what PEs pass on to each other, CLEAR begins a sum of the PE's own products,
    ACCUMULATE adds the next one, FOLD adds up the partial sums in the adder's pipeline. These are
    the paper's but for FOLD, which it does not need with its adders of one cycle; it counts
    "disable" as another, which here is an adder that does not advance.
    """

    PASS = 0
    CLEAR = 1
    ACCUMULATE = 2
    FOLD = 3


OPERAND = data.StructLayout(
    {
        "significand": FP16.precision,
        "exponent": signed(FP16.exponent + 1),
        "special": 1,
        "sign": 1,
    }
)
"""An FP16 number significand * 2^(exponent - 25), its highest bit one unless it is zero.

With `special` it is NaN if it has a fraction, infinite if not.
"""


def unpack_fp16(m: Module, number: Value, name: str) -> data.View:
    """`number` with its subnormals normalised."""
    fraction, field = number[: FP16.mantissa], number[FP16.mantissa : -1]
    hidden = Signal(name=f"{name}_hidden")
    operand = Signal(OPERAND, name=f"{name}_unpacked")
    m.d.comb += hidden.eq(field.any())
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
        Of the product, one of :data:`SUMS` but ``fp16``.
    stages
        0 or 1: the pipeline register is in front of the last addition.
    """

    CUTS: ClassVar = ((), ("reduced",))

    format: str = "fp32"

    @property
    def float_format(self) -> FloatFormat:
        return SUMS[self.format]


class WideProduct(Datapath):
    """o = a b of FP16 numbers: exact in FP32, rounded to nearest even in a shorter format.

    The exact significand has at most 22 bits, and the smallest product, 2^-48, is a normal number.

    Members
    -------
    a, b : :py:`In(OPERAND)`
    o : :py:`Out(format.width)`
    """

    def __init__(self, parameters: WideProductParameters):
        width = parameters.float_format.width
        super().__init__(parameters, {"a": OPERAND, "b": OPERAND}, {"o": width})

    def elaborate(self, platform):
        m = Module()
        a, b = self.a, self.b
        columns = reduce_columns(m, booth_columns(m, a.significand, b.significand), 2)
        lower = Signal(FP32.exponent)
        special = Signal()
        zero = Signal()
        nan = Signal()
        nothing = ~a.significand[-1] | ~b.significand[-1]
        fractions = [x.special & x.significand[:-1].any() for x in (a, b)]
        m.d.comb += [
            # The field where the product of significands is below 2^21.
            lower.eq(a.exponent + b.exponent + (FP32.bias - 30)),
            special.eq(a.special | b.special),
            zero.eq(nothing),
            nan.eq(fractions[0] | fractions[1] | special & zero),
        ]
        bits, lower, special, zero, nan, sign = self.registers(m)(
            "reduced",
            columns=pack(columns),
            lower=lower,
            special=special,
            zero=zero,
            nan=nan,
            sign=a.sign ^ b.sign,
        )
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
        kept = fraction & (~special).replicate(len(fraction))
        exponent = field & (~zero).replicate(len(field)) | special.replicate(len(field))
        mantissa = self.parameters.float_format.mantissa
        cut = len(fraction) - mantissa
        if cut <= 0:
            magnitude = Cat(Const(0, -cut), kept[:-1], kept[-1] | nan, exponent)
        else:
            # Fraction and exponent are rounded as one integer, which never overflows.
            up = kept[cut - 1] & (kept[: cut - 1].any() | kept[cut])
            magnitude = (Cat(kept[cut:-1], kept[-1] | nan, exponent) + up)[: mantissa + len(field)]
        m.d.comb += self.o.eq(Cat(magnitude, sign & ~nan))
        return m


class RoundedProductParameters(FloatMultiplyParameters):
    """Without a rank at the output, where the PE has one."""

    CUTS: ClassVar = ((), ("product",))


class LoopAddParameters(FloatAddParameters):
    """Of any format in :data:`SUMS`, without a register at the output: the PE has its own at the
    inputs."""

    CUTS: ClassVar = ((), ("sum",), ("align", "sum"), ("swap", "align", "sum"))

    def __post_init__(self):
        DatapathParameters.__post_init__(self)

    @property
    def float_format(self) -> FloatFormat:
        return SUMS[self.format]


@dataclasses.dataclass(frozen=True)
class PeParameters(Parameters):
    """
    accumulator
        Format of sums, one of :data:`SUMS`: ``fp32``, in which products of FP16 numbers are exact,
        or a shorter one, to which they are rounded.
    multiply_stages
        Pipeline stages from the operands to the product's register, that one included: 1 or 2.
    add_stages
        L: cycles that an addition takes, 1, 2 or 4.
    """

    accumulator: str = "fp32"
    multiply_stages: int = 1
    add_stages: int = 2

    def __post_init__(self):
        rule = f"accumulator must be one of {', '.join(SUMS)}"
        require(self.accumulator in SUMS, rule, self.accumulator)
        stages = self.multiply_stages
        require(1 <= stages <= 2, "multiply_stages must be between 1 and 2", stages)
        stages = self.add_stages
        require(stages in ADD_STAGES, "add_stages must be one of 1, 2, 4", stages)

    @property
    def wide(self) -> bool:
        """Whether sums have more bits than FP16."""
        return self.accumulator != "fp16"

    @property
    def float_format(self) -> FloatFormat:
        return SUMS[self.accumulator]

    @property
    def operand(self):
        """Shape of a factor: normalised for :class:`WideProduct`."""
        return OPERAND if self.wide else FP16.width

    @property
    def negative_zero(self) -> Const:
        """What changes no number it is added to."""
        width = self.float_format.width
        return Const(1 << (width - 1), width)


class Pe(Component):
    """Base of both types of PE; see :class:`PeA` and :class:`PeB`.

    ::

        row ──→ w ─┐
         └─┐       × ─→ product ─┬─→ a ─┐
        x ─┴─→ x ─┘    others ───┤      + ─┬─→ total ─→ result, rounded
                                 └─→ b ─┘  │
                          └──── r ←────────┘

    Two ranks of registers hold factors, ``w`` and ``x``, and addends, ``a`` and ``b``. The adder
    takes the sum where the next addition begins, so an addition's L ranks are the addends' and the
    L - 1 inside of the adder. There is no control in here: ranks are told when to take what.

    In the inner product, PASS puts products or sums of other PEs beside the own product (type A) or
    in its place (type B). In the outer product, CLEAR and ACCUMULATE add up the PE's own products;
    the adder's pipeline then holds L partial sums and moves only when a product comes, so product
    j is added to partial sum j mod L whenever it comes. FOLD adds to what leaves the adder what
    ``r`` has kept before, or -0, which changes no number.

    A factor's subnormals are normalised in front of its rank, so that products need no shifter.

    Members
    -------
    row : :py:`In(16)`
        FP16 element of a row, or of the query.
    x : :py:`In(operand)`
        Scalar of an outer product, unpacked for a wide product.
    take, load, spread : :py:`In(1)`
        ``w`` takes the row, ``x`` takes the row as well, ``x`` takes the scalar.
    move : :py:`In(1)`
        The multiplier's ranks advance, with two stages.
    op : :py:`In(2)`
        :class:`Op`.
    advance : :py:`In(1)`
        The adder's ranks advance, the addends with them.
    keep, hold : :py:`In(1)`
        ``r`` takes the sum; else it stays as it is, or becomes -0.
    finish : :py:`In(1)`
        The result takes ``r`` as FP16.
    product, total : :py:`Out(accumulator)`
        For other PEs, without registers.
    result : :py:`Out(16)`
    """

    PASSED: ClassVar[tuple[str, str]]
    """What PASS adds: the own product, or ports for products and sums of other PEs."""

    def __init__(self, parameters: PeParameters):
        self._parameters = p = parameters
        width = p.float_format.width
        controls = ("take", "load", "spread", "move", "advance", "keep", "hold", "finish")
        super().__init__(
            {"row": In(FP16.width), "x": In(p.operand), "op": In(2)}
            | {name: In(1) for name in controls}
            | {name: In(width) for name in self.PASSED if name != "product"}
            | {"product": Out(width), "total": Out(width), "result": Out(FP16.width)}
        )

    @property
    def parameters(self) -> PeParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        width = p.float_format.width
        w = Signal(p.operand, reset_less=True)
        x = Signal(p.operand, name="x_taken", reset_less=True)
        row = unpack_fp16(m, self.row, "row") if p.wide else self.row
        with m.If(self.take):
            m.d.sync += w.eq(row)
        with m.If(self.load):
            m.d.sync += x.eq(row)
        with m.Elif(self.spread):
            m.d.sync += x.eq(self.x)

        if p.wide:
            multiply = WideProduct(
                WideProductParameters(format=p.accumulator, stages=p.multiply_stages - 1)
            )
        else:
            multiply = FloatMultiply(RoundedProductParameters(stages=p.multiply_stages - 1))
        m.submodules.multiply = multiply
        m.d.comb += [multiply.a.eq(w), multiply.b.eq(x), self.product.eq(multiply.o)]

        # Wide products are multiples of 2^-48, and so are their sums: none is subnormal.
        options = {"format": p.accumulator, "flush_subnormals": p.wide}
        m.submodules.add = add = FloatAdd(LoopAddParameters(**options, stages=p.add_stages - 1))
        addend_a = Signal(width, reset_less=True)
        addend_b = Signal(width, reset_less=True)
        r = Signal(width, reset_less=True)
        passed = [getattr(self, name) for name in self.PASSED]
        with m.If(self.advance):
            with m.Switch(self.op):
                with m.Case(Op.PASS):
                    m.d.sync += [addend_a.eq(passed[0]), addend_b.eq(passed[1])]
                with m.Case(Op.CLEAR):
                    m.d.sync += [addend_a.eq(self.product), addend_b.eq(p.negative_zero)]
                with m.Case(Op.ACCUMULATE):
                    m.d.sync += [addend_a.eq(self.product), addend_b.eq(add.o)]
                with m.Case(Op.FOLD):
                    m.d.sync += [addend_a.eq(r), addend_b.eq(add.o)]
        with m.If(self.keep):
            m.d.sync += r.eq(add.o)
        with m.Elif(~self.hold):
            m.d.sync += r.eq(p.negative_zero)
        m.d.comb += [add.a.eq(addend_a), add.b.eq(addend_b), self.total.eq(add.o)]
        if p.multiply_stages > 1:
            m.d.comb += multiply.enable.eq(self.move)
        if p.add_stages > 1:
            m.d.comb += add.enable.eq(self.advance)

        result = Signal(FP16.width, reset_less=True)
        rounded = r
        if p.wide:
            m.submodules.convert = convert = FloatConvert(FloatConvertParameters())
            m.d.comb += convert.a.eq(Cat(Const(0, FP32.width - width), r))
            rounded = convert.o
        with m.If(self.finish):
            m.d.sync += result.eq(rounded)
        m.d.comb += self.result.eq(result)
        return m


class PeA(Pe):
    """Adds its own product and its neighbour's.

    Members
    -------
    neighbour : :py:`In(accumulator)`
        And those of :class:`Pe`.
    """

    PASSED = ("product", "neighbour")


class PeB(Pe):
    """Adds the sums of two other PEs.

    Members
    -------
    left, right : :py:`In(accumulator)`
        And those of :class:`Pe`.
    """

    PASSED = ("left", "right")
