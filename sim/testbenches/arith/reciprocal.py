"""Testbench of the reciprocal."""

from golden.arith.reciprocal import reciprocal
from sim.testbenches.arith.unary_testbench import UnaryTestbench

testbench = UnaryTestbench(reciprocal)
