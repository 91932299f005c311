"""Sizes of LAD's tile and its tables in memory, as far as the bit-exact model needs them.

Neither hardware nor model may take them from the other, so :mod:`hw.lad.tile_sizes` states them
once more; `tests/lad/test_tile_sizes.py` compares the two over many parameters.
"""

from dataclasses import dataclass
from functools import cached_property

from golden.lad.tables import LineTables, line_tables

COUNT_BITS = 11
"""Bits of the count in a word of G: | count (11) | mode (4) | active (1) |."""


@dataclass(frozen=True)
class TileSizes:
    """The tile's parameters, as in :class:`hw.lad.tile_parameters.LadTileParameters`.

    ``bounds`` and ``near`` are numbers here: ascending, below 0.
    """

    d: int
    positions: int
    bounds: tuple[float, ...]
    slack: int
    identification: str
    code_bits: int
    near: float
    window: int
    heads: int
    kv_heads: int
    counter_bits: int
    updates: int
    prefetch: int = 0
    weights: int = 0

    @cached_property
    def tables(self) -> LineTables:
        return line_tables(self.bounds, self.slack)

    @property
    def counter_word_bits(self) -> int:
        """Bits of a position's counters, a power of two."""
        return 1 << (len(self.tables) * self.counter_bits - 1).bit_length()

    @property
    def counter_words(self) -> int:
        """Positions whose counters share a row."""
        return 16 * self.d // self.counter_word_bits

    @property
    def cache_rows(self) -> int:
        """Rows of a head's caches A to F."""
        return 2 * self.d + 7

    @cached_property
    def regions(self) -> dict[str, tuple[int, int]]:
        """Base address of each table and distance of its parts, in rows."""
        return {name: region[:2] for name, region in self._regions.items()}

    @property
    def memory_rows(self) -> int:
        return max(base + parts * stride for base, stride, parts in self._regions.values())

    @cached_property
    def _regions(self) -> dict[str, tuple[int, int, int]]:
        """Base address, distance and number of the parts of each table."""
        tables, kv = -(-self.positions // self.d), self.kv_heads
        sizes = {"k": (self.positions, kv), "v": (self.positions, kv)}
        if self.identification == "codes":
            sizes |= {"code": (-(-self.positions * self.code_bits // 16), kv), "unit": (tables, kv)}
        else:
            sizes |= dict.fromkeys(("norm", "dnorm", "cid"), (tables, kv))
        sizes["g"] = tables, self.heads
        sizes["counter"] = -(-self.positions // self.counter_words), self.heads
        sizes["cache"] = self.cache_rows, self.heads
        if self.weights:
            sizes["weight"] = self.weights, 1
        found, end = {}, 0
        for name, (rows, parts) in sizes.items():
            stride = 1 << (rows - 1).bit_length()
            found[name] = end, stride, parts
            end += parts * stride
        return found
