"""Golden models of UniCAIM."""

from golden.unicaim.attention import StaticDynamicAttention
from golden.unicaim.selection import charge_share, eviction_candidate, static_pruning, top_k

__all__ = [
    "StaticDynamicAttention",
    "charge_share",
    "eviction_candidate",
    "static_pruning",
    "top_k",
]
