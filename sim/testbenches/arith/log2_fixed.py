"""Testbench of binary logarithms."""

import numpy as np
from amaranth.hdl import unsigned

from golden.arith.log2_fixed import log2_fixed
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.arith.operands import random_integers


def golden(p, x):
    named = {name: getattr(p, name) for name in ("width", "precision", "output", "rounding")}
    return {"y": log2_fixed(x, **named)}


def integers(bits, signed, count, rng):
    """Every other integer has few bits set, so that each bit is once alone in finding the first."""
    dense = random_integers(bits, signed, count, rng)
    first = 1 << rng.integers(0, bits, count)
    few = rng.integers(0, first) & rng.integers(0, first) & rng.integers(0, first)
    few = np.where(rng.integers(0, 2, count) == 0, few, 0)
    return np.where(rng.integers(0, 2, count) == 0, dense, first | few)


testbench = DatapathTestbench(
    operands=lambda p: {"x": unsigned(p.width)},
    results=lambda p: {"y": unsigned(p.result_width)},
    golden=golden,
    exact=lambda p, x: np.log2(x) * 2**p.output,
    integers=integers,
)
