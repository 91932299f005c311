"""UniCAIM's algorithm, in floating point and levels of cells."""

from golden.algorithms.unicaim.attention import StaticDynamicAttention
from golden.algorithms.unicaim.selection import (
    charge_share,
    eviction_candidate,
    static_pruning,
    top_k,
)

__all__ = [
    "StaticDynamicAttention",
    "charge_share",
    "eviction_candidate",
    "static_pruning",
    "top_k",
]
