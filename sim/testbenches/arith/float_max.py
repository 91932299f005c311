"""Testbench of FloatMax: related pairs of operands against the bit-exact model."""

from golden.arith.float_max import float_max
from sim.testbenches.arith.datapath_testbench import DatapathTestbench

testbench = DatapathTestbench(
    operands=lambda p: {"a": p.format, "b": p.format},
    results=lambda p: {"o": p.format},
    golden=lambda p, a, b: {"o": float_max(a, b, flush_subnormals=p.flush_subnormals)},
)
