"""The paper's machine and models, and its figures of speed (LAD, IV, V)."""

import dataclasses
import itertools
from collections.abc import Sequence

from hw.lad.system_parameters import TILES

MACS_PER_S = TILES * 7 * 128 * 1e9
"""The paper's six tiles: seven VPUs of 128 multipliers at 1 GHz."""
BYTES_PER_S = 5 * 16 * 19.2e9
"""Five cubes of 16 channels (V-A)."""
HIT = 0.8
"""Share of the active positions that are loaded before attention, at best (IV-D)."""
GROUPS = (512, 1024, 1536, 2048), (2560, 3072, 3584, 4096)
"""Positions of the paper's groups 1 and 2 of test cases."""
LATENCY = (0.78, 0.79), (0.52, 0.56)
"""LAD's share of the ideal accelerator's latency in each group (Fig. 8, right)."""
ATTENTION = (5.8, 6.2, 6.2), (7.1, 10.0, 10.7)
"""Attention beside a GPU of the same memory bandwidth in each group, by SRAM (Fig. 7)."""
SPEEDUP = tuple((min(of), max(of)) for of in ATTENTION)
"""The least and the most of these."""
GROWTH = 0.03
"""By which attention's share of the latency grows from 512 to 4096 positions."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of the paper.

    wide, matrices
        Width of the feed-forward layers, and how many matrices they have.
    longest
        Positions at most.
    """

    layers: int
    size: int
    heads: int
    wide: int
    matrices: int
    words: int
    longest: int

    @property
    def d(self) -> int:
        return self.size // self.heads

    @property
    def products(self) -> int:
        """Multiplications of a token outside attention."""
        layer = 4 * self.size**2 + self.matrices * self.size * self.wide
        return self.layers * layer + self.words * self.size

    def ideal(self, n: int, share: float = 1) -> tuple[float, float]:
        """Seconds of a token: products at all multipliers, and attention at full bandwidth.

        share
            Rows moved, of the 2 n rows that dense attention reads for each head.
        """
        rows = 2 * n * self.layers * self.heads * share
        return self.products / MACS_PER_S, rows * self.d * 2 / BYTES_PER_S


MODELS = {
    "OPT 2.7B": Model(32, 2560, 32, 10240, 2, 50272, 2048),
    "OPT 6.7B": Model(32, 4096, 32, 16384, 2, 50272, 2048),
    "LLaMA2 7B": Model(32, 4096, 32, 11008, 3, 32000, 4096),
    "LLaMA2 13B": Model(40, 5120, 40, 13824, 3, 32000, 4096),
}


def cases(group: Sequence[int]) -> list[tuple[Model, int]]:
    """Models and positions of a group, as far as the models have these."""
    pairs = itertools.product(MODELS.values(), group)
    return [(model, n) for model, n in pairs if n <= model.longest]
