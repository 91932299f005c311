"""Testbench of the request and prune decision unit.

Every other denominator is close to where the decision changes.
"""

import numpy as np
from amaranth.hdl import signed, unsigned

from golden.topick.rpdu import prune
from sim.testbenches.arith.datapath_testbench import DatapathTestbench, limits


def golden(p, t, most, threshold, log_denominator, known, last):
    options = {"threshold_bits": p.threshold_bits}
    pruned = prune(t, most, threshold, log_denominator, known, **options)
    return {"prune": pruned, "request": ~pruned & (last == 0), "keep": ~pruned & (last != 0)}


class RpduTestbench(DatapathTestbench):
    def draw(self, parameters, trace, vectors, seed):
        values, notes = super().draw(parameters, trace, vectors, seed)
        rng = np.random.default_rng(seed)
        # In every eighth operation the threshold means 0, which prunes nothing.
        zero = rng.integers(0, 8, vectors) == 0
        values["threshold"] = np.where(
            zero, (1 << parameters.threshold_bits) - 1, values["threshold"]
        )
        met = values["t"] + values["most"] + values["threshold"]
        near = met + rng.integers(-1, 3, vectors)
        low, high = limits(signed(parameters.width))
        chosen = (rng.integers(0, 2, vectors) == 0) & (near >= low) & (near <= high)
        values["log_denominator"] = np.where(chosen, near, values["log_denominator"])
        if notes:
            notes.append("Every other denominator is moved to where the decision changes.")
        return values, notes


testbench = RpduTestbench(
    operands=lambda p: {
        "t": signed(p.width),
        "most": unsigned(p.margin_bits),
        "threshold": unsigned(p.threshold_bits),
        "log_denominator": signed(p.width),
        "known": unsigned(1),
        "last": unsigned(1),
    },
    results=lambda p: dict.fromkeys(("prune", "request", "keep"), unsigned(1)),
    golden=golden,
)
