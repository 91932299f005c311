"""Testbench of division."""

import ml_dtypes
import numpy as np

from golden.arith.divide import divide
from golden.arith.formats import DTYPES, from_bits
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.strategies import sometimes


class DivideTestbench(DatapathTestbench):
    """A sixth of the random operands are subnormal, with their highest one in any position."""

    def draw(self, parameters, trace, vectors, seed):
        values, notes = super().draw(parameters, trace, vectors, seed)
        if trace is None:
            rng = np.random.default_rng([seed, vectors])
            bits = ml_dtypes.finfo(DTYPES[parameters.format]).nmant
            for port, drawn in values.items():
                small = rng.integers(0, 1 << bits, vectors) >> rng.integers(0, bits, vectors)
                subnormal = sometimes(rng, 1 / 6, vectors)
                values[port] = np.where(subnormal, from_bits(small, parameters.format), drawn)
        return values, notes


testbench = DivideTestbench(
    operands=lambda p: {"a": p.format, "b": p.format},
    results=lambda p: {"o": p.format},
    golden=lambda p, a, b: {"o": divide(a, b, flush_subnormals=p.flush_subnormals)},
)
