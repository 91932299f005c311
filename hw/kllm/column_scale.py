"""A column's result from its two sums: scales, the sparse part, rounding (KLLM, Fig. 5)."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters


@dataclasses.dataclass(frozen=True)
class ColumnScaleParameters(DatapathParameters):
    """
    stages
        Pipeline stages, 0 to 4.
    """

    CUTS = (
        (),
        ("result",),
        ("sum", "result"),
        ("scaled", "sum", "result"),
        ("scaled", "sum", "product", "result"),
    )

    @classmethod
    def presets(cls) -> dict[str, "ColumnScaleParameters"]:
        return {"small": cls(stages=1), "default": cls(), "paper": cls(stages=4)}


class ColumnScale(Datapath):
    """y = round16(round32(round32(round32(s_a S) + O) (r s_b))).

    ::

        S ───→ × ─→ + ─→ × ─→ narrow to FP16 ─→ y
        s_a ──↗   ↗     ↑
        O ───────┘      │
        r, s_b ─→ exact ×

    `S` is a column's dense sum, `O` its sparse sum; s_a is the vector's scale, s_b the column's,
    r a second factor of the vector, such as 1 / RMS of a normalisation. r s_b, a product of two
    FP16 numbers, is exact in FP32. All roundings are to nearest even.

    FP16 subnormals are exact, in operands and result. FP32 subnormals are flushed to zeros of their
    sign: sums of products of FP16 numbers never meet one, as no nonzero value is below 2^-96.
    Infinities and NaNs follow IEEE 754; a NaN result is the canonical NaN.

    Latency: `stages`. Throughput: one result per cycle. Pipeline stages, as far as there are any:
    after the first product (and the product of scales), the sum, the second product, the result.

    Members
    -------
    s, o : :py:`In(32)`
        S and O.
    s_a, r, s_b : :py:`In(16)`
    y : :py:`Out(16)`

    Examples
    --------
    >>> from hw.kllm.column_scale import ColumnScale, ColumnScaleParameters
    >>> scale = ColumnScale(ColumnScaleParameters(stages=4))
    >>> scale.operands, scale.results
    (('s', 'o', 's_a', 'r', 's_b'), ('y',))
    >>> scale.parameters.cycles(256)
    260
    """

    summary = "Scales a column's sums and rounds to FP16"
    source = "KLLM, section III-D"

    def __init__(self, parameters: ColumnScaleParameters):
        inputs = {"s": FP32, "o": FP32, "s_a": FP16, "r": FP16, "s_b": FP16}
        super().__init__(parameters, inputs, {"y": FP16})

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        multiply = FloatMultiplyParameters(format="fp32", flush_subnormals=True)
        widen = FloatConvertParameters(source="fp16", format="fp32")

        def unit(name: str, kind, parameters, **operands: Value) -> Value:
            m.submodules[name] = part = kind(parameters)
            m.d.comb += [getattr(part, port).eq(value) for port, value in operands.items()]
            return part.o

        # The scales as FP32 numbers, exactly.
        wide = {
            name: unit(f"widen_{name}", FloatConvert, widen, a=getattr(self, name))
            for name in ("s_a", "r", "s_b")
        }
        # round32(s_a S), and r s_b at its side.
        scaled = unit("scale_dense", FloatMultiply, multiply, a=self.s, b=wide["s_a"])
        factor = exact_product(m, wide["r"], wide["s_b"])
        scaled, factor, sparse = cut("scaled", scaled=scaled, factor=factor, sparse=self.o)
        # round32(… + O)
        add = FloatAddParameters(format="fp32", flush_subnormals=True)
        total = unit("add", FloatAdd, add, a=scaled, b=sparse)
        total, factor = cut("sum", sum=total, factor=factor)
        # round32(… r s_b)
        product = unit("scale", FloatMultiply, multiply, a=total, b=factor)
        product = cut("product", product=product)
        # round16(…)
        narrow = FloatConvertParameters(source="fp32", format="fp16")
        m.d.comb += self.y.eq(cut("result", y=unit("narrow", FloatConvert, narrow, a=product)))
        return m


def exact_product(m: Module, a: Value, b: Value) -> Signal:
    """The FP32 product of two FP16 numbers widened to FP32: 22 bits, never out of range.

    ::

        significands of 11 bits   1.ffffffffff × 1.ffffffffff
        product of 22 bits        1x.… or 01.…    ─→ top 21 or 20 bits are the fraction
        FP32 fraction, 23 bits    | product below its leading one | 0…0 |
    """
    low = FP32.mantissa - FP16.mantissa  # bits of a fraction that are zero
    exponents = [x[FP32.mantissa : -1] for x in (a, b)]
    fractions = [x[low : FP32.mantissa] for x in (a, b)]
    zero = Signal(name="factor_zero")
    special = Signal(name="factor_special")
    nan = Signal(name="factor_nan")
    m.d.comb += [
        zero.eq(~exponents[0].any() | ~exponents[1].any()),  # widened numbers are not subnormal
        special.eq(exponents[0].all() | exponents[1].all()),
        nan.eq(
            special & zero
            | Cat(e.all() & f.any() for e, f in zip(exponents, fractions, strict=True)).any()
        ),
    ]
    significand = Signal(2 * FP16.precision, name="factor_significand")
    total = Signal(FP32.exponent, name="factor_exponent")
    two = significand[-1]
    m.d.comb += [
        significand.eq(Cat(fractions[0], 1) * Cat(fractions[1], 1)),
        total.eq(exponents[0] + exponents[1] - FP32.bias + two),
    ]
    fraction = Mux(two, significand[:-1], Cat(Const(0, 1), significand[:-2]))
    number = Cat(Const(0, FP32.mantissa - len(fraction)), fraction, total)
    magnitude = Mux(special, FP32.infinity, Mux(zero, 0, number))
    factor = Signal(FP32.width)
    m.d.comb += factor.eq(Mux(nan, FP32.quiet_nan, Cat(magnitude, a[-1] ^ b[-1])))
    return factor
