"""Testbench of FloatToFixed: result and flags against the bit-exact model."""

from amaranth.hdl import unsigned

from golden.arith.float_to_fixed import float_to_fixed
from sim.testbenches.arith.datapath_testbench import DatapathTestbench

testbench = DatapathTestbench(
    operands=lambda p: {"a": p.format},
    results=lambda p: {"o": p.shape, "overflow": unsigned(1), "inexact": unsigned(1)},
    golden=lambda p, a: float_to_fixed(
        a,
        p.width,
        signed=p.signed,
        fraction=p.fraction,
        rounding=p.rounding,
        flush_subnormals=p.flush_subnormals,
    ),
)
