"""Baselines: eviction, pruning and quantisation that the papers compare with."""

from golden.algorithms.baselines.h2o import H2OAttention
from golden.algorithms.baselines.quantised_cache import QuantisedCacheAttention
from golden.algorithms.baselines.snapkv import SnapKVAttention
from golden.algorithms.baselines.spatten import SpAttenAttention
from golden.algorithms.baselines.streaming import StreamingAttention, rope_of

__all__ = [
    "H2OAttention",
    "QuantisedCacheAttention",
    "SnapKVAttention",
    "SpAttenAttention",
    "StreamingAttention",
    "rope_of",
]
