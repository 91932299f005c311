"""Testbench of piecewise linear functions."""

import dataclasses

import numpy as np
from amaranth.hdl import Shape

from golden.arith.formats import from_bits, to_bits
from golden.arith.piecewise_linear import lines_of, piecewise_linear
from sim.testbenches.arith.datapath_testbench import DatapathTestbench


def golden(p, x):
    lines = lines_of(dataclasses.astuple(p.lines), x.dtype)
    y, interval = piecewise_linear(x, *lines, flush_subnormals=p.flush_subnormals)
    return {"y": y, "interval": interval}


class PiecewiseLinearTestbench(DatapathTestbench):
    """Random operands: neighbours of the bounds first, then every value of the format, shuffled."""

    def draw(self, parameters, trace, vectors, seed):
        values, notes = super().draw(parameters, trace, vectors, seed)
        if trace is None:
            bits = to_bits(values["x"])
            near = np.array(parameters.lines.bounds)[:, None] + np.arange(-2, 3)
            every = np.random.default_rng(seed).permutation(1 << min(8 * bits.itemsize, 16))
            chosen = np.resize(np.concatenate([near.ravel(), every]), vectors)
            if 8 * bits.itemsize > 16:  # too many values: random ones instead
                chosen = np.concatenate([near.ravel(), bits])[:vectors]
            values["x"] = from_bits(chosen, values["x"].dtype)
        return values, notes


testbench = PiecewiseLinearTestbench(
    operands=lambda p: {"x": p.format},
    results=lambda p: {"y": p.format, "interval": Shape.cast(range(p.intervals))},
    golden=golden,
)
