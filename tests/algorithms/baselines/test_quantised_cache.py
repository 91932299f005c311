"""The quantised cache against plain loops over tokens and groups."""

import numpy as np
import pytest

from golden.algorithms.attention import DecodeAttention, DenseAttention, Traffic
from golden.algorithms.baselines import QuantisedCacheAttention
from golden.algorithms.baselines.quantised_cache import rounded_group
from tests.support.qkv import random_qkv

SETTINGS = [
    {"bits": 2, "group": 4, "residual": 8},
    {"bits": 4, "group": 3, "residual": 3, "keys": "channel"},
    {"bits": 4, "group": 32, "residual": 0, "keys": "token"},
    {"bits": 3, "group": 6, "residual": 5, "keys": "token", "prompt": 11},
    {"bits": 4, "group": 6, "residual": 12, "prompt": 20, "scale": 0.9},
]


def code(values, bits):
    """One group's numbers as its codes give them back."""
    top = 2**bits - 1
    low = float(np.float16(min(values)))
    step = float(np.float16((max(values) - min(values)) / top)) or 1.0
    return [low + step * min(max(round((x - low) / step), 0), top) for x in values]


def by_token(rows, bits, group):
    """Rows [tokens, d], each in groups of channels."""
    size = min(group, rows.shape[1]) or 1
    return np.array(
        [sum((code(row[i : i + size], bits) for i in range(0, len(row), size)), []) for row in rows]
    ).reshape(rows.shape)


def plain(q, k, v, bits, group, residual, keys="channel", prompt=0, scale=None):
    """Outputs and traffic, one token at a time, from algorithm 1 of the paper."""
    (heads, tokens, d), kv_heads = q.shape, len(k)
    scale = d**-0.5 if scale is None else scale
    o, traffic = np.zeros(q.shape), Traffic()
    size = min(group, d)
    for t in range(tokens):
        for g in range(kv_heads):
            whole_k, whole_v = [], []  # tokens of the residual
            n_k = n_v = 0
            for _ in range(t + 1):
                whole_k.append(0)
                whole_v.append(0)
                if keys == "channel" and len(whole_k) == residual:
                    n_k += residual
                    whole_k.clear()
                if keys == "token" and len(whole_k) > residual:
                    n_k += 1
                    whole_k.pop()
                if len(whole_v) > residual:
                    n_v += 1
                    whole_v.pop()
            if t < prompt:
                n_k = n_v = 0
            coarse_k, coarse_v = k[g, : t + 1].copy(), v[g, : t + 1].copy()
            coarse_v[:n_v] = by_token(v[g, :n_v], bits, group)
            if keys == "token":
                coarse_k[:n_k] = by_token(k[g, :n_k], bits, group)
            else:
                coarse_k[:n_k] = by_token(k[g, :n_k].T, bits, group).T
            scales = n_k * (d // size) if keys == "token" else d * (n_k // group)
            coded = -(-d * bits // 8)
            traffic.k_rows += t + 1
            traffic.v_rows += t + 1
            traffic.k_bytes += n_k * coded + 4 * scales + (t + 1 - n_k) * 2 * d
            traffic.v_bytes += n_v * (coded + 4 * (d // size)) + (t + 1 - n_v) * 2 * d
            traffic.dense(t + 1, d)
            for h in range(g * heads // kv_heads, (g + 1) * heads // kv_heads):
                e = np.exp(scale * coarse_k @ q[h, t])
                o[h, t] = e @ coarse_v / e.sum()
    return o, traffic


@pytest.mark.parametrize("settings", SETTINGS)
def test_equals_the_plain_loops(settings):
    q, k, v = random_qkv(4, 2, 27, 12, seed=41)
    attention = QuantisedCacheAttention(**settings)
    o = attention.sequence(q, k, v)
    expected, traffic = plain(q, k, v, **settings)
    np.testing.assert_allclose(o, expected, rtol=1e-9, atol=1e-12)
    assert attention.traffic == traffic
    assert traffic.k_bytes < traffic.dense_bytes / 2
    assert (attention.rows, attention.alone) == (2 * 27, None)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("how", ["steps", "parts", "prefill"])
def test_a_sequence_equals(settings, how):
    q, k, v = random_qkv(4, 2, 300, 12, seed=42)
    whole, other = (QuantisedCacheAttention(**settings) for _ in range(2))
    expected = whole.sequence(q, k, v)
    first = 280 if how == "prefill" else 0
    if how == "prefill":
        other.prefill(q[:, :first], k[:, :first], v[:, :first])
    if how == "parts":
        cuts = [(0, 5), (5, 6), (6, 290), (290, 300)]
        parts = [other.sequence(q[:, a:b], k[:, a:b], v[:, a:b]) for a, b in cuts]
        o = np.concatenate(parts, axis=1)
    else:
        o = DecodeAttention.sequence(other, q[:, first:], k[:, first:], v[:, first:])
    np.testing.assert_allclose(o, expected[:, first:], rtol=1e-9, atol=1e-12)
    assert other.rows == whole.rows and other.figures() == whole.figures()
    if how != "prefill":
        assert other.traffic == whole.traffic


def test_more_bits_come_closer_to_dense():
    q, k, v = random_qkv(4, 2, 80, 16, seed=43, dtype=np.float32)
    dense = DenseAttention().sequence(q, k, v)
    errors = []
    for bits in (2, 4, 8):
        attention = QuantisedCacheAttention(bits, group=16, residual=16)
        o = attention.sequence(q, k, v)
        assert o.dtype == np.float32
        errors.append(np.linalg.norm(o - dense) / np.linalg.norm(dense))
        # K, and V of 64 tokens, in codes with 4 bytes for 16 elements; V of 16 tokens in FP16.
        assert attention.figures() == {"bits an element": ((bits + 2) * 144 + 16 * 16) / 160}
    assert errors[0] > 3 * errors[1] > 30 * errors[2]
    assert errors[2] < 0.01


def test_a_residual_that_holds_all_is_dense():
    q, k, v = random_qkv(4, 2, 31, 8, seed=44)
    dense = DenseAttention()
    expected = dense.sequence(q, k, v)
    attention = QuantisedCacheAttention(2, group=8, residual=32)
    np.testing.assert_allclose(attention.sequence(q, k, v), expected, rtol=1e-12, atol=1e-14)
    assert attention.traffic == dense.traffic


def test_a_group_of_equal_numbers():
    x = np.array([[0.5, 0.5, 0.5], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(rounded_group(x, 4), x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 0}, "bits must be between 1 and 8, not 0"),
        ({"bits": 9}, "bits must be between 1 and 8, not 9"),
        ({"group": 0}, "group must be at least 1, not 0"),
        ({"residual": -1, "keys": "token"}, "residual must be at least 0, not -1"),
        ({"residual": 0}, "residual must be a multiple of group, 32, not 0"),
        ({"residual": 40}, "residual must be a multiple of group, 32, not 40"),
        ({"keys": "head"}, "keys must be channel or token, not head"),
        ({"prompt": -1}, "prompt must be at least 0, not -1"),
    ],
)
def test_bad_parameters(settings, message):
    with pytest.raises(ValueError, match=message):
        QuantisedCacheAttention(**settings)


def test_a_group_that_does_not_divide_d():
    q, k, v = random_qkv(2, 1, 4, 6)
    with pytest.raises(ValueError, match="group must divide d, 6, not be 4"):
        QuantisedCacheAttention(group=4, residual=4).sequence(q, k, v)
