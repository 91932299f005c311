"""Testbench of the digital array: see :mod:`sim.testbenches.unicaim.array_testbench`."""

import numpy as np

from golden.unicaim.cells import row_scores
from golden.unicaim.digital_array import search
from hw.unicaim.array import ArrayParameters
from sim.testbenches.unicaim.array_testbench import ArrayTestbench


def exact_scores(
    p: ArrayParameters, keys: np.ndarray, planes: np.ndarray, context: int
) -> np.ndarray:
    """Scores of all rows, for planes [bits, d] of digits, the least significant plane first."""
    query = (planes << np.arange(len(planes))[:, None]).sum(axis=0)
    return row_scores(keys, query[None])[0]


testbench = ArrayTestbench(
    search,
    last=lambda high, p: np.arange(len(high)) == len(high) - 1,
    stoppable=False,
    scores=exact_scores,
)
