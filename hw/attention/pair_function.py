"""Element-wise functions of two FP16 numbers: residual sums and gated products."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import enum

from hw.arith.datapath import Datapath, DatapathParameters, Registers
from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.arith.float_multiply_add import FloatMultiplyAdd, FloatMultiplyAddParameters
from hw.arith.float_to_fixed import FloatToFixed, FloatToFixedParameters
from hw.arith.wide_exponent import (
    FRACTION,
    INVERSE_WIDTH,
    LIMIT,
    POWER,
    inverse,
    one_plus,
    power,
    significand,
)
from hw.ports import Ports, wire_in, wire_out


class PairOperation(enum.IntEnum, shape=2):
    """Operation of a :class:`PairFunction`."""

    SUM = 0
    PRODUCT = 1
    SILU_PRODUCT = 2
    GELU_PRODUCT = 3


GELU_LIMIT = 3
"""Integer bits of GELU's operand: from 8 on its argument is beyond 2^LIMIT."""

GELU_SLOPE, GELU_CUBE = 27415104757, 74821
"""2 sqrt(2 / pi) in units of 2^-34, and 0.044715 times that in units of 2^-20."""

TAIL = 1 << 5
"""Arguments less than this above the lowest, in units of 2^-FRACTION, count as minus infinity."""

LEAST = 7
"""Exponent field of FP32 for the logistic function of minus infinity: below all that matters."""

ARGUMENT = signed(1 + LIMIT + FRACTION)
"""Shape of the logistic function's argument."""

FACTOR = 19
"""Bits of slope + cube a² in units of 2^-16, up to 6.2."""

SIGMOID_POINTS = ("argument", "power", "denominator", "inverse")
PRODUCT_POINTS = ("product", "window")


@dataclasses.dataclass(frozen=True)
class PairFunctionParameters(DatapathParameters):
    """
    stages
        Pipeline stages, 0 to 8.
    """

    stages: int = 8

    CUTS: ClassVar = (
        (),
        ("result",),
        ("inverse", "result"),
        ("power", "inverse", "result"),
        ("power", "inverse", "product", "result"),
        ("argument", "power", "inverse", "product", "result"),
        ("argument", "power", "denominator", "inverse", "product", "result"),
        ("argument", "power", "denominator", "inverse", "product", "window", "result"),
        ("square", "argument", "power", "denominator", "inverse", "product", "window", "result"),
    )

    @classmethod
    def presets(cls) -> dict[str, "PairFunctionParameters"]:
        return {"small": cls(0), "default": cls()}

    def among(self, points: tuple[str, ...]) -> int:
        """Number of pipeline stages at `points`."""
        return sum(point in points for point in self.CUTS[self.stages])


class PairFunction(Datapath[PairFunctionParameters]):
    """``o`` = a + b, a b, SiLU(a) b or GELU(a) b, as `op` says.

    ::

        a, b ─→ a b, or a + b ─────────────────────────────────────────→ × ─→ round ─→ o
        a ─→ z ─→ z log2(e) ─→ 2^-f table ─→ 1 + e^-z ─→ 1 / … (or 1) ───↗

    A product of two vectors is no function of an index, so it cannot be a table of the codebook:
    gate and up are FP16 here, and the product is what is clustered next. SiLU(a) = a / (1 + e^-a).
    GELU(a) is a / (1 + e^-z), z = 2 sqrt(2 / pi) (a + 0.044715 a³), which is the usual
    approximation by tanh. So both are a b times a logistic function, which has an exponent of its
    own: nothing is rounded to FP16 but the result, and b = 1 gives the function alone. The tables
    are :class:`hw.kllm.element_function.ElementFunction`'s.

    Accuracy, over all operands: sum and product are correctly rounded. The gated products y are
    off by at most half a unit in the last place plus 2^-12 |y| (SiLU) or 2^-11.6 |y| (GELU, from
    the approximation by tanh), whether gate, product or result are subnormal.

    Special operands: as the IEEE operations give them, with SiLU and GELU of minus infinity -0, so
    that its product with an infinity is NaN. Every NaN is the canonical one. A result too large is
    infinite. Nothing is flagged.

    Latency: `stages`. Throughput: one result per cycle.

    Examples
    --------
    >>> from hw.attention.pair_function import PairFunctionParameters, PairOperation
    >>> PairFunctionParameters(stages=8).cycles(100)
    108
    >>> [op.name for op in PairOperation]
    ['SUM', 'PRODUCT', 'SILU_PRODUCT', 'GELU_PRODUCT']
    """

    summary = "a + b, a b, SiLU(a) b and GELU(a) b of FP16 numbers"
    source = "KLLM, section III-C1"

    def operation(self) -> Ports:
        return {
            "a": wire_in(FP16, "First operand; the gate."),
            "b": wire_in(FP16, "Second operand."),
            "op": wire_in(PairOperation, "Operation on the operands."),
            "o": wire_out(FP16, "Its result."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        stages = p.among(SIGMOID_POINTS), p.among(PRODUCT_POINTS), p.among(("result",))
        m.submodules.pair = pair = FloatMultiplyAdd(
            FloatMultiplyAddParameters(format="fp16", sum_format="fp32", stages=stages[0])
        )
        m.submodules.gated = product = FloatMultiply(
            FloatMultiplyParameters(format="fp32", flush_subnormals=True, stages=stages[1])
        )
        m.submodules.narrow = narrow = FloatConvert(FloatConvertParameters(stages=stages[2]))
        if stages[0]:
            m.d.comb += pair.enable.eq(self.enable)
        if stages[1]:
            m.d.comb += product.enable.eq(self.enable)
        if stages[2]:
            m.d.comb += narrow.enable.eq(self.enable)
        # Two ways side by side: a + b or a b, and the logistic function of a's argument, which is 1
        # for operations without a gate. Their product is rounded to FP16 last.
        cut = self.registers(m)
        fixed, near, factor = self._square(m)
        a, b, op, fixed, near, factor = cut(
            "square", a=self.a, b=self.b, op=self.op, fixed=fixed, near=near, factor=factor
        )
        # From here on sum or product has as many registers as the logistic function beside it.
        self._pair(m, pair, a, b, op)
        argument = self._argument(m, op, fixed, near, factor)
        m.d.comb += [
            product.a.eq(pair.o),
            product.b.eq(self._logistic(m, cut, argument, op[1])),
            narrow.a.eq(product.o),
            self.o.eq(narrow.o),
        ]
        return m

    def _pair(self, m: Module, pair: FloatMultiplyAdd, a: Value, b: Value, op: Value) -> None:
        """a b, which is exact, or a + b, rounded to FP32.

        FP32 has more than twice FP16's digits, so that rounding a sum twice rounds it once.
        """
        m.submodules.widen = widen = FloatConvert(
            FloatConvertParameters(source="fp16", format="fp32")
        )
        is_sum = Signal()
        vanishes = Signal()  # a gate of minus infinity, which counts as -0
        minus_infinity = (1 << FP16.width - 1) | FP16.infinity
        minus_zero = Const(1 << FP32.width - 1, FP32.width)
        m.d.comb += [
            is_sum.eq(op == PairOperation.SUM),
            vanishes.eq((a == minus_infinity) & op[1]),
            widen.a.eq(b),
            # a + b is a times one, plus b.
            pair.a.eq(Cat(a[:-1] & ~vanishes.replicate(FP16.width - 1), a[-1])),
            pair.b.eq(Mux(is_sum, FP16.bias << FP16.mantissa, b)),
            # Minus zero as addend keeps the sign of a product that is zero.
            pair.c.eq(Mux(is_sum, widen.o, minus_zero)),
        ]

    def _logistic(self, m: Module, cut: Registers, argument: Value, gated: Value) -> Value:
        """1 / (1 + e^-z) as FP32, or 1 where the operation has no gate.

        ::

            e^-z = 2^-f 2^-n:   | sign 0 | 126 - exponent of 1 + e^-z | inverse's fraction | 0 … 0 |
        """
        argument, gated = cut("argument", argument=argument, gated=gated)

        # From here on as in ElementFunction: a table of one octave, and the reciprocal's.
        exponent = power(m, argument)
        tail = Signal()  # z counts as minus infinity
        m.d.comb += tail.eq(argument[-1] & ~argument[TAIL.bit_length() - 1 : -1].any())
        exponent, tail, gated = cut("power", exponent=exponent, tail=tail, gated=gated)

        below = significand(m, exponent[:POWER])
        whole = Signal(signed(len(exponent) - POWER))
        m.d.comb += whole.eq(exponent[POWER:].as_signed())
        fraction, scale = one_plus(m, Cat(1, below), whole)
        fraction, scale, tail, gated = cut(
            "denominator", fraction=fraction, scale=scale, tail=tail, gated=gated
        )

        # inverse() is 1 to 2, half of which is the logistic function's significand.
        field = Signal(FP32.exponent)
        logistic = Signal(FP32.width)
        digits = inverse(m, fraction)[: INVERSE_WIDTH - 1]
        padding = Const(0, FP32.mantissa - (INVERSE_WIDTH - 1))
        m.d.comb += [
            # A tail of zero would make NaN of an infinite product, so it is only very small.
            field.eq(Mux(tail, LEAST, FP32.bias - 1 - scale)),
            logistic.eq(Mux(gated, Cat(padding, digits, field), FP32.bias << FP32.mantissa)),
        ]
        return cut("inverse", logistic=logistic)

    def _square(self, m: Module) -> tuple[Signal, Signal, Signal]:
        """a in fixed point, for GELU limited to 8, and slope + cube a²; in units of 2^-16."""
        m.submodules.to_fixed = to_fixed = FloatToFixed(
            FloatToFixedParameters(width=len(Signal(ARGUMENT)), fraction=FRACTION)
        )
        # The argument is 49 at the limit, which is beyond 2^LIMIT.
        near = Signal(signed(1 + GELU_LIMIT + FRACTION))
        square = Signal(2 * GELU_LIMIT + FRACTION + 1)
        factor = Signal(FACTOR)
        m.d.comb += [
            to_fixed.a.eq(self.a),
            near.eq(limited(to_fixed.o, len(near))),
            square.eq((near * near) >> FRACTION),
            factor.eq((GELU_SLOPE + square * GELU_CUBE) >> 18),
        ]
        return to_fixed.o, near, factor

    def _argument(self, m: Module, op: Value, fixed: Value, near: Value, factor: Value) -> Signal:
        """The logistic function's argument z: a for SiLU, a (slope + cube a²) for GELU."""
        cubic = Signal(signed(len(near) + FACTOR - 16 + 1))
        argument = Signal(ARGUMENT)
        m.d.comb += [
            cubic.eq((near * factor + (1 << 15)) >> 16),
            argument.eq(
                Mux(op == PairOperation.GELU_PRODUCT, limited(cubic, len(argument)), fixed)
            ),
        ]
        return argument


def limited(value: Value, width: int) -> Value:
    """A signed number limited to `width` bits."""
    high = (1 << width - 1) - 1
    return Mux(value > high, high, Mux(value < ~high, ~high, value))
