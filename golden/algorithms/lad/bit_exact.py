"""Locality aware attention in the arithmetic of the accelerator's tile."""

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from golden.lad.lad_tile import HeadStep, LadTile, TileSizes

COUNTER_BITS = 11
"""Width of the tile's counters."""


@dataclass
class TileCounts:
    """Sums over steps and query heads, of the tile's reports."""

    steps: int = 0
    reports: dict[str, int] = field(default_factory=dict)
    invalid: int = 0

    def add(self, heads: list[HeadStep]) -> None:
        self.steps += len(heads)
        for head in heads:
            self.invalid += head.invalid
            for name, number in head.report.items():
                self.reports[name] = self.reports.get(name, 0) + number


class TileSteps:
    """A layer's steps on :class:`golden.lad.lad_tile.LadTile`.

    q is scaled, then q, k and v are rounded to FP16 and padded to a power of two of elements, 8 or
    more. The memory grows with the sequence, which changes no result.

    slack
        Rounded to units of 2^-16.
    """

    def __init__(
        self,
        bounds: tuple[float, ...],
        window: int,
        identification: str,
        near: float,
        code_bits: int,
        slack: float,
        positions: int,
    ):
        self._sizes = TileSizes(
            d=8,
            positions=positions,
            heads=1,
            kv_heads=1,
            bounds=tuple(bounds),
            slack=round(slack * 2**16),
            identification=identification,
            code_bits=code_bits,
            near=near,
            window=window,
            counter_bits=COUNTER_BITS,
            updates=window,
        )
        self._positions = positions
        self._tile: LadTile | None = None
        self.n = 0
        self.counts = TileCounts()

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """o float16[heads, d], and the rows of V that each head needs, bool[heads, n]."""
        d = max(8, 1 << (q.shape[1] - 1).bit_length())
        if self._tile is None:
            sizes = dataclasses.replace(self._sizes, d=d, heads=len(q), kv_heads=len(k))
            self._tile = LadTile(sizes)
        self.n += 1
        if self.n > self._positions:
            raise ValueError(f"positions must be at least {self.n}, not {self._positions}")
        half = [np.pad(x, ((0, 0), (0, d - x.shape[1]))).astype(np.float16) for x in (q, k, v)]
        heads = self._tile.step(self.n, len(q), len(q) // len(k), self.n == 1, *half)
        self.counts.add(heads)
        active = np.stack([head.active for head in heads])
        return np.stack([head.o for head in heads])[:, : q.shape[1]], active
