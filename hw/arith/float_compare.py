"""Comparison of two floating-point numbers, and the magnitude comparator that it shares."""

import dataclasses

from amaranth.hdl import Module, Mux, Signal, Value

from hw.arith.datapath import Datapath, FloatParameters
from hw.arith.order_key import is_nan


@dataclasses.dataclass(frozen=True)
class FloatCompareParameters(FloatParameters):
    """
    format
        ``fp16``, ``bf16``, ``fp32``, ``fp8_e4m3`` or ``fp8_e5m2``.
    flush_subnormals
        Whether subnormal operands count as zeros: they are then equal to each other.
    stages
        0 or 1.
    """

    PIPELINED = 1


class FloatCompare(Datapath):
    """The relation of two numbers, as IEEE 754 defines it: less, equal, unordered or, if none of
    the three, greater.

    Both zeros are equal. A NaN is unordered with everything, itself included. Nothing is rounded:
    every answer is exact.

    Latency: `stages` cycles. Throughput: one comparison per cycle.

    Structure: one comparator for the magnitudes below the sign, a binary tree of generate and
    propagate bits as in a carry-lookahead adder (Brent and Kung, 1982). Signs, zeros and NaNs
    enter behind it: cheaper than an order key (:mod:`hw.arith.order_key`), which would complement
    both operands first.

    Members
    -------
    a, b : :py:`In(width)`
        Operands.
    less, equal, unordered : :py:`Out(1)`
        At most one is high.
    """

    summary = "Less, equal or unordered, exact"
    source = "library"

    def __init__(self, parameters: FloatCompareParameters):
        width = parameters.float_format.width
        super().__init__(parameters, {"a": width, "b": width}, dict.fromkeys(RELATIONS, 1))

    def elaborate(self, platform):
        m = Module()
        float_format = self.parameters.float_format
        a = operand(m, self.a, self.parameters, "a")
        b = operand(m, self.b, self.parameters, "b")
        below = less_than(m, a[:-1], b[:-1])

        same, zero, differ = Signal(), Signal(), Signal()
        m.d.comb += same.eq(a[:-1] == b[:-1])
        m.d.comb += zero.eq(~a[:-1].any())
        m.d.comb += differ.eq(a[-1] ^ b[-1])

        less, equal, unordered = Signal(), Signal(), Signal()
        m.d.comb += unordered.eq(is_nan(a, float_format) | is_nan(b, float_format))
        even = Signal()
        m.d.comb += even.eq(same & (zero | ~differ))
        m.d.comb += equal.eq(even & ~unordered)
        m.d.comb += less.eq(Mux(differ, a[-1], below ^ a[-1]) & ~even & ~unordered)

        cut = self.registers(m)
        results = cut("result", less=less, equal=equal, unordered=unordered)
        for name, result in zip(RELATIONS, results, strict=True):
            m.d.comb += getattr(self, name).eq(result)
        return m


RELATIONS = ("less", "equal", "unordered")


def operand(m: Module, bits: Value, parameters: FloatParameters, name: str) -> Signal:
    """An operand as it counts: itself, or a subnormal flushed to the zero of its sign."""
    float_format = parameters.float_format
    counted = Signal(float_format.width, name=f"{name}_counted")
    m.d.comb += counted.eq(bits)
    if parameters.flush_subnormals:
        normal = Signal(name=f"{name}_normal")
        m.d.comb += normal.eq(bits[float_format.mantissa : -1].any())
        with m.If(~normal):
            m.d.comb += counted[: float_format.mantissa].eq(0)
    return counted


def less_than(m: Module, a: Value, b: Value) -> Signal:
    """Whether the unsigned `a` is less than `b` of the same width, in ceil(log2 width) levels."""
    generate, propagate = Signal(len(a)), Signal(len(a))
    m.d.comb += generate.eq(~a & b)
    m.d.comb += propagate.eq(~a | b)
    pairs = list(zip(generate, propagate, strict=True))
    level = 0
    while len(pairs) > 1:
        level += 1
        above = []
        for index in range(0, len(pairs) - 1, 2):
            (g_low, p_low), (g_high, p_high) = pairs[index : index + 2]
            g = Signal(name=f"generate{level}_{index // 2}")
            p = Signal(name=f"propagate{level}_{index // 2}")
            m.d.comb += g.eq(g_high | p_high & g_low)
            m.d.comb += p.eq(p_high & p_low)
            above.append((g, p))
        pairs = above + pairs[2 * len(above) :]
    return pairs[0][0]
