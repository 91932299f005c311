"""The larger of two floating-point numbers."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal

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

    Structure: the magnitude comparator of :class:`hw.arith.float_compare.FloatCompare`. Equal
    magnitudes need no care: with equal signs both operands are the result, with different ones
    the sign decides. The operands are selected by two separate signals, and two NaNs select
    neither: what remains is zero, and setting bits of it makes the canonical NaN.

    Members
    -------
    a, b : :py:`In(width)`
        Operands.
    o : :py:`Out(width)`
        The larger one.
    """

    SMALLER = False
    """Whether the result is the smaller operand instead."""

    def __init__(self, parameters: FloatMaxParameters):
        width = parameters.float_format.width
        super().__init__(parameters, {"a": width, "b": width}, {"o": width})

    def elaborate(self, platform):
        m = Module()
        float_format = self.parameters.float_format
        width = float_format.width
        a = operand(m, self.a, self.parameters, "a")
        b = operand(m, self.b, self.parameters, "b")
        below = less_than(m, a[:-1], b[:-1])

        a_nan, b_nan = Signal(), Signal()
        m.d.comb += a_nan.eq(is_nan(a, float_format))
        m.d.comb += b_nan.eq(is_nan(b, float_format))
        a_less, choose_b, neither = Signal(), Signal(), Signal()
        m.d.comb += a_less.eq(Mux(a[-1] ^ b[-1], a[-1], below ^ a[-1]))
        m.d.comb += choose_b.eq(a_nan | ~b_nan & (a_less ^ self.SMALLER))
        m.d.comb += neither.eq(a_nan & b_nan)
        take_a, take_b = Signal(), Signal()
        m.d.comb += take_a.eq(~choose_b & ~neither)
        m.d.comb += take_b.eq(choose_b & ~neither)

        mantissa = float_format.mantissa
        either, exponent, fraction = Signal(width), Signal(float_format.exponent), Signal(mantissa)
        m.d.comb += either.eq(a & take_a.replicate(width) | b & take_b.replicate(width))
        # Two NaNs have the same exponent: there is nothing to clear.
        m.d.comb += exponent.eq(Mux(take_a, a[mantissa:-1], b[mantissa:-1]))
        quiet = Const(float_format.quiet_nan, width)[:mantissa]
        m.d.comb += fraction.eq(either[:mantissa] | quiet & neither.replicate(mantissa))
        cut = self.registers(m)
        m.d.comb += self.o.eq(cut("result", o=Cat(fraction, exponent, either[-1])))
        return m
