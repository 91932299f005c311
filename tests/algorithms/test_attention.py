"""Dense attention against the textbook formula, and what every policy inherits."""

import numpy as np
import pytest

from golden.algorithms.attention import (
    ELEMENT_BYTES,
    DecodeAttention,
    DenseAttention,
    Traffic,
    WindowAttention,
)
from golden.algorithms.baselines import H2OAttention, SnapKVAttention, StreamingAttention
from golden.algorithms.lad import LocalityAwareAttention
from golden.algorithms.topick import TokenPickerAttention
from golden.algorithms.unicaim import StaticDynamicAttention
from golden.algorithms.unicaim.bit_exact import BitExactAttention
from golden.algorithms.veda import VotingAttention
from tests.support.qkv import random_qkv


def textbook(q, k, v, scale):
    """Causal attention in float64 loops: [heads, token, d], query head h on kv head h // group."""
    heads, tokens, d = q.shape
    group = heads // len(k)
    o = np.zeros((heads, tokens, d))
    for h in range(heads):
        for t in range(tokens):
            scores = [scale * float(np.dot(q[h, t], k[h // group, j])) for j in range(t + 1)]
            weights = np.exp(np.array(scores) - max(scores))
            weights /= weights.sum()
            for j in range(t + 1):
                o[h, t] += weights[j] * v[h // group, j]
    return o


@pytest.mark.parametrize("window", [1, 4, 9, 12])
def test_a_window_leaves_the_rest_out(window):
    q, k, v = random_qkv(4, 2, 9, 8)
    attention = WindowAttention(window)
    o = attention.sequence(q, k, v)
    for t in range(9):
        seen = slice(max(0, t + 1 - window), t + 1)
        exact = textbook(q[:, seen], k[:, seen], v[:, seen], 8**-0.5)
        np.testing.assert_allclose(o[:, t], exact[:, -1], rtol=1e-12)
    rows = 2 * sum(min(t, window) for t in range(1, 10))
    assert attention.traffic.k_rows == attention.traffic.dense_rows == rows
    assert attention.rows == 2 * min(9, window)


def test_a_window_across_blocks():
    q, k, v = random_qkv(2, 1, 600, 8)
    whole, parts, stepped = (WindowAttention(100) for _ in range(3))
    o = whole.sequence(q, k, v)
    expected = DecodeAttention.sequence(stepped, q, k, v)
    np.testing.assert_allclose(o, expected, rtol=1e-10, atol=1e-13)
    parts.prefill(q[:, :300], k[:, :300], v[:, :300])
    assert parts.rows == 100
    found = parts.sequence(q[:, 300:], k[:, 300:], v[:, 300:])
    np.testing.assert_allclose(found, expected[:, 300:], rtol=1e-10, atol=1e-13)
    assert whole.traffic == stepped.traffic


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_sequence_is_the_textbook_formula(heads, kv_heads, scale):
    q, k, v = random_qkv(heads, kv_heads, 9, 8)
    o = DenseAttention(scale).sequence(q, k, v)
    np.testing.assert_allclose(o, textbook(q, k, v, scale or 8**-0.5), rtol=1e-12)


def test_sequence_equals_stepping_across_blocks():
    """Longer than one block of queries, so block borders are crossed."""
    q, k, v = random_qkv(4, 2, 600, 16)
    whole, stepped = DenseAttention(), DenseAttention()
    o = whole.sequence(q, k, v)
    expected = DecodeAttention.sequence(stepped, q, k, v)
    np.testing.assert_allclose(o, expected, rtol=1e-10, atol=1e-13)
    assert whole.traffic == stepped.traffic


def test_a_sequence_may_be_continued():
    q, k, v = random_qkv(4, 2, 300, 8)
    attention = DenseAttention()
    cuts = [(0, 5), (5, 6), (6, 290), (290, 300)]
    parts = [attention.sequence(q[:, a:b], k[:, a:b], v[:, a:b]) for a, b in cuts]
    once = DenseAttention()
    expected = once.sequence(q, k, v)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, rtol=1e-10, atol=1e-13)
    assert attention.traffic == once.traffic


@pytest.mark.parametrize(
    ("given", "result"),
    [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)],
)
def test_result_dtype(given, result):
    q, k, v = random_qkv(2, 1, 3, 4, dtype=given)
    assert DenseAttention().sequence(q, k, v).dtype == result
    assert DenseAttention().step(q[:, 0], k[:, 0], v[:, 0]).dtype == result


def test_large_scores_do_not_overflow():
    q, k, v = random_qkv(2, 1, 4, 4, dtype=np.float32)
    assert np.isfinite(DenseAttention().sequence(1e4 * q, 1e4 * k, v)).all()


def test_traffic_counts_every_row_once_per_kv_head():
    heads, kv_heads, tokens, d = 6, 2, 5, 8
    attention = DenseAttention()
    attention.sequence(*random_qkv(heads, kv_heads, tokens, d))
    rows = kv_heads * (1 + 2 + 3 + 4 + 5)
    half = rows * d * ELEMENT_BYTES
    assert attention.traffic == Traffic(rows, rows, half, half, rows, 2 * half)
    assert attention.traffic.ratio == 1.0
    assert attention.evicted == []


def test_traffic_adds_up():
    total = Traffic()
    assert total.ratio == 1.0
    part = Traffic()
    part.read(1, 2, d=4)
    part.dense(3, d=4)
    total.add(part)
    total.add(part)
    size = 4 * ELEMENT_BYTES
    assert total == Traffic(2, 4, 2 * size, 4 * size, 6, 12 * size)
    assert total.bytes == 6 * size
    assert total.ratio == 0.5


def test_heads_must_share_evenly():
    q, k, v = random_qkv(3, 2, 1, 4)
    with pytest.raises(ValueError, match="3 query heads cannot share 2 kv heads evenly"):
        DenseAttention().sequence(q, k, v)


def test_a_policy_steps_token_by_token():
    class Last(DecodeAttention):
        """Attends to the newest token alone."""

        def step(self, q, k, v):
            return np.repeat(v, len(q) // len(v), axis=0)

    q, k, v = random_qkv(4, 2, 7, 8)
    np.testing.assert_array_equal(Last().sequence(q, k, v), v[[0, 0, 1, 1]])


@pytest.mark.parametrize(
    "attention",
    [
        *(H2OAttention(capacity, 0.3) for capacity in (50, 1000)),
        *(SnapKVAttention(*sizes, scale=0.3) for sizes in ((32, 32), (60, 40), (33, 7))),
        *(StreamingAttention(capacity, scale=0.3) for capacity in (50, 1000)),
        *(VotingAttention(capacity, scale=0.3) for capacity in (50, 51, 1000)),
    ],
    ids=lambda attention: type(attention).__name__,
)
def test_what_evicts_is_dense_while_all_tokens_fit(attention):
    q, k, v = random_qkv(6, 2, 50, 8, seed=24)
    dense = DenseAttention(scale=0.3)
    expected = dense.sequence(q, k, v)
    np.testing.assert_allclose(attention.sequence(q, k, v), expected, rtol=1e-12, atol=1e-14)
    assert attention.evicted == []
    assert attention.traffic == dense.traffic
    assert attention.rows == dense.rows


@pytest.mark.parametrize(
    "make",
    [
        lambda: TokenPickerAttention(0.02),
        lambda: TokenPickerAttention(0.02, bit_exact=True),
        lambda: LocalityAwareAttention(window=4),
        lambda: LocalityAwareAttention(window=4, refresh=6),
        lambda: LocalityAwareAttention(window=4, identification="codes"),
        lambda: LocalityAwareAttention(window=4, identification="bounds"),
        lambda: LocalityAwareAttention(window=4, bit_exact=True, positions=16),
        # Rows are evicted for the whole group, so none are here.
        lambda: StaticDynamicAttention(8, 8, 3, prompt=8),
        lambda: StaticDynamicAttention(8, 8, 3, prompt=8, key_bits=0, fill=False),
        lambda: BitExactAttention(8, 8, 3, prompt=8),
    ],
)
def test_alone_is_the_traffic_of_heads_that_share_no_rows(make):
    q, k, v = random_qkv(6, 2, 16, 8, seed=5, dtype=np.float32, sharpness=3)
    shared, own = make(), make()
    shared.sequence(q, k, v)
    own.sequence(q, *(np.repeat(x, 3, axis=0) for x in (k, v)))
    assert shared.alone == own.alone == own.traffic
    assert shared.alone.dense_bytes == 3 * shared.traffic.dense_bytes
    assert shared.traffic.bytes < shared.alone.bytes < 3 * shared.traffic.bytes
    assert shared.alone.ratio < shared.traffic.ratio


def test_where_the_heads_of_a_group_read_the_same_nothing_is_counted_alone():
    q, k, v = random_qkv(4, 2, 5, 8)
    for attention in (DenseAttention(), H2OAttention(3), StreamingAttention(3, 1)):
        attention.sequence(q, k, v)
        assert attention.alone is None
