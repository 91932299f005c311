"""Testbench of the reciprocal."""

import numpy as np

from golden.arith.reciprocal import reciprocal
from sim.testbenches.arith.unary_testbench import UnaryTestbench

testbench = UnaryTestbench(reciprocal, np.reciprocal)
