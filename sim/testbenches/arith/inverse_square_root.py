"""Testbench of the reciprocal of the square root."""

from golden.arith.inverse_square_root import inverse_square_root
from sim.testbenches.arith.unary_testbench import UnaryTestbench

testbench = UnaryTestbench(inverse_square_root)
