"""Bench of the reciprocal."""

import numpy as np

from golden.arith.reciprocal import reciprocal
from sim.benches.arith.unary_bench import UnaryBench

bench = UnaryBench(reciprocal, np.reciprocal)
