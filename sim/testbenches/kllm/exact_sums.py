"""Operands for KLLM's testbenches that make low-order bits of sums and products observable."""

import functools

import numpy as np

from sim.testbenches.strategies import sometimes

LARGEST = 65504.0


def any_number(low: int, high: int, rng: np.random.Generator) -> float:
    """A number of either sign and exponent `low` to `high` - 1, mostly with few ones."""
    few = 1 + sum(int(rng.integers(0, 2)) * 2.0 ** -int(rng.integers(1, 45)) for _ in range(2))
    significand = few if sometimes(rng, 0.75) else rng.uniform(1, 2)
    return float(rng.choice([-1, 1])) * significand * 2.0 ** int(rng.integers(low, high))


def terms_for(weights: np.ndarray, total: float) -> np.ndarray:
    """``float16`` terms with sum of term * weight close to `total`, chosen greedily.

    weights
        Finite numbers; a weight of 0 has no term.
    """
    terms = np.zeros(len(weights), np.float16)
    for number, weight in enumerate(np.asarray(weights, np.float64)):
        if weight and np.isfinite(total):
            terms[number] = np.clip(total / weight, -LARGEST, LARGEST)
            total -= float(terms[number]) * weight
    return terms


@functools.cache
def double_ties() -> np.ndarray:
    """``int64[N, 3]``: v, a, b whose product is a tie of FP32 next to a tie of FP16.

    a and b are significands of FP16, 1024 to 2047. The tie of FP32 is half a unit above or below
    a number halfway between two of FP16, so the smallest error of the product changes the result.
    """
    a, b = np.meshgrid(np.arange(1024, 2048), np.arange(1024, 2048))
    found = []
    for v in (9, 11, 13, 15, 25, 43):
        product = v * a * b
        places = np.frexp(product.astype(np.float64))[1] - 1  # of the leading one
        off = np.abs((product & (1 << places - 10) - 1) - (1 << places - 11))
        hit = off == 1 << places - 24
        found.append(np.stack([np.full(hit.sum(), v), a[hit], b[hit]], axis=1))
    return np.concatenate(found)


def numbers(kind: int, shape, rng: np.random.Generator) -> np.ndarray:
    """FP16: about 1, of any size, subnormal and small, or anything with infinities and NaNs."""
    bits = rng.integers(0, 1 << 16, shape)
    if kind == 0:
        return np.asarray(rng.standard_normal(shape)).astype(np.float16)
    if kind == 1:
        bits = bits & 0xBFFF
    elif kind == 2:
        bits = bits & 0x8FFF
    else:
        bits = np.where(sometimes(rng, 0.97, shape), bits & 0xBFFF, bits | 0x7C00)
    return np.asarray(bits).astype(np.uint16).view(np.float16)


def scales_near_ties(total: np.ndarray, r, rng: np.random.Generator) -> np.ndarray:
    """A column scale for each sum that brings ``total r scale`` into range, near a rounding tie."""
    tries = np.concatenate([numbers(kind, (512, len(total)), rng) for kind in (0, 1)])
    y = total.astype(np.float64) * np.float64(r) * tries
    off = np.abs(y / np.spacing(y.astype(np.float16)).astype(np.float64) % 1 - 0.5)
    usual = (np.abs(y) > 2.0**-14) & (np.abs(y) < 65504)
    best = np.where(usual, off, 1).argmin(axis=0)
    return tries[best, np.arange(len(total))]


def outliers_of_sum(centroids: np.ndarray, outlier: np.ndarray, total: float) -> np.ndarray:
    """FP16 values, 0 but at outliers, whose products with the centroids sum to about `total`."""
    finite = np.nan_to_num(centroids[outlier].astype(np.float64), posinf=0, neginf=0)
    value = np.zeros(len(outlier), np.float16)
    value[outlier] = terms_for(finite, total)
    return value
