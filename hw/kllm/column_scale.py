"""A column's result from its two sums: scales, the sparse part, rounding (KLLM, Fig. 5)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory

from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.component import Component
from hw.layout import FLAG
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class ColumnScaleParameters(Parameters):
    """
    columns
        Columns whose sums are kept for a later product.
    """

    columns: int = 768

    STAGES = 5

    def __post_init__(self):
        require(self.columns >= 1, "columns must be at least 1", self.columns)

    @classmethod
    def presets(cls) -> dict[str, "ColumnScaleParameters"]:
        return {"small": cls(columns=4), "default": cls(), "paper": cls(columns=256)}

    @property
    def latency(self) -> int:
        """Cycles from a column's sums to its result."""
        return self.STAGES

    def cycles(self, columns: int) -> int:
        """Cycles from the first column offered to the last result taken, when nothing stalls."""
        return columns + self.latency

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """A column.

        Sums ``s`` and ``o`` (FP32); scales ``s_a`` and ``r`` of its vector, and its own ``s_b``
        (FP16); ``first`` column of a product; ``add``: add the sum kept of the column with the same
        number.
        """
        sums, scales = {"s": FP32, "o": FP32}, {"s_a": FP16, "r": FP16, "s_b": FP16}
        return data.StructLayout(sums | scales | {"first": FLAG, "add": FLAG})

    @cached_property
    def output_layout(self) -> data.StructLayout:
        """``y`` (FP16)."""
        return data.StructLayout({"y": FP16})


class ColumnScale(Component[ColumnScaleParameters]):
    """t[n] = round32(round32(round32(s_a S) + O) + t[n] or 0), y = round16(round32(t[n] (r s_b))).

    ::

        S ───→ × ─→ + ─→ + ──┬──→ × ─→ narrow to FP16 ─→ y
        s_a ──↗   ↗     ↑    ↓   ↑
        O ───────┘      └─ t[n]  │
        r, s_b ─→ exact ×  ──────┘

    `S` is a column's dense sum, `O` its sparse sum; s_a is the vector's scale, s_b the column's,
    r a second factor of the vector, such as 1 / RMS of a normalisation. r s_b, a product of two
    FP16 numbers, is exact in FP32. All roundings are to nearest even.

    n counts columns from the one that is ``first``, modulo `columns`. Sums t[n] are kept until the
    next product's: a matrix of more rows than a column has positions is a product for each part of
    its rows, all but the first of them with ``add``. The results of all but the last have no use.

    FP16 subnormals are exact, in operands and result. FP32 subnormals are flushed to zeros of their
    sign: sums of products of FP16 numbers never meet one, because no nonzero value is below 2^-96.
    Infinities and NaNs follow IEEE 754; a NaN result is the canonical NaN.

    Latency: 5 cycles. Throughput: one column a cycle, also where a column adds the sum of the cycle
    before.

    Handshake: all stages advance together in every cycle in which the last one is empty or is
    read, so ``i.ready`` follows ``o.ready`` combinationally. The sums' memory has a synchronous
    read port. Overflow: none; t[n] of a column past `columns` takes the place of an earlier one.

    Examples
    --------
    >>> from hw.kllm.column_scale import ColumnScaleParameters
    >>> parameters = ColumnScaleParameters(columns=768)
    >>> parameters.latency, parameters.cycles(256)
    (5, 261)
    """

    summary = "Scales a column's sums, adds other rows' sums, and rounds to FP16"
    source = "KLLM, section III-D"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Columns."),
            "o": stream_out(p.output_layout, "Results."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        valid = Signal(p.STAGES)
        enable = Signal()
        m.d.comb += [
            # One enable for all stages: the result of column n must not pass the kept sum of column
            # n.
            enable.eq(~valid[-1] | self.o.ready),
            self.i.ready.eq(enable),
            self.o.valid.eq(valid[-1]),
        ]
        with m.If(enable):
            m.d.sync += valid.eq(valid << 1 | self.i.valid)

        def register(name: str, value: Value) -> Signal:
            stored = Signal(len(Value.cast(value)), name=name, reset_less=True)
            with m.If(enable):
                m.d.sync += stored.eq(value)
            return stored

        def unit(name: str, kind, parameters, **operands: Value) -> Value:
            m.submodules[name] = part = kind(parameters)
            m.d.comb += [getattr(part, port).eq(value) for port, value in operands.items()]
            return part.o

        multiply = FloatMultiplyParameters(format="fp32", flush_subnormals=True)
        widen = FloatConvertParameters(source="fp16", format="fp32")
        plus = FloatAddParameters(format="fp32", flush_subnormals=True)
        column = self.i.payload
        # Stage 1: round32(s_a S), and r s_b at its side. The scales are FP32 numbers, exactly.
        wide = {
            name: unit(f"widen_{name}", FloatConvert, widen, a=column[name])
            for name in ("s_a", "r", "s_b")
        }
        # The dense sum is in units of centroids, outliers have their values: only the former is
        # scaled by s_a before they are added.
        scaled = register(
            "scaled", unit("scale_dense", FloatMultiply, multiply, a=column.s, b=wide["s_a"])
        )
        factor = register("factor", exact_product(m, wide["r"], wide["s_b"]))
        sparse = register("sparse", column.o)
        first, add = register("first", column.first), register("add", column.add)
        # Stage 2: round32(... + O). The column's number, with which its kept sum is read.
        total = register("total", unit("add_sparse", FloatAdd, plus, a=scaled, b=sparse))
        factor, add = register("factor_total", factor), register("add_total", add)
        number = Signal(range(max(2, p.columns)))  # of the column in stage 2
        following = Signal.like(number)
        last = number == p.columns - 1
        m.d.comb += following.eq(Mux(first | last, 0, number + 1))
        with m.If(enable & valid[0]):
            m.d.sync += number.eq(following)
        m.submodules.sums = sums = memory.Memory(
            shape=unsigned(FP32.width), depth=max(2, p.columns), init=[]
        )
        # The sum that is written in a cycle may be the one that is read in it.
        put = sums.write_port()
        # Partial products of a long K are added up here: a column's sum of the tiles before is read
        # as its new one arrives.
        get = sums.read_port(transparent_for=(put,))
        m.d.comb += [get.en.eq(enable & valid[0]), get.addr.eq(following)]
        # Stage 3: round32(... + the kept sum).
        kept = get.data & add.replicate(FP32.width)
        added = Signal(FP32.width)
        m.d.comb += [
            added.eq(unit("add_kept", FloatAdd, plus, a=total, b=kept)),
            put.en.eq(enable & valid[1]),
            put.addr.eq(number),
            put.data.eq(added),
        ]
        total, factor = register("sum", added), register("factor_sum", factor)
        # Stage 4: round32(... r s_b). Stage 5: round16(...).
        product = register("product", unit("scale", FloatMultiply, multiply, a=total, b=factor))
        narrow = FloatConvertParameters(source="fp32", format="fp16")
        result = register("result", unit("narrow", FloatConvert, narrow, a=product))
        m.d.comb += self.o.payload.y.eq(result)
        return m


def join_sums(m: Module, scale: ColumnScale, dense, s: Value, sparse, own, vector) -> None:
    """Give `scale` a column once both its sums, its scale and its vector's are there.

    `s` is the sum in `dense`.
    """
    parts = [dense, sparse, own, vector]
    m.d.comb += scale.i.valid.eq(Cat(part.valid for part in parts).all())
    for part in parts:
        others = Cat(other.valid for other in parts if other is not part)
        m.d.comb += part.ready.eq(scale.i.ready & others.all())
    names = ("s_a", "r", "first", "add")
    m.d.comb += [
        scale.i.payload.s.eq(s),
        scale.i.payload.o.eq(sparse.payload.sum),
        scale.i.payload.s_b.eq(own.payload),
        *(scale.i.payload[name].eq(vector.payload[name]) for name in names),
    ]


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
