"""Testbench of functions of one floating-point number."""

import ml_dtypes
import numpy as np

from golden.arith.formats import DTYPES, from_bits
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.arith.operands import corners


class UnaryTestbench(DatapathTestbench):
    """Random operands: all corner cases first, then every number of the format, shuffled.

    golden
        ``golden(x, flush_subnormals=...)``.
    """

    def __init__(self, golden):
        super().__init__(
            operands=lambda p: {"x": p.format},
            results=lambda p: {"o": p.format},
            golden=lambda p, x: {"o": golden(x, flush_subnormals=p.flush_subnormals)},
        )

    def default_vectors(self, parameters) -> int:
        return 2000

    def draw(self, parameters, trace, vectors, seed):
        if trace is not None:
            return super().draw(parameters, trace, vectors, seed)
        rng = np.random.default_rng(seed)
        dtype = DTYPES[parameters.format]
        info = ml_dtypes.finfo(dtype)
        # NaNs and subnormal numbers of both signs with a single bit set in the mantissa.
        single, fields = 1 << np.arange(info.nmant), 1 << (info.bits - 1 - info.nmant)
        upper = np.array([0, fields - 1, fields, 2 * fields - 1])
        marked = from_bits((upper[:, None] << info.nmant | single).ravel(), dtype)
        edges = rng.permutation(np.concatenate([marked, corners(dtype)]))
        if info.bits <= 16:
            others = rng.permutation(1 << info.bits)
        else:
            others = rng.integers(0, 1 << info.bits, vectors)
        drawn = np.concatenate([edges, from_bits(others, dtype)])
        return {"x": np.resize(drawn, vectors)}, []
