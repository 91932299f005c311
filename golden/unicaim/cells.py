"""Levels of the ferroelectric cells and the score of a row (UniCAIM, section III-B2, Figs. 5, 6).

A cell stores one signed key element as a pair of complementary threshold voltages and multiplies it
by one signed query digit, +1, 0 or -1. With ``bits`` of 3 the pair takes the keys -4 .. +4
quarters, in general -L .. +L parts of L = 2^(bits - 1); the paper calls nine levels 3-bit. A query
of several bits is expanded bitwise: bit b of its magnitude, with its sign, drives the cells as one
plane of digits, and plane b has the weight 2^b.

The unit of a score is one key level (a quarter for 3 bits) times one query level, so a row of d
cells scores between -L d and +L d for a query of one bit: -512 .. 512 for 3-bit cells and d = 128.
"""

import numpy as np

KEY_SPAN = 4.0
"""The highest key level stands for this many root mean squares of keys as they are.

The paper does not say how real keys meet the levels. A span of 2 keeps more of the true 64 nearest
rows and is further above the noise of ``golden.algorithms.unicaim.spread``, but it clips the
few large elements on which the very nearest rows depend: 4 gives the better perplexity, the more so
the fewer bits the query has.
"""


def key_limit(bits: int) -> int:
    """The highest key level, 4 for 3 bits."""
    return 1 << (bits - 1)


def query_limit(bits: int) -> int:
    """The highest query level: 1, 3, 7 for 1, 2, 3 bits."""
    return (1 << bits) - 1


def score_limit(d: int, key_bits: int, query_bits: int) -> int:
    """The largest magnitude of a row's score; 512 for d = 128, 3-bit keys and 1-bit queries."""
    return d * key_limit(key_bits) * query_limit(query_bits)


def rotated_key_span(bits: int) -> float:
    """What replaces ``KEY_SPAN`` for rotated keys: 2.5 for 3 bits, 4 for 6.

    Their elements are nearly Gaussian, so few are clipped by a lower span. The more levels, the
    less a higher one costs.
    """
    return 1 + bits / 2


def key_step(k: np.ndarray, bits: int, span: float = KEY_SPAN) -> np.ndarray:
    """The value of one key level in each kv head: from keys [kv heads, rows, d], [kv heads].

    The highest level is ``span`` root mean squares of the keys, but one level is never more than
    one of them. All rows of an array share the step, because a search compares their scores; 1
    where keys are all 0.
    """
    return _step(k, min(span / key_limit(bits), 1), axes=(-2, -1))


def query_step(q: np.ndarray, bits: int) -> np.ndarray:
    """The value of one query level in each of ``q`` [..., d]: [...]; 1 for a query of zeros.

    The highest level is ``bits`` root mean squares of that query. A query's own step does not
    matter to the search, which compares scores of all rows for the same query.
    """
    return _step(q, bits / query_limit(bits), axes=(-1,))


def key_levels(k: np.ndarray, step: np.ndarray, bits: int) -> np.ndarray:
    """Keys [kv heads, ..., d] to the nearest level, half to even, clipped: ``int16``, as shaped."""
    limit = key_limit(bits)
    step = step.reshape(-1, *[1] * (k.ndim - 1))
    return np.clip(np.rint(k / step), -limit, limit).astype(np.int16)


def query_levels(q: np.ndarray, bits: int) -> np.ndarray:
    """Queries [..., d] as nearest levels of their steps, half to even, clipped: ``int16``."""
    limit = query_limit(bits)
    return np.clip(np.rint(q / query_step(q, bits)[..., None]), -limit, limit).astype(np.int16)


def query_planes(levels: np.ndarray, bits: int) -> np.ndarray:
    """Bitwise expansion of query levels [..., d]: digits +1, 0, -1 in planes, [bits, ..., d].

    The levels are the sum of 2^b times plane b.
    """
    places = np.arange(bits).reshape(-1, *[1] * levels.ndim)
    return (np.sign(levels) * ((np.abs(levels) >> places) & 1)).astype(np.int16)


def row_scores(keys: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Scores of key levels [..., rows, d] for query levels [..., queries, d], as exact integers.

    Returns ``int64[..., queries, rows]``, in the unit named at the top of this file.
    """
    return queries.astype(np.int64) @ np.swapaxes(keys.astype(np.int64), -1, -2)


def converter_codes(scores: np.ndarray, limit: int, bits: int) -> tuple[np.ndarray, int]:
    """Codes of ``scores``, which are within ``limit``, from converters of ``bits`` bits.

    Returns the codes, -2^(bits - 1) and up, and the number of units of a score for each code: the
    smallest power of two with which all scores but the highest have a code. That is 1 for 10 bits
    and the paper's scores of -512 .. 512, of which 512 reads as 511. Rounds to the nearest code,
    half up, as ``golden.unicaim.sar_adc`` does.
    """
    half = 1 << (bits - 1)
    unit = 1 << max((limit - 1).bit_length() - (bits - 1), 0)
    return np.clip(np.floor(scores / unit + 0.5), -half, half - 1).astype(np.int64), unit


def _step(x: np.ndarray, share: float, axes: tuple[int, ...]) -> np.ndarray:
    step = share * np.sqrt(np.mean(np.square(x), axis=axes))
    return np.where(step > 0, step, 1).astype(x.dtype)
