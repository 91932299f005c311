"""Testbench of the exponential function."""

from golden.arith.exp import exp
from sim.testbenches.arith.unary_testbench import UnaryTestbench

testbench = UnaryTestbench(exp)
