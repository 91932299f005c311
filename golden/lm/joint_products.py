"""Products of a layer on a block that multiplies the matrices of one input together."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

STEPS = (("wq", "wk", "wv"), ("wo",), ("gate", "up"), ("down",))
"""Matrices of one input, which are multiplied together: their columns follow each other."""

NORMED = (0, 2)
"""Steps whose vectors are normalised."""


class JointProducts:
    """Products of a layer by name; all products of a step are computed together.

    columns
        Number of columns of each matrix.
    product
        ``float32[vectors, columns of all matrices]`` of a step's number and
        ``float16 x [vectors, rows]``.
    """

    def __init__(
        self, columns: Mapping[str, int], product: Callable[[int, np.ndarray], np.ndarray]
    ):
        self._columns, self._product = columns, product
        self._ready: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # input and result by name

    def multiply(self, name: str, x: np.ndarray) -> np.ndarray:
        """``float32[vectors, columns]`` of ``x [vectors, rows]``."""
        given, result = self._ready.pop(name, (None, np.empty(0)))
        if given is not x:
            step = next(number for number, names in enumerate(STEPS) if name in names)
            self._ready = dict(self._together(step, x))
            _, result = self._ready.pop(name)
        return result

    def _together(self, step: int, x: np.ndarray) -> Iterator:
        """Each matrix of a step with the input and its result."""
        o, first = self._product(step, x.astype(np.float16)), 0
        for name in STEPS[step]:
            columns = self._columns[name]
            yield name, (x, o[:, first : first + columns])
            first += columns
