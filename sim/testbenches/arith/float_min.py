"""Testbench of FloatMin: related pairs of operands against the bit-exact model."""

from golden.arith.float_min import float_min
from sim.testbenches.arith.datapath_testbench import DatapathTestbench

testbench = DatapathTestbench(
    operands=lambda p: {"a": p.format, "b": p.format},
    results=lambda p: {"o": p.format},
    golden=lambda p, a, b: {"o": float_min(a, b, flush_subnormals=p.flush_subnormals)},
)
