"""Processing elements (PEs): a multiplier, one adder and a register (VEDA, Fig. 5(a))."""

import dataclasses
from typing import Any, ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, enum
from amaranth.lib.wiring import In, Out

from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.fixed_to_float import normalise
from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32, FloatFormat
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.arith.partial_products import pack, product_columns, reduce_columns, rows, unpack
from hw.component import Component
from hw.parameters import Parameters, require

ADD_STAGES = (1, 2, 4)

ACCUMULATORS = {
    "fp16": FP16,
    "fp20": FloatFormat(exponent=8, mantissa=11),
    "fp22": FloatFormat(exponent=8, mantissa=13),
    "fp24": FloatFormat(exponent=8, mantissa=15),
    "fp32": FP32,
}
"""Formats of sums. Those between FP16 and FP32 are FP32 with a shorter fraction."""


class Op(enum.IntEnum, shape=2):
    """The addition that a PE's adder starts.

    ========== ============================= ==================================================
    PASS       products or sums of other PEs a level of the tree
    CLEAR      own product + -0              first row of a partial sum
    ACCUMULATE own product + adder's output  next row
    FOLD       ``r`` + adder's output        adds up the partial sums in the adder's pipeline
    ========== ============================= ==================================================

    FOLD is not in the paper, whose adders take one cycle. The paper's "disable" is `add_enable` = 0
    here.
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
"""An unpacked FP16 number, significand * 2^(exponent - 25); the top bit is 1 unless it is zero.

``special``: NaN if the significand has a fraction, infinity if not.
"""


def unpack_fp16(m: Module, number: Value, name: str) -> Any:
    """The FP16 `number` as an OPERAND, subnormals normalised."""
    fraction, field = number[: FP16.mantissa], number[FP16.mantissa : -1]
    hidden = Signal(name=f"{name}_hidden")
    operand: Any = Signal(OPERAND, name=f"{name}_unpacked")
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
        Of the product: one of :data:`ACCUMULATORS` but ``fp16``.
    stages
        0 or 1: the pipeline register lies before the final addition of the partial products.
    """

    CUTS: ClassVar = ((), ("reduced",))

    format: str = "fp32"

    @property
    def float_format(self) -> FloatFormat:
        return ACCUMULATORS[self.format]


class WideProduct(Datapath):
    """o = a b of FP16 numbers: exact in FP32, rounded to nearest even in a shorter format.

    The exact significand has at most 22 bits, and the smallest product, 2^-48, is a normal number
    of all these formats, so neither shifter nor subnormal case is needed.

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
class PeParameters(Parameters):
    """
    accumulator
        Format of sums, one of :data:`ACCUMULATORS`: ``fp32``, in which products of FP16 numbers are
        exact, or a shorter one, to which they are rounded.
    multiply_stages
        Pipeline stages from the operands to the adder's input register: 1 or 2.
    add_stages
        L: cycles of an addition, 1, 2 or 4.
    """

    accumulator: str = "fp32"
    multiply_stages: int = 1
    add_stages: int = 2

    def __post_init__(self):
        rule = f"accumulator must be one of {', '.join(ACCUMULATORS)}"
        require(self.accumulator in ACCUMULATORS, rule, self.accumulator)
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
        return ACCUMULATORS[self.accumulator]

    @property
    def operand(self):
        """Shape of a factor: unpacked for :class:`WideProduct`, else FP16."""
        return OPERAND if self.wide else FP16.width

    @property
    def negative_zero(self) -> Const:
        """-0, the neutral element of addition: x + -0 = x for every x, +0 and -0 included."""
        width = self.float_format.width
        return Const(1 << (width - 1), width)


class Pe(Component):
    """Base of both types of PE; see :class:`PeA` and :class:`PeB`.

    ::

        row ──→ w ─┐
         └─┐       × ─→ product ─┬─→ a ─┐
        x ─┴─→ x ─┘   other PEs ─┤      + ─┬─→ total ─→ r ─→ FP16 ─→ result
                                 └─→ b ─┘  │
                          └──── r ←────────┘

    ``w`` and ``x`` are registers of the factors, ``a`` and ``b`` of the addends. The adder has no
    output register: its sum goes into the addends' registers of the next addition, so the L stages
    of an addition are the addends' and L - 1 inside of the adder. The PE has no control logic; the
    array drives all enables.

    Inner product: PASS adds other PEs' products or sums to the own product (type A) or to each
    other (type B). Outer product: CLEAR and ACCUMULATE add up the PE's own products; the adder's
    pipeline then holds L partial sums and advances only when a product arrives, so product j is
    added to partial sum j mod L however late it comes. With L = 2::

        cycle      0      1      2      3      4
        a          p0     p1     p2     p3     p4
        b          -0     -0     p0     p1     p0+p2
        total             p0     p1     p0+p2  p1+p3

    FOLD adds ``r``, a partial sum captured before or -0, to the one that leaves the adder.

    Subnormal factors are normalised before their register, so products need no shifter.

    Members
    -------
    row : :py:`In(16)`
        FP16 element of a row, or of the query.
    x : :py:`In(operand)`
        Scalar of an outer product, unpacked for a wide product.
    load_w, load_query, load_scalar : :py:`In(1)`
        ``w`` takes `row`; ``x`` takes `row`; ``x`` takes `x`.
    multiply_enable : :py:`In(1)`
        The multiplier's pipeline advances, if it has two stages.
    op : :py:`In(2)`
        :class:`Op`.
    add_enable : :py:`In(1)`
        The adder's pipeline advances, the addends' registers included.
    capture, hold : :py:`In(1)`
        ``r`` takes the adder's sum; else with `hold` it stays, and without it becomes -0.
    finish : :py:`In(1)`
        `result` takes ``r``, rounded to FP16.
    product, total : :py:`Out(accumulator)`
        For other PEs, combinational.
    result : :py:`Out(16)`
    """

    PASS_ADDENDS: ClassVar[tuple[str, str]]
    """Addends of PASS: the own ``product``, or ports for products and sums of other PEs."""

    def __init__(self, parameters: PeParameters):
        self._parameters = p = parameters
        width = p.float_format.width
        controls = (
            "load_w",
            "load_query",
            "load_scalar",
            "multiply_enable",
            "add_enable",
            "capture",
            "hold",
            "finish",
        )
        super().__init__(
            {"row": In(FP16.width), "x": In(p.operand), "op": In(Op)}
            | {name: In(1) for name in controls}
            | {name: In(width) for name in self.PASS_ADDENDS if name != "product"}
            | {"product": Out(width), "total": Out(width), "result": Out(FP16.width)}
        )

    @property
    def parameters(self) -> PeParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        width = p.float_format.width

        # Registers of the factors.
        w = Signal(p.operand, reset_less=True)
        x = Signal(p.operand, name="x_register", reset_less=True)
        row = unpack_fp16(m, self.row, "row") if p.wide else self.row
        with m.If(self.load_w):
            m.d.sync += w.eq(row)
        with m.If(self.load_query):
            m.d.sync += x.eq(row)
        with m.Elif(self.load_scalar):
            m.d.sync += x.eq(self.x)

        if p.wide:
            multiply = WideProduct(
                WideProductParameters(format=p.accumulator, stages=p.multiply_stages - 1)
            )
        else:
            multiply = FloatMultiply(RoundedProductParameters(stages=p.multiply_stages - 1))
        m.submodules.multiply = multiply
        m.d.comb += [multiply.a.eq(w), multiply.b.eq(x), self.product.eq(multiply.o)]

        # The adder and its addends. Wide products are multiples of 2^-48, and so are their sums:
        # none is subnormal.
        options = {"format": p.accumulator, "flush_subnormals": p.wide}
        m.submodules.add = add = FloatAdd(LoopAddParameters(**options, stages=p.add_stages - 1))
        addend_a = Signal(width, reset_less=True)
        addend_b = Signal(width, reset_less=True)
        r = Signal(width, reset_less=True)
        pass_a, pass_b = (getattr(self, name) for name in self.PASS_ADDENDS)
        with m.If(self.add_enable):
            with m.Switch(self.op):
                with m.Case(Op.PASS):
                    m.d.sync += [addend_a.eq(pass_a), addend_b.eq(pass_b)]
                with m.Case(Op.CLEAR):
                    m.d.sync += [addend_a.eq(self.product), addend_b.eq(p.negative_zero)]
                with m.Case(Op.ACCUMULATE):
                    m.d.sync += [addend_a.eq(self.product), addend_b.eq(add.o)]
                with m.Case(Op.FOLD):
                    m.d.sync += [addend_a.eq(r), addend_b.eq(add.o)]
        with m.If(self.capture):
            m.d.sync += r.eq(add.o)
        with m.Elif(~self.hold):
            m.d.sync += r.eq(p.negative_zero)
        m.d.comb += [add.a.eq(addend_a), add.b.eq(addend_b), self.total.eq(add.o)]
        if p.multiply_stages > 1:
            m.d.comb += multiply.enable.eq(self.multiply_enable)
        if p.add_stages > 1:
            m.d.comb += add.enable.eq(self.add_enable)

        # The result, rounded once more to FP16. A short format is FP32 with zeros appended.
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
    """Type A, first level of the tree: PASS adds its own product and its neighbour's.

    Members
    -------
    neighbour : :py:`In(accumulator)`
        The neighbour's product. The other ports are those of :class:`Pe`.
    """

    PASS_ADDENDS = ("product", "neighbour")


class PeB(Pe):
    """Type B, the tree's other levels: PASS adds the sums of two other PEs.

    Members
    -------
    left, right : :py:`In(accumulator)`
        Their sums. The other ports are those of :class:`Pe`.
    """

    PASS_ADDENDS = ("left", "right")
