"""SnapKV-style selection against plain loops."""

import math

import numpy as np
import pytest

from golden.algorithms.attention import ELEMENT_BYTES, DecodeAttention
from golden.algorithms.baselines import SnapKVAttention
from tests.support.qkv import random_qkv


def plain_probabilities(q, k, seen, scale):
    scores = {j: scale * float(np.dot(q, k[j])) for j in seen}
    e = {j: math.exp(x - max(scores.values())) for j, x in scores.items()}
    return {j: e[j] / math.fsum(e.values()) for j in e}


def plain_snapkv(q, k, v, capacity, prompt, window, kernel, scale):
    """Float64 loops: outputs [heads, token, d], and the prompt's tokens kept by each kv head."""
    (heads, tokens, d), kv_heads = q.shape, len(k)
    group = heads // kv_heads
    o = np.zeros((heads, tokens, d))
    kept = [list(range(prompt)) for _ in range(kv_heads)]
    if prompt > capacity:
        for g in range(kv_heads):
            earlier = prompt - window
            given = [0.0] * earlier
            for h in range(g * group, (g + 1) * group):
                for t in range(earlier, prompt):
                    p = plain_probabilities(q[h, t], k[g], range(t + 1), scale)
                    for j in range(earlier):
                        given[j] += p[j]
            side = kernel // 2
            pooled = [sum(given[max(j - side, 0) : j + side + 1]) for j in range(earlier)]
            best = sorted(range(earlier), key=lambda j: (-pooled[j], j))[: capacity - window]
            kept[g] = sorted(best) + list(range(earlier, prompt))
    for t in range(tokens):
        for h in range(heads):
            before = range(t + 1) if t < prompt else [*kept[h // group], *range(prompt, t + 1)]
            for j, weight in plain_probabilities(q[h, t], k[h // group], before, scale).items():
                o[h, t] += weight * v[h // group, j]
    return o, kept


@pytest.mark.parametrize(
    ("capacity", "prompt", "window", "kernel"),
    [
        (12, 30, 4, 3),
        (12, 30, 4, 1),
        (12, 30, 12, 7),
        (29, 30, 1, 5),
        (6, 30, 2, 15),
        (12, 12, 4, 3),
    ],
)
@pytest.mark.parametrize("scale", [None, 1.1])
def test_equals_the_plain_loops(capacity, prompt, window, kernel, scale):
    q, k, v = random_qkv(6, 2, 36, 8, seed=41)
    attention = SnapKVAttention(capacity, prompt, window, kernel, scale)
    o = attention.sequence(q, k, v)
    expected, kept = plain_snapkv(q, k, v, capacity, prompt, window, kernel, scale or 8**-0.5)
    np.testing.assert_allclose(o, expected, rtol=1e-9, atol=1e-12)
    assert attention.evicted == sorted(set(range(prompt)) - set().union(*kept))
    assert attention.rows == 2 * (min(capacity, prompt) + 36 - prompt)


def test_equals_the_plain_loops_on_real_data(shipped_trace):
    q, k, v = (getattr(shipped_trace, x)[1, :, :130].astype(np.float64) for x in "qkv")
    attention = SnapKVAttention(48, 120, scale=shipped_trace.scale)
    o = attention.sequence(q, k, v)
    expected, kept = plain_snapkv(q, k, v, 48, 120, 32, 7, shipped_trace.scale)
    np.testing.assert_allclose(o, expected, rtol=1e-8, atol=1e-10)
    assert attention.evicted == sorted(set(range(120)) - set().union(*kept))
    assert attention.evicted


def test_equal_scores_keep_the_oldest():
    """Zero keys: every earlier token is given the same, so the first ones stay."""
    q, k, v = random_qkv(2, 1, 20, 4, seed=42)
    attention = SnapKVAttention(8, 20, window=3, kernel=1)
    attention.sequence(q, 0 * k, v)
    assert attention.evicted == list(range(5, 17))


def test_a_peak_keeps_its_neighbours():
    """All of the window looks at token 9: pooled over five, tokens 7 to 11 tie and stay."""
    k = np.zeros((1, 20, 4))
    k[0, 9, 0] = 1
    q = np.zeros((1, 20, 4))
    q[0, 17:, 0] = 2000
    attention = SnapKVAttention(8, 20, window=3, kernel=5)
    attention.sequence(q, k, np.ones((1, 20, 4)))
    assert attention.evicted == [0, 1, 2, 3, 4, 5, 6, 12, 13, 14, 15, 16]


def test_traffic_and_memory():
    q, k, v = (x.astype(np.float32) for x in random_qkv(6, 2, 10, 8, seed=44))
    attention = SnapKVAttention(4, 8, window=2)
    o = DecodeAttention.sequence(attention, q[:, :7], k[:, :7], v[:, :7])
    assert o.dtype == np.float32
    assert attention.rows == 2 * 7
    assert attention.state_bytes == 2 * 6 * 4  # one observer so far, of six tokens
    attention.sequence(q[:, 7:], k[:, 7:], v[:, 7:])
    rows = 2 * (sum(range(1, 9)) + 5 + 6)
    assert (attention.traffic.k_rows, attention.traffic.v_rows) == (rows, rows)
    assert attention.traffic.bytes == 2 * rows * 8 * ELEMENT_BYTES
    assert attention.traffic.dense_rows == 2 * 55
    assert attention.rows == 2 * 6
    assert attention.state_bytes == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 31, "prompt": 99}, "capacity must be at least window, 32, not 31"),
        ({"capacity": 32, "prompt": 0}, "prompt must be at least 1, not 0"),
        ({"capacity": 32, "prompt": 9, "window": 0}, "window must be at least 1, not 0"),
        ({"capacity": 32, "prompt": 9, "kernel": 4}, "kernel must be odd and at least 1, not 4"),
        ({"capacity": 32, "prompt": 9, "kernel": -1}, "kernel must be odd and at least 1, not -1"),
    ],
)
def test_bad_parameters(settings, message):
    with pytest.raises(ValueError, match=message):
        SnapKVAttention(**settings)
