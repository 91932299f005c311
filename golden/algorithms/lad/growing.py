"""Tables with one column for each position, which grow by one column a step."""

import numpy as np


class Growing:
    """Named arrays [heads, positions] or [heads, positions, size], zero where not yet written.

    ``Growing(9, mode=np.uint8, count=(np.int64, 5))`` has ``["mode"]`` [9, n] and ``["count"]``
    [9, n, 5]. Views are valid until the next ``append``.
    """

    def __init__(self, heads: int, **columns: type | tuple[type, int]) -> None:
        self._length, self._room = 0, 0
        self._arrays = {}
        for name, column in columns.items():
            kind, *size = column if isinstance(column, tuple) else (column,)
            self._arrays[name] = np.zeros((heads, 0, *size), kind)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name][:, : self._length]

    def append(self) -> None:
        """One more position."""
        if self._length == self._room:
            # Doubled, so that appending one by one stays cheap.
            self._room = max(16, 2 * self._room)
            for name, old in self._arrays.items():
                new = np.zeros((old.shape[0], self._room, *old.shape[2:]), old.dtype)
                new[:, : self._length] = old
                self._arrays[name] = new
        self._length += 1
