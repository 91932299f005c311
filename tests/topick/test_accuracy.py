"""What a head's output is worth: the core's arithmetic against exact attention in float64.

Bounds are of docs/topick.md: the error of the largest element of o over the largest of v.
"""

import numpy as np
import pytest

from golden.algorithms.topick import TokenPickerAttention
from golden.algorithms.topick.bit_exact import sizes_for
from golden.topick.margin_generator import scale_code
from golden.topick.pe_lane import Head
from golden.topick.topick_core import attend
from hw.parameters import ParameterError
from hw.topick.core_parameters import TopickCoreParameters

LENGTHS = 1, 64, 455, 586, 820, 900, 1024, 4000, 4097, 5000, 8192
LARGEST = 8192
D = 64


def score_kinds(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Scores of n tokens, natural logarithms of weights."""
    token = np.arange(n)
    return {
        "flat": np.zeros(n),
        "normal": rng.normal(0, 2, n),
        "sharp": np.where(token == n // 2, 20.0, 0.0),
        # One token as heavy as all others together.
        "sink": np.where(token == 0, np.log(max(n - 1, 1)), 0.0),
        "two": np.where(rng.random(n) < 0.5, 0.0, -1.5),
        "offset": 500 + rng.normal(0, 2, n),
        "huge": rng.uniform(-1000, 1000, n),
    }


def arithmetic_error(scores: np.ndarray, v: np.ndarray) -> tuple[float, float]:
    """Error of the core's arithmetic on codes whose exact scores are nearly these; ``total``."""
    n = len(scores)
    z = sizes_for(4, 12, 4, n)
    unit = max(np.abs(scores).max(), 1.0) / 4e6
    q, codes = np.array([2047, 1, 0, 0]), np.rint(scores / unit).astype(np.int64)
    high = np.rint(codes / 2047).astype(np.int64)
    k = np.stack([high, codes - 2047 * high, 0 * high, 0 * high], axis=1)
    c = scale_code(unit * 2**z.fraction / np.log(2), base=z.base, scale_bits=16, shift_bits=4)
    head = Head(q, *c, (1 << z.threshold_bits) - 1, n)
    made = attend(head, k, v, np.full(n, z.chunks), np.ones(n, bool), z)
    exact = (k @ q) * (c[0] * 2.0 ** -(z.base + c[1] + z.fraction) * np.log(2))
    weight = np.exp(exact - exact.max())
    error = np.abs(made.o / made.total - weight @ v / weight.sum()).max() / np.abs(v).max()
    return float(error), made.total / 2**z.probability_bits


@pytest.mark.parametrize("n", LENGTHS)
def test_the_arithmetic_is_within_a_percent_of_exact_attention(n):
    """At every length up to the largest that `tokens` may be, whatever the scores."""
    rng = np.random.default_rng(n)
    signs = np.where(rng.random((n, 1)) < 0.5, 2047, -2047)
    v = np.hstack([np.full((n, 1), 2047), signs, rng.integers(-2047, 2048, (n, 6))])
    for kind, scores in score_kinds(n, rng).items():
        error, total = arithmetic_error(scores, v)
        # Every p is rounded by 2^-(b + 1) at most, all n of them by 2^-8 together.
        assert error < 0.01 and abs(total - 1) < 0.007, kind
        # A constant stays one: equal weights, and the sum of them all, are exact.
        assert arithmetic_error(scores, v[:, :1])[0] < 1e-12, kind


def test_the_worst_roundings_stay_within_a_percent():
    """Half the weight on one token, the others' rounded down by half a unit each."""
    n = 1024
    unit = 2.0**-17
    light = np.full(n - 1, (np.floor(0.5 / n / unit) + 0.49) * unit)
    scores = np.log(np.append(light, 1 - light.sum()))
    v = np.append(np.full(n - 1, -2047), 2047)[:, None]
    error, _ = arithmetic_error(scores, v)
    assert 0.003 < error < 0.01


OPERANDS = {"flat": 0.001, "normal": 0.001, "sharp": 0.001, "sink": 0.001, "two": 0.001}
OPERANDS |= {"offset": 0.005, "huge": 0.03}


@pytest.mark.parametrize("n", [64, 1024, 4000])
def test_with_operands_of_twelve_bits(n):
    """Of q, k and v in float64, the last query of a sequence that is not pruned."""
    rng = np.random.default_rng(n)
    for kind, scores in score_kinds(n, rng).items():
        q = rng.normal(0, 1, D)
        along = q / np.linalg.norm(q)
        k = rng.normal(0, 1, (n, D))
        k += np.outer(scores * np.sqrt(D) / np.linalg.norm(q) - k @ along, along)
        v = rng.normal(0, 1, (n, D))
        core, stored = TokenPickerAttention(0.0, bit_exact=True), 0
        while stored < n:
            stored += core._cache.append(k[None, stored:], v[None, stored:])
        o = core._attend(q[None, None])[0, 0]
        weight = np.exp(k @ q / np.sqrt(D) - (k @ q / np.sqrt(D)).max())
        exact = weight @ v / weight.sum()
        assert np.abs(o - exact).max() / np.abs(v).max() < OPERANDS[kind], kind


def test_more_tokens_than_the_denominator_can_add_are_refused():
    assert TopickCoreParameters(tokens=LARGEST).probability_bits == 20
    with pytest.raises(
        ParameterError, match="tokens must be a power of two from 2 to 8192, not 16384"
    ):
        TopickCoreParameters(tokens=2 * LARGEST)
