"""Bit-exact model of several of LAD's tiles on one memory port."""

import dataclasses

import numpy as np

from golden.lad.lad_tile import HeadStep, LadTile, TileSizes


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
        used = self.tile_sizes.layout["end"][0]
        self.tile_rows = 1 << (used - 1).bit_length()
        shape = tiles * self.tile_rows, sizes.d
        if memory is not None and (memory.shape != shape or memory.dtype != np.uint16):
            wrong = f"{memory.dtype}{list(memory.shape)}"
            raise ValueError(f"memory must be uint16{list(shape)}, not {wrong}")
        self._memory = np.zeros(shape, np.uint16) if memory is None else memory.copy()
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

        The results are in the order of the heads.
        """
        shares, group = self.shares(heads, group)
        found: dict[int, HeadStep] = {}
        for number, (tile, chosen) in enumerate(zip(self.tiles, shares, strict=True)):
            if chosen:
                rows = slice(number, None, len(self.tiles))
                made = tile.step(n, len(chosen), group, restart, q[chosen], k[rows], v[rows])
                found |= dict(zip(chosen, made, strict=True))
        return [found[head] for head in sorted(found)]

    def prefetch(self, n: int, heads: int, group: int, most: int) -> None:
        """Load rows of at most `most` active positions of each head for the next step.

        n
            Positions of the last step.
        """
        shares, group = self.shares(heads, group)
        for tile, chosen in zip(self.tiles, shares, strict=True):
            if chosen:
                tile.prefetch(n, len(chosen), group, most)

    def shares(self, heads: int, group: int) -> tuple[list[list[int]], int]:
        """Each tile's heads of a job, ascending, and the heads of a kv head.

        Numbers out of range count as 1, and so does `heads` if they are more than fit.
        """
        group = group if 1 <= group <= self.tile_sizes.heads else 1
        heads = heads if 1 <= heads <= self.sizes.heads else 1
        found = self._divide(heads, group)
        fits = all(len(share) <= self.tile_sizes.heads for share in found)
        if fits and -(-heads // group) <= self.sizes.kv_heads:
            return found, group
        return self._divide(1, group), group

    def _divide(self, heads: int, group: int) -> list[list[int]]:
        count = len(self.tiles)
        return [[h for h in range(heads) if h // group % count == t] for t in range(count)]
