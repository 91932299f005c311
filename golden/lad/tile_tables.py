"""Memory of the bit-exact model of LAD's tile, and its tables' rows, numbers and caches."""

import numpy as np

from golden.lad.ac import Caches
from golden.lad.arithmetic import Arithmetic
from golden.lad.tile_sizes import COUNT_BITS, TileSizes


class TileTables:
    """Tables of a tile in its memory, ``uint16[rows, d]``; views unless something else is said.

    memory
        What it holds at the beginning; zeros if not given.
    arithmetic
        Numbers without roundings are kept beside the memory, as float64.
    :raises ValueError: for a memory of the wrong shape or type.
    """

    def __init__(self, sizes: TileSizes, memory: np.ndarray | None, arithmetic: Arithmetic):
        shape = sizes.memory_rows, sizes.d
        self.sizes = sizes
        self.memory = memory_of(shape, memory)
        self._arithmetic = arithmetic
        if arithmetic.exact:
            self._numbers = np.zeros(shape, np.float64)
            self._caches = [Caches.zero(sizes.d, np.float64) for _ in range(sizes.heads)]

    def rows(self, table: str, part: int) -> np.ndarray:
        """A head's or kv head's part of a table: uint16[rows, d]."""
        return self._tables_of(self.memory, table, part + 1)[part]

    def numbers(self, table: str, part: int) -> np.ndarray:
        """The same as numbers [rows, d]: float16, or float64 in that arithmetic."""
        return self.all_numbers(table, part + 1)[part]

    def all_rows(self, table: str, parts: int) -> np.ndarray:
        """A table's first parts: uint16[parts, rows, d]."""
        return self._tables_of(self.memory, table, parts)

    def all_numbers(self, table: str, parts: int) -> np.ndarray:
        """The same as numbers [parts, rows, d]."""
        if self._arithmetic.exact:
            return self._tables_of(self._numbers, table, parts)
        return self.all_rows(table, parts).view(np.float16)

    def caches(self, head: int) -> Caches:
        """A head's caches A to F, a copy in FP16's arithmetic."""
        if self._arithmetic.exact:
            return self._caches[head]
        return Caches.from_rows(self.rows("cache", head)[: self.sizes.cache_rows])

    def all_caches(self, heads: int) -> Caches:
        """A copy of the first heads' caches, as one."""
        if self._arithmetic.exact:
            return Caches.stack(self._caches[:heads])
        return Caches.from_rows(self.all_rows("cache", heads)[:, : self.sizes.cache_rows])

    def set_caches(self, head: int, caches: Caches) -> None:
        """Write a head's caches."""
        if self._arithmetic.exact:
            self._caches[head] = caches
        else:
            self.rows("cache", head)[: self.sizes.cache_rows] = caches.to_rows()

    def modes(self, head: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Modes of a head's first n positions and the counts of these modes, int[n] each."""
        words = self.rows("g", head).reshape(-1)[:n].astype(np.int64)
        return words >> COUNT_BITS & 15, words & (1 << COUNT_BITS) - 1

    def _tables_of(self, memory: np.ndarray, table: str, parts: int) -> np.ndarray:
        base, stride = self.sizes.regions[table]
        return memory[base : base + parts * stride].reshape(parts, stride, -1)


def memory_of(shape: tuple[int, int], memory: np.ndarray | None) -> np.ndarray:
    """A copy of `memory`, ``uint16[rows, d]``; zeros without one.

    :raises ValueError: for a memory of another shape or type.
    """
    if memory is None:
        return np.zeros(shape, np.uint16)
    if memory.shape != shape or memory.dtype != np.uint16:
        wrong = f"{memory.dtype}{list(memory.shape)}"
        raise ValueError(f"memory must be uint16{list(shape)}, not {wrong}")
    return memory.copy()
