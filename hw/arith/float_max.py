"""The larger of two floating-point numbers."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal

from hw.arith.bits.order_key import is_nan
from hw.arith.datapath import Datapath, FloatParameters
from hw.arith.float_compare import less_than, operand
from hw.ports import Ports, wire_in, wire_out


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


class FloatMax(Datapath[FloatMaxParameters]):
    """o = maximumNumber(a, b) of IEEE 754-2019: the larger number; NaN only if both are NaN.

    Minus zero is less than plus zero. Two NaNs give the canonical quiet NaN, so a running maximum
    is a number once one operand was. The same results as RISC-V's ``fmax``. Every result is exact.

    Latency: `stages` cycles. Throughput: one result per cycle.

    Structure: the magnitude comparator of :class:`hw.arith.float_compare.FloatCompare`. Its result
    arrives last and selects between two early values of each operand's select signal. A NaN's
    magnitude is above every number's, so it needs no further case. Nor do equal magnitudes: with
    equal signs both operands are the result, with different ones the sign decides. Two NaNs select
    neither operand: exponent and quiet bit, a product of sums of operands and select signals, are
    then ones; the other bits, a sum of products, are zeros.

    Examples
    --------
    >>> from hw.arith.float_max import FloatMax, FloatMaxParameters
    >>> parameters = FloatMaxParameters(stages=1)
    >>> parameters.slug()
    'stages1_formatfp16_flush_subnormals0'
    >>> FloatMax(parameters).o.shape()
    unsigned(16)
    """

    summary = "Larger of two numbers, NaN only if both are (IEEE 754-2019 maximumNumber)"
    source = "library"

    SMALLER = False
    """Whether the result is the smaller operand instead."""

    def operation(self) -> Ports:
        p = self.parameters
        fmt = p.float_format
        return {
            "a": wire_in(fmt, "First operand."),
            "b": wire_in(fmt, "Second operand."),
            "o": wire_out(fmt, "The larger one."),
        }

    def elaborate(self, platform):
        m = Module()
        float_format = self.parameters.float_format
        a = operand(m, self.a, self.parameters, "a")
        b = operand(m, self.b, self.parameters, "b")
        below = less_than(m, a[:-1], b[:-1])

        a_nan = Signal()
        b_nan = Signal()
        m.d.comb += a_nan.eq(is_nan(a, float_format))
        m.d.comb += b_nan.eq(is_nan(b, float_format))
        # Signs that rule out an operand: of a maximum, the negative one.
        a_sign, b_sign = (~a[-1], ~b[-1]) if self.SMALLER else (a[-1], b[-1])
        # One comparison of magnitudes serves both signs: of two negative numbers the smaller
        # magnitude is the maximum.
        take_a = Signal()
        take_b = Signal()
        m.d.comb += take_b.eq(~b_nan & Mux(below, ~b_sign, a_nan | a_sign))
        m.d.comb += take_a.eq(~a_nan & Mux(below, b_nan | b_sign, ~a_sign))

        # An AND-OR multiplexer, with ones for the bits of the quiet NaN if neither is selected.
        mantissa = float_format.mantissa
        result = []
        for n, (a_bit, b_bit) in enumerate(zip(a, b, strict=True)):
            # Two NaNs have the same exponent, all ones.
            if mantissa <= n < float_format.width - 1:
                result.append((a_bit | take_b) & (b_bit | take_a))
            elif float_format.quiet_nan >> n & 1:
                result.append((a_bit | ~take_a) & (b_bit | ~take_b))
            else:
                result.append(a_bit & take_a | b_bit & take_b)
        cut = self.registers(m)
        m.d.comb += self.o.eq(cut("result", o=Cat(result)))
        return m
