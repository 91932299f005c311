"""Bench of the square root."""

import numpy as np

from golden.arith.square_root import square_root
from sim.benches.arith.unary_bench import UnaryBench

bench = UnaryBench(square_root, np.sqrt)
