"""Bench of the exponential function."""

import numpy as np

from golden.arith.exp import exp
from sim.benches.arith.unary_bench import UnaryBench

bench = UnaryBench(exp, np.exp)
