"""Cycles of a product on the core, once its pipeline is full (section IV-A).

A set of `lanes` columns takes the longer of two steps that overlap: counting, T cycles, and the
reduction of the bins in use, G' cycles.

    T  = sum over the column's words of max(1, ceil(outliers in the word / R))
    G' = ceil(lines 2^nW / MACs)

``golden.kllm.cycles`` has the latencies too and is the RTL's own model, cycle for cycle.
"""

import dataclasses
from functools import lru_cache

import numpy as np

from golden.algorithms.kllm.quantize import outlier_count

DRAWN_WORDS = 16000
"""With outliers at random positions, which a column's mean is taken over: 2000 of the paper's."""


@dataclasses.dataclass(frozen=True)
class Core:
    """A core; the paper's by default (Table I).

    counters
        Counters of 16 inputs in a lane: a memory word has W = 16 counters positions of a column.
    macs
        Bins that a lane reduces in a cycle.
    entries
        R: outliers that a lane multiplies in a cycle. The paper does not state it.
    tile
        Longest column. Longer ones take a product for each tile, which FP32 partial sums join.
    integer_queries
        Queries are integers as scores are; in the paper they are K-Means indices.
    share
        Share of a vector's values that are outliers, both ends together.
    bandwidth
        Bandwidth of the memory, in bytes a second; infinite: one that always keeps up.
    clock
        In Hz.
    """

    lanes: int = 16
    counters: int = 32
    macs: int = 32
    entries: int = 8
    activation_bits: int = 4
    weight_bits: int = 4
    tile: int = 4096
    integer_queries: bool = False
    share: float = 0.01
    bandwidth: float = float("inf")
    clock: float = 500e6

    def __post_init__(self) -> None:
        for name in ("lanes", "counters", "macs", "entries", "tile"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("activation_bits", "weight_bits"):
            if not 1 <= getattr(self, name) <= 8:
                raise ValueError(f"{name} must be 1 to 8, not {getattr(self, name)}")
        if not 0 <= self.share <= 1:
            raise ValueError(f"the share of outliers must be 0 to 1, not {self.share}")
        for name in ("bandwidth", "clock"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")

    @property
    def word(self) -> int:
        """W: positions of a memory word."""
        return 16 * self.counters

    @property
    def word_bytes(self) -> int:
        """Bytes of a word for every lane: what counting one word a cycle needs from the memory."""
        return -(-self.lanes * self.word * self.weight_bits // 8)

    def groups(self, integer: bool) -> int:
        """G': cycles to reduce the bins in use. An integer vector has a line for each bit."""
        lines = self.activation_bits if integer else 1 << self.activation_bits
        return -(-(lines << self.weight_bits) // self.macs)


@dataclasses.dataclass(frozen=True)
class Product:
    """Vectors [K] times one matrix [K, N].

    integer
        The vectors are integers and have no outliers: attention scores (section III-B2).
    vectors
        Vectors that share each column that is read.
    """

    k: int
    n: int
    integer: bool = False
    vectors: int = 1


def memory_words(core: Core, k: int) -> list[list[int]]:
    """Positions of each memory word of each tile of a column of `k`."""
    tiles = []
    for first in range(0, k, core.tile):
        length = min(core.tile, k - first)
        tiles.append([min(core.word, length - at) for at in range(0, length, core.word)])
    return tiles


def step_rows(outliers: np.ndarray, entries: int) -> np.ndarray:
    """Rows of words with `outliers` each: cycles to count them."""
    return np.maximum(1, -(-outliers // entries))


@lru_cache(maxsize=1024)
def column_cycles(core: Core, k: int, integer: bool = False) -> float:
    """Cycles of a set of columns of `k`: mean over random positions of the outliers."""
    tiles = memory_words(core, k)
    groups = core.groups(integer)
    outliers = 0 if integer else min(k, 2 * outlier_count(k, core.share))
    if outliers == 0:
        return float(sum(max(len(words), groups) for words in tiles))
    sizes = [size for words in tiles for size in words]
    drawn = np.random.default_rng(0).multivariate_hypergeometric(
        sizes, outliers, max(50, DRAWN_WORDS // len(sizes)), method="marginals"
    )
    rows = step_rows(drawn, core.entries)
    firsts = np.cumsum([0] + [len(words) for words in tiles[:-1]])
    return float(np.maximum(np.add.reduceat(rows, firsts, axis=1), groups).sum(axis=1).mean())


def cycles(core: Core, product: Product) -> float:
    """Cycles of a product: of its computation or of its memory, whichever takes longer."""
    sets = -(-product.n // core.lanes)
    computed = sets * product.vectors * column_cycles(core, product.k, product.integer)
    return max(computed, product_bytes(core, product) / core.bandwidth * core.clock)


def product_bytes(core: Core, product: Product) -> int:
    """Bytes read: all words of each set of columns once, and an FP16 scale for each column."""
    sets = -(-product.n // core.lanes)
    full, rest = divmod(product.k, core.tile)
    words = full * -(-core.tile // core.word) + -(-rest // core.word)
    return sets * words * core.word_bytes + 2 * product.n
