"""Testbench of the digital array: see :mod:`sim.testbenches.unicaim.array_testbench`."""

import numpy as np

from golden.unicaim.cell_array import Search
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


def bitwise(p: ArrayParameters, scores: np.ndarray, used: np.ndarray, k: int) -> Search:
    """A search bit by bit."""
    high, too_many = search(scores, used, k, p.score_limit)
    last = np.arange(len(high)) == len(high) - 1
    return Search(high, too_many, last, np.zeros(len(high), bool))


testbench = ArrayTestbench(bitwise, exact_scores)
