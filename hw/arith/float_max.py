"""The larger of two floating-point numbers."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal

from hw.arith.datapath import Datapath, FloatParameters
from hw.arith.float_compare import less_than, operand
from hw.arith.order_key import is_nan


@dataclasses.dataclass(frozen=True)
class FloatMaxParameters(FloatParameters):
    """
    format
        ``fp16``, ``bf16``, ``fp32``, ``fp8_e4m3`` or ``fp8_e5m2``.
    flush_subnormals
        Whether subnormal operands count as zeros of their sign, in the result too.
    stages
        0 or 1.
    """

    PIPELINED = 1


class FloatMax(Datapath):
    """o = maximumNumber(a, b) of IEEE 754-2019: a number wins over a NaN.

    Minus zero is less than plus zero. Two NaNs give the canonical quiet NaN, so that a running
    maximum forgets NaNs as soon as it has met a number. The same results as RISC-V's ``fmax``.
    Nothing is rounded: every result is exact.

    Latency: `stages` cycles. Throughput: one result per cycle.

    Structure: the magnitude comparator of :class:`hw.arith.float_compare.FloatCompare`. Its answer
    is the last to arrive and chooses between two early values of each operand's select signal. A
    NaN's magnitude is above every number's, so it needs no further case. Nor do equal magnitudes:
    with equal signs both operands are the result, with different ones the sign decides. Two NaNs
    select neither operand: exponent and quiet bit, a product of sums of operands and select
    signals, are then ones; the other bits, a sum of products, are zeros.

    Members
    -------
    a, b : :py:`In(width)`
        Operands.
    o : :py:`Out(width)`
        The larger one.
    """

    summary = "Larger of two numbers, a NaN loses (IEEE 754-2019 maximumNumber)"
    source = "library"

    SMALLER = False
    """Whether the result is the smaller operand instead."""

    def __init__(self, parameters: FloatMaxParameters):
        width = parameters.float_format.width
        super().__init__(parameters, {"a": width, "b": width}, {"o": width})

    def elaborate(self, platform):
        m = Module()
        float_format = self.parameters.float_format
        a = operand(m, self.a, self.parameters, "a")
        b = operand(m, self.b, self.parameters, "b")
        below = less_than(m, a[:-1], b[:-1])

        a_nan, b_nan = Signal(), Signal()
        m.d.comb += a_nan.eq(is_nan(a, float_format))
        m.d.comb += b_nan.eq(is_nan(b, float_format))
        # The operand of the wanted sign: of a maximum, one that is not negative.
        a_sign, b_sign = (~a[-1], ~b[-1]) if self.SMALLER else (a[-1], b[-1])
        take_a, take_b = Signal(), Signal()
        m.d.comb += take_b.eq(~b_nan & Mux(below, ~b_sign, a_nan | a_sign))
        m.d.comb += take_a.eq(~a_nan & Mux(below, b_nan | b_sign, ~a_sign))

        mantissa = float_format.mantissa
        result = []
        for place, (a_bit, b_bit) in enumerate(zip(a, b, strict=True)):
            # Two NaNs have the same exponent, all ones.
            if mantissa <= place < float_format.width - 1:
                result.append((a_bit | take_b) & (b_bit | take_a))
            elif float_format.quiet_nan >> place & 1:
                result.append((a_bit | ~take_a) & (b_bit | ~take_b))
            else:
                result.append(a_bit & take_a | b_bit & take_b)
        cut = self.registers(m)
        m.d.comb += self.o.eq(cut("result", o=Cat(result)))
        return m
