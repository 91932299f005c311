"""An element of a sum of rows, and of its mean."""

from amaranth.hdl import Module, Signal, Value

from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out

ADD_STAGES = 3
"""Cycles to a sum: an element in FP32, and the addition."""
MEAN_STAGES = 4
"""Cycles from a sum to its mean: the product, and FP16."""


class MeanLane(Component[None]):
    """One of the lanes of :class:`hw.tsuru.value_mean.ValueMean`, which has the equations.

    Latency: ADD_STAGES cycles to `sum`, MEAN_STAGES more to `mean`. Throughput: an element a cycle.
    """

    def __init__(self):
        super().__init__()

    def ports(self) -> Ports:
        return {
            "x": wire_in(FP16, "An element of the new row."),
            "before": wire_in(FP32, "The sum without it."),
            "first": wire_in(1, "There is no sum yet."),
            "reciprocal": wire_in(FP32, "1 / n."),
            "sum": wire_out(FP32, "The sum with it."),
            "mean": wire_out(FP16, "That times 1 / n."),
        }

    def elaborate(self, platform):
        m = Module()
        wide = FloatConvert(FloatConvertParameters(source="fp16", format="fp32", stages=1))
        add = FloatAdd(FloatAddParameters(format="fp32", stages=ADD_STAGES - 1))
        multiply = FloatMultiply(FloatMultiplyParameters(format="fp32", stages=MEAN_STAGES - 2))
        narrow = FloatConvert(FloatConvertParameters(stages=2))
        m.submodules += [wide, add, multiply, narrow]
        before = Signal(FP32.width, reset_less=True)
        m.d.sync += before.eq(_unless(self.first, self.before))
        m.d.comb += [
            wide.a.eq(self.x),
            add.a.eq(before),
            add.b.eq(wide.o),
            self.sum.eq(add.o),
            multiply.a.eq(add.o),
            multiply.b.eq(self.reciprocal),
            narrow.a.eq(multiply.o),
            self.mean.eq(narrow.o),
        ]
        return m


def _unless(flag: Value, bits: Value) -> Value:
    return bits & (~flag).replicate(len(bits))
