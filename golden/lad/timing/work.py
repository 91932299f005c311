"""What decides a tile's cycles: its sizes, and what the bit-exact model finds in each job."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from golden.lad.ac import LANES
from golden.lad.lad_tile import HeadStep, LadTile, TileSizes

APID_DEPTH = 64
"""Entries of the queue of active positions."""

ACTIVE_BIT = 15
"""Bit of a word of G that says whether the position is active."""

HELD = 2
"""Heads in the pipeline."""


@dataclass(frozen=True)
class TimingSizes:
    """A tile's sizes and its pipelines' stages, as in ``LadTileParameters``."""

    sizes: TileSizes
    depth: int
    multiply_stages: int
    add_stages: int

    @cached_property
    def lanes(self) -> int:
        """Positions of a beat of APID."""
        return min(16, self.sizes.d)

    @cached_property
    def element_bits(self) -> int:
        return self.sizes.d.bit_length() - 1

    @cached_property
    def columns(self) -> int:
        """Columns of A in a lane of AC."""
        return -(-self.sizes.d // LANES)

    @cached_property
    def tree(self) -> int:
        return self.add_stages * self.element_bits

    @cached_property
    def vector(self) -> int:
        """Cycles of a VPU from an operation to its vector."""
        return self.multiply_stages + 1

    @cached_property
    def dot(self) -> int:
        """Cycles of a VPU from an operation to its dot product."""
        return self.vector + self.tree + 1

    @cached_property
    def credits(self) -> int:
        """Dot products of a VPU in flight."""
        return self.vector + self.tree + 2


@dataclass(frozen=True)
class HeadWork:
    """A head of a token.

    n
        Positions.
    head
        Number in the job.
    first
        Whether it is the first head of its kv head: it stores the new key and value.
    restart
        Its caches are empty.
    large
        Positions in M, ascending.
    centres
        Positions of the centres before the new key, ascending.
    entries, active
        Positions that leave APID, ascending, and whether each is active.
    terms
        T, of the modes that change.
    """

    n: int
    head: int
    first: bool
    restart: bool
    large: np.ndarray
    centres: np.ndarray
    entries: np.ndarray
    active: np.ndarray
    terms: int

    @classmethod
    def of(cls, step: HeadStep, head: int, first: bool, restart: bool) -> "HeadWork":
        made = step.discrepancies
        changed = made.changed
        terms = int(np.count_nonzero(made.minus[changed]) + np.count_nonzero(made.plus[changed]))
        entries, n = step.touched, step.report["n"]
        active = step.active[entries]
        return cls(n, head, first, restart, step.large, step.centres, entries, active, terms)


@dataclass(frozen=True)
class JobWork:
    """A job.

    count
        Cycles in which the tile counts the kv heads of its job.
    heads
        Heads of a token.
    ahead
        For each head of a prefetch job: the positions that were active, ascending.
    n, most
        Numbers of a prefetch job: positions of the last step, rows that are loaded for a head.
    vectors, pieces, rows
        Sizes of a linear layer.
    refused
        It does not fit.
    """

    count: int = 0
    heads: list[HeadWork] = field(default_factory=list)
    restart: bool = False
    ahead: list[np.ndarray] = field(default_factory=list)
    n: int = 0
    most: int = 0
    vectors: int = 0
    pieces: int = 0
    rows: int = 0
    refused: bool = False


def token_work(steps: list[HeadStep], heads: int, group: int, restart: bool) -> JobWork:
    """A token of these heads, of which a refused job has none."""
    if not steps:
        return JobWork(refused=True)
    works = [HeadWork.of(step, n, n % group == 0, restart) for n, step in enumerate(steps)]
    return JobWork(count_cycles(heads, group), works, restart)


def ahead_work(tile: LadTile, n: int, heads: int, group: int, most: int) -> JobWork:
    """A prefetch job, from the words of G that the last step has left."""
    if not tile.fits(n, heads, group):
        return JobWork(refused=True)
    ahead = [
        np.flatnonzero(tile.rows("g", head).reshape(-1)[:n] >> ACTIVE_BIT) for head in range(heads)
    ]
    return JobWork(count_cycles(heads, group), ahead=ahead, n=n, most=most)


def count_cycles(heads: int, group: int) -> int:
    """Cycles from a job to its first head, which count its kv heads."""
    return 1 - (-heads // group)
