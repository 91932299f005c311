"""Work of one product of a vector [K] with a matrix [K, N] (KLLM, sections III-B and IV-C)."""

import dataclasses
from math import log2


@dataclasses.dataclass(frozen=True)
class Cost:
    """Operations of one matrix-vector product.

    dense_macs
        Operations of the index-based part: N 2^(nA + nW).
    sparse_macs
        Operations of the outliers: 2 k N.
    plain_macs
        Operations of the same product in floating point: K N.
    counts
        Increments of counters: K N, the outliers' masked ones among them.
    comparisons
        Of Orizuru: 1.5 K + 2 k log2 K, for K a power of two.
    """

    dense_macs: int
    sparse_macs: int
    plain_macs: int
    counts: int
    comparisons: float


def cost(k: int, n: int, outliers: int, activation_bits: int = 4, weight_bits: int = 4) -> Cost:
    """Cost for `outliers` at each end of the `k` activations."""
    if not 0 <= outliers <= k:
        raise ValueError(f"outliers must be between 0 and K = {k}, not {outliers}")
    return Cost(
        dense_macs=n << activation_bits + weight_bits,
        sparse_macs=2 * outliers * n,
        plain_macs=k * n,
        counts=k * n,
        comparisons=1.5 * k + 2 * outliers * log2(k),
    )
