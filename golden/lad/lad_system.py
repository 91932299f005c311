"""Bit-exact model of several of LAD's tiles on one memory port."""

import dataclasses

import numpy as np

from golden.attention.decode_core import fits
from golden.lad.lad_tile import HeadStep, LadTile, TileSizes
from golden.lad.tile_tables import memory_of


class LadSystem:
    """Tiles and their memory, ``uint16[rows, d]``: kv head k is in tile k mod `tiles`.

    sizes
        Sizes of the system: ``heads`` and ``kv_heads`` of all tiles. :attr:`tile_sizes` has a
        tile's.
    tiles
        1 to ``sizes.kv_heads``.
    memory
        What it holds at the beginning; zeros if not given.
    :raises ValueError: for a memory of the wrong shape or type, and another number of tiles.
    """

    def __init__(self, sizes: TileSizes, tiles: int, memory: np.ndarray | None = None):
        if not 1 <= tiles <= sizes.kv_heads:
            raise ValueError(f"tiles must be between 1 and {sizes.kv_heads}, not {tiles}")
        self.sizes = sizes
        kv_heads = -(-sizes.kv_heads // tiles)
        heads = min(sizes.heads, kv_heads * -(-sizes.heads // sizes.kv_heads))
        self.tile_sizes = dataclasses.replace(sizes, heads=heads, kv_heads=kv_heads)
        used = self.tile_sizes.memory_rows
        self.tile_rows = 1 << (used - 1).bit_length()
        self._memory = memory_of((tiles * self.tile_rows, sizes.d), memory)
        parts = self._memory.reshape(tiles, self.tile_rows, sizes.d)
        self.tiles = [LadTile(self.tile_sizes, part[:used]) for part in parts]

    def reset(self) -> None:
        """As the hardware's reset, which leaves the memory as it is."""
        for tile in self.tiles:
            tile.reset()

    @property
    def memory(self) -> np.ndarray:
        """Tile t's rows begin at t * ``tile_rows``; those after its tables are never written."""
        parts = self._memory.reshape(len(self.tiles), self.tile_rows, self.sizes.d)
        for part, tile in zip(parts, self.tiles, strict=True):
            part[: len(tile.memory)] = tile.memory
        return self._memory

    def step(
        self,
        n: int,
        heads: int,
        group: int,
        restart: bool,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
    ) -> list[HeadStep]:
        """A job: queries float16[heads, d] and the new rows float16[kv heads, d] of K and V.

        The results are in the order of the heads; a refused job has none.
        """
        if not self.fits(1 if restart else n, heads, group):
            return []
        shares = self.shares(heads, group)
        found: dict[int, HeadStep] = {}
        for number, (tile, chosen) in enumerate(zip(self.tiles, shares, strict=True)):
            if chosen:
                rows = slice(number, None, len(self.tiles))
                made = tile.step(n, len(chosen), group, restart, q[chosen], k[rows], v[rows])
                found |= dict(zip(chosen, made, strict=True))
        return [found[head] for head in sorted(found)]

    def prefetch(self, n: int, heads: int, group: int, most: int) -> None:
        """Load rows of at most `most` active positions of each head for the next step.

        A job that does not fit is refused and changes nothing.

        n
            Positions of the last step.
        """
        shares = self.shares(heads, group) if self.fits(n, heads, group) else []
        for tile, chosen in zip(self.tiles, shares, strict=bool(shares)):
            if chosen:
                tile.prefetch(n, len(chosen), group, most)

    def fits(self, n: int, heads: int, group: int) -> bool:
        """Whether a job of `n` positions and these heads is accepted, not refused."""
        if not self.numbers_fit(n, heads, group):
            return False
        return max(map(len, self.shares(heads, group))) <= self.tile_sizes.heads

    def numbers_fit(self, n: int, heads: int, group: int) -> bool:
        """The same, but for the heads of each tile."""
        size = self.sizes
        known = 1 <= n <= size.positions and group <= self.tile_sizes.heads
        return known and fits(heads, group, size.heads, size.kv_heads)

    def shares(self, heads: int, group: int) -> list[list[int]]:
        """Each tile's heads of a job, ascending."""
        count = len(self.tiles)
        return [[h for h in range(heads) if h // group % count == t] for t in range(count)]
