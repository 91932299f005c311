"""The rows of K and V that one layer keeps."""

import numpy as np


class KVCache:
    """Rows of K and V, one of each for a token and kv head, in slots numbered from 0.

    ``k`` and ``v`` are views [kv heads, slots in use, d] to read, and to write where a policy puts
    a new token into an old one's slot. They are valid until the next ``append``.
    """

    def __init__(self) -> None:
        self._k = self._v = np.empty((0, 0, 0))
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def k(self) -> np.ndarray:
        return self._k[:, : self._length]

    @property
    def v(self) -> np.ndarray:
        return self._v[:, : self._length]

    def append(self, k: np.ndarray, v: np.ndarray) -> None:
        """Fill the next slots: [kv heads, d] for one token, [kv heads, tokens, d] for several."""
        if k.ndim == 2:
            k, v = k[:, None], v[:, None]
        needed = self._length + k.shape[1]
        if needed > self._k.shape[1] or len(self._k) < len(k):
            # Doubled, so that appending tokens one by one takes linear time.
            capacity = max(needed, 2 * self._length)
            self._k, self._v = self._grown(self._k, k, capacity), self._grown(self._v, v, capacity)
        self._k[:, self._length : needed] = k
        self._v[:, self._length : needed] = v
        self._length = needed

    def _grown(self, old: np.ndarray, new: np.ndarray, capacity: int) -> np.ndarray:
        grown = np.empty((new.shape[0], capacity, new.shape[2]), new.dtype)
        if self._length:
            grown[:, : self._length] = old[:, : self._length]
        return grown
