"""Tables with one column for each position, which grow by one column a step."""

import numpy as np
from numpy.typing import DTypeLike

Column = DTypeLike | tuple[DTypeLike, int]
"""An element's type, and its size if it is a vector."""


class PositionTables:
    """Named arrays [heads, positions] or [heads, positions, size], zero where not yet written.

    ``PositionTables(9, mode=np.uint8, count=(np.int64, 5))`` has ``["mode"]`` [9, n] and
    ``["count"]`` [9, n, 5]. Views are valid until the next ``append``.
    """

    def __init__(self, heads: int, **columns: Column) -> None:
        self._length, self._capacity = 0, 0
        self._arrays: dict[str, np.ndarray] = {}
        for name, column in columns.items():
            kind, *size = column if isinstance(column, tuple) else (column,)
            self._arrays[name] = np.zeros((heads, 0, *size), kind)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name][:, : self._length]

    def append(self, number: int = 1) -> None:
        """Add `number` positions."""
        if self._length + number > self._capacity:
            # Doubled, so that appending one by one takes linear time.
            self._capacity = max(16, 2 * self._capacity, self._length + number)
            for name, old in self._arrays.items():
                new = np.zeros((old.shape[0], self._capacity, *old.shape[2:]), old.dtype)
                new[:, : self._length] = old[:, : self._length]
                self._arrays[name] = new
        self._length += number
