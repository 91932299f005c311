"""Testbench of the cell array: see :mod:`sim.testbenches.unicaim.array_testbench`."""

import numpy as np

from golden.unicaim.cell_array import cell_errors, discharge, line_scores
from hw.unicaim.cell_array import CellArrayParameters
from sim.testbenches.unicaim.array_testbench import ArrayTestbench


def shown_scores(
    p: CellArrayParameters, keys: np.ndarray, planes: np.ndarray, context: int
) -> np.ndarray:
    """Scores of all rows, as their lines show them."""
    errors = np.zeros((p.contexts, p.rows, p.d, 2), np.int64)
    if p.spread_mv:
        drawn = cell_errors(p.rows * p.contexts, p.d, p.key_bits, p.spread_mv, p.seed)
        errors = drawn.reshape(errors.shape)
    return line_scores(keys, planes, errors[context], p.score_limit)


testbench = ArrayTestbench(
    discharge,
    last=lambda high, p: np.zeros(len(high), bool),
    stoppable=True,
    scores=shown_scores,
)
