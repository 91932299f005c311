"""Testbench of the exponential function."""

import numpy as np

from golden.arith.exp import exp
from sim.testbenches.arith.unary_testbench import UnaryTestbench

testbench = UnaryTestbench(exp, np.exp)
