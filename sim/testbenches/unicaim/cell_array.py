"""Testbench of the cell array: see :mod:`sim.testbenches.unicaim.array_testbench`."""

import functools

import numpy as np

from golden.unicaim.cell_array import CellArray, Search
from hw.unicaim.cell_array import CellArrayParameters
from sim.testbenches.unicaim.array_testbench import ArrayTestbench


@functools.lru_cache(maxsize=4)
def model(p: CellArrayParameters) -> CellArray:
    return CellArray(p, p.contexts)


def shown_scores(
    p: CellArrayParameters, keys: np.ndarray, planes: np.ndarray, context: int
) -> np.ndarray:
    """Scores of all rows, as their lines show them."""
    return model(p).scores(context, keys, planes)


def race(p: CellArrayParameters, scores: np.ndarray, used: np.ndarray, k: int) -> Search:
    """A discharge."""
    return model(p).search(scores, used, k)


testbench = ArrayTestbench(race, shown_scores)
