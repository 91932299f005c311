"""Element-wise functions of FP16 numbers (KLLM, section III-C1)."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import enum

from hw.arith.bits.order_key import is_nan
from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.float_format import FP16
from hw.arith.float_to_fixed import FloatToFixed, FloatToFixedParameters
from hw.arith.reciprocal import Reciprocal, ReciprocalParameters
from hw.arith.square_root import SquareRoot, SquareRootParameters
from hw.arith.wide_exponent import (
    EXPONENT,
    FRACTION,
    INVERSE_WIDTH,
    LIMIT,
    POWER,
    SIGNIFICAND,
    inverse,
    one_plus,
    power,
    round_fp16,
    significand,
)
from hw.ports import Ports, wire_in, wire_out


class Function(enum.IntEnum, shape=2):
    """Function of an :class:`ElementFunction`."""

    EXP = 0
    SILU = 1
    RECIPROCAL = 2
    SQUARE_ROOT = 3


@dataclasses.dataclass(frozen=True)
class ElementFunctionParameters(DatapathParameters):
    """
    stages
        Pipeline stages, 0 to 6.
    """

    stages: int = 4

    CUTS: ClassVar = (
        (),
        ("result",),
        ("denominator", "result"),
        ("power", "inverse", "result"),
        ("power", "denominator", "product", "result"),
        ("power", "significand", "denominator", "product", "result"),
        ("power", "significand", "denominator", "inverse", "product", "result"),
    )

    @classmethod
    def presets(cls) -> dict[str, "ElementFunctionParameters"]:
        return {"small": cls(0), "default": cls()}


class ElementFunction(Datapath[ElementFunctionParameters]):
    """``o`` = e^x, x / (1 + e^-x) (SiLU), 1 / x or the square root of x, as `op` says.

    Codebook replacement applies it to the 2^nA centroids and to the outliers.

    ::

        x ─→ fixed point ─→ x log2(e) = n + f ─→ 2^-f table ─┬───────────────────────┐
                                     │ n                     └→ 1 + e^-x ─→ 1 / … ─→ × ─→ round
                                     └─────────────────────────→ exponent     x ────↗

    e^-x = 2^-f 2^-n with n + f = x log2(e): a table gives the significand 2^-f, and n is kept as an
    exponent wide enough not to overflow. For SiLU, 1 + e^-x is normalised, a table gives its
    reciprocal, which is multiplied by x; the product is rounded once. Reciprocal and square root
    are units of :mod:`hw.arith`.

    Accuracy, over all operands: within 0.703 units in the last place for e^x, 0.902 for SiLU and
    0.793 for 1 / x (truncated in subnormal results); the square root is correctly rounded. e^0 = 1,
    e^inf = inf, e^-inf = 0, SiLU of +inf is +inf and of -inf -0. A NaN gives the canonical NaN, and
    so does the square root of a negative number; 1 / ±0 = ±inf. Nothing is flagged.

    Latency: `stages`. Throughput: one result per cycle.

    Examples
    --------
    >>> from hw.kllm.element_function import ElementFunctionParameters, Function
    >>> ElementFunctionParameters(stages=4).cycles(100)
    104
    >>> list(Function)
    [<Function.EXP: 0>, <Function.SILU: 1>, <Function.RECIPROCAL: 2>, <Function.SQUARE_ROOT: 3>]
    """

    summary = "e^x, SiLU, reciprocal and square root of FP16 numbers"
    source = "KLLM, section III-C1"

    def operation(self) -> Ports:
        return {
            "x": wire_in(FP16, "Operand."),
            "op": wire_in(Function, "Function of the operand."),
            "o": wire_out(FP16, "Its value."),
        }

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        x, op = self.x, self.op
        m.submodules.to_fixed = to_fixed = FloatToFixed(
            FloatToFixedParameters(width=1 + LIMIT + FRACTION, fraction=FRACTION)
        )
        # Exponent of 2: 2^-exponent is e^x for EXP and e^-x for SILU, so x is negated for EXP.
        m.d.comb += to_fixed.a.eq(Cat(x[:-1], x[-1] ^ (op == Function.EXP)))
        # e^x = 2^(x log2 e), so that a table of one octave is enough.
        exponent = power(m, to_fixed.o)
        x, op, exponent = cut("power", x=x, op=op, exponent=exponent)

        # Its integer part is the binary exponent, its fraction selects the significand.
        below = significand(m, exponent[:POWER])
        whole = Signal(signed(len(exponent) - POWER))
        m.d.comb += whole.eq(exponent[POWER:].as_signed())
        x, op, below, whole = cut("significand", x=x, op=op, below=below, whole=whole)

        # SiLU's denominator, and the result's exponent field before rounding.
        digits = Signal(SIGNIFICAND)
        m.d.comb += digits.eq(Cat(1, below))
        fraction, scale = one_plus(m, digits, whole)
        is_exp = Signal()
        m.d.comb += is_exp.eq(op == Function.EXP)
        field = Signal(EXPONENT)
        hidden = x[FP16.mantissa : -1].any()
        # A subnormal number has the exponent field 1.
        x_field = Cat(x[FP16.mantissa] | ~hidden, x[FP16.mantissa + 1 : -1])
        m.d.comb += field.eq(Mux(is_exp, FP16.bias - whole, x_field - scale))
        x, op, digits, fraction, field = cut(
            "denominator", x=x, op=op, digits=digits, fraction=fraction, field=field
        )

        # One product for both: 1 times 2^-f, or x times 1 / (1 + e^-x).
        factor = Signal(INVERSE_WIDTH)
        # SiLU is x / (1 + e^-x): the same exponential, then a reciprocal and one product.
        m.d.comb += factor.eq(Mux(op == Function.EXP, digits, inverse(m, fraction)))
        x, op, field, factor = cut("inverse", x=x, op=op, field=field, factor=factor)

        multiplicand = Signal(FP16.precision)
        m.d.comb += multiplicand.eq(Cat(x[: FP16.mantissa], x[FP16.mantissa : -1].any()))
        one = 1 << FP16.mantissa
        product = Signal(FP16.precision + INVERSE_WIDTH)
        m.d.comb += product.eq(Mux(op == Function.EXP, one, multiplicand) * factor)
        x, op, field, product = cut("product", x=x, op=op, field=field, product=product)

        # Reciprocal and square root have no pipeline registers inside and share the last stage.
        m.submodules.reciprocal = reciprocal = Reciprocal(ReciprocalParameters())
        m.submodules.square_root = square_root = SquareRoot(SquareRootParameters())
        m.d.comb += [reciprocal.x.eq(x), square_root.x.eq(x)]
        magnitude, beyond = round_fp16(m, product, field)
        o = Signal(FP16.width)
        with m.Switch(op):
            with m.Case(Function.RECIPROCAL):
                m.d.comb += o.eq(reciprocal.o)
            with m.Case(Function.SQUARE_ROOT):
                m.d.comb += o.eq(square_root.o)
            with m.Default():
                number = Mux(beyond, FP16.infinity, magnitude)
                sign = x[-1] & (op == Function.SILU)
                m.d.comb += o.eq(Mux(is_nan(x), FP16.quiet_nan, Cat(number, sign)))
        m.d.comb += self.o.eq(cut("result", o=o))
        return m
