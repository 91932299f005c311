"""Bench of the natural logarithm."""

import numpy as np

from golden.arith.log import log
from sim.benches.arith.unary_bench import UnaryBench

bench = UnaryBench(log, np.log)
