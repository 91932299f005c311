"""Testbench of the natural logarithm."""

from golden.arith.log import log
from sim.testbenches.arith.unary_testbench import UnaryTestbench

testbench = UnaryTestbench(log)
