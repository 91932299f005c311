"""Testbench of FixedToFloat: integers of every magnitude against the bit-exact model."""

from golden.arith.fixed_to_float import fixed_to_float
from sim.testbenches.arith.datapath_testbench import DatapathTestbench

testbench = DatapathTestbench(
    operands=lambda p: {"a": p.shape},
    results=lambda p: {"o": p.format},
    golden=lambda p, a: {
        "o": fixed_to_float(a, p.format, fraction=p.fraction, flush_subnormals=p.flush_subnormals)
    },
    scale=50_000.0,  # not a power of two, so that a trace's FP16 numbers are rounded
)
