"""Testbench of the square root."""

from golden.arith.square_root import square_root
from sim.testbenches.arith.unary_testbench import UnaryTestbench

testbench = UnaryTestbench(square_root)
