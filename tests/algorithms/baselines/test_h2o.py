"""H2O against plain loops, and the properties it promises."""

import math

import numpy as np
import pytest

from golden.algorithms.attention import ELEMENT_BYTES
from golden.algorithms.baselines import H2OAttention
from tests.support.qkv import random_qkv


def plain_h2o(q, k, v, capacity, scale, per="head"):
    """Float64 loops: outputs [heads, token, d], positions kept by each kv head, evicted."""
    (heads, tokens, d), kv_heads = q.shape, len(k)
    group = heads // kv_heads
    newest = math.ceil(capacity / 2)
    o = np.zeros((heads, tokens, d))
    kept = [{} for _ in range(kv_heads)]  # position: accumulated score
    evicted = []
    for t in range(tokens):
        dropped = set()
        for g in range(kv_heads):
            kept[g][t] = 0.0
            given = dict.fromkeys(kept[g], 0.0)
            for h in range(g * group, (g + 1) * group):
                scores = {j: scale * float(np.dot(q[h, t], k[g, j])) for j in kept[g]}
                e = {j: math.exp(x - max(scores.values())) for j, x in scores.items()}
                for j in e:
                    given[j] += e[j] / math.fsum(e.values())
                    o[h, t] += e[j] / math.fsum(e.values()) * v[g, j]
            for j in given:
                kept[g][j] += given[j]
        for g in range(kv_heads):
            if len(kept[g]) > capacity:
                others = [j for j in kept[g] if j <= t - newest]
                if per == "head":
                    out = min(others, key=lambda j: (kept[g][j], j))
                elif g == 0:
                    out = min(others, key=lambda j: (math.fsum(each[j] for each in kept), j))
                del kept[g][out]
                dropped.add(out)
        evicted += [j for j in sorted(dropped) if not any(j in each for each in kept)]
    return o, [set(each) for each in kept], evicted


def kept_by(attention, capacity):
    return [set(row[:capacity].tolist()) for row in attention._positions]


@pytest.mark.parametrize("capacity", [1, 2, 5, 12, 39, 40])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (3, 3)])
@pytest.mark.parametrize(("scale", "per"), [(None, "head"), (1.1, "head"), (None, "layer")])
def test_equals_the_plain_loops(capacity, heads, kv_heads, scale, per):
    q, k, v = random_qkv(heads, kv_heads, 40, 8, seed=21)
    attention = H2OAttention(capacity, scale, per)
    o = attention.sequence(q, k, v)
    expected, kept, evicted = plain_h2o(q, k, v, capacity, scale or 8**-0.5, per)
    np.testing.assert_allclose(o, expected, rtol=1e-9, atol=1e-12)
    assert kept_by(attention, capacity) == kept
    assert attention.evicted == evicted
    assert all(len(each) == capacity for each in kept)
    if per == "layer":
        assert len(evicted) == 40 - capacity


def test_equals_the_plain_loops_on_real_data(shipped_trace):
    q, k, v = (getattr(shipped_trace, x)[1, :, :120].astype(np.float64) for x in "qkv")
    attention = H2OAttention(33, shipped_trace.scale)
    o = attention.sequence(q, k, v)
    expected, kept, evicted = plain_h2o(q, k, v, 33, shipped_trace.scale)
    np.testing.assert_allclose(o, expected, rtol=1e-8, atol=1e-10)
    assert kept_by(attention, 33) == kept
    assert attention.evicted == evicted
    assert len(evicted) < 120 - 33  # heads differ in what they drop, so some rows are still held


def test_equal_scores_evict_the_oldest():
    """Token t attends only to token ``looks[t]``, so a score is a count; four rows, two newest.

    Token 1 is evicted with score 0 and 4 takes its slot; then 3 with score 0. Then 2 and 4 have
    score 1: 2 is evicted as the oldest, though 4 is in the lower slot.
    """
    looks = [0, 0, 0, 2, 0, 4, 0]
    unit = np.eye(7)
    attention = H2OAttention(4, scale=1000.0)
    attention.sequence(unit[looks][None], unit[None], unit[None])
    assert attention.evicted == [1, 3, 2]


def test_the_newest_half_is_kept():
    q, k, v = random_qkv(6, 2, 60, 8, seed=23)
    attention = H2OAttention(15)
    for t in range(60):
        attention.step(q[:, t], k[:, t], v[:, t])
        for kept in kept_by(attention, min(t + 1, 15)):
            assert kept >= set(range(max(t - 7, 0), t + 1))  # eight of fifteen


def test_traffic_and_memory():
    q, k, v = (x.astype(np.float32) for x in random_qkv(6, 2, 7, 8, seed=25))
    attention = H2OAttention(4)
    assert attention.sequence(q, k, v).dtype == np.float32
    rows = 2 * (1 + 2 + 3 + 4 + 5 + 5 + 5)
    assert (attention.traffic.k_rows, attention.traffic.v_rows) == (rows, rows)
    assert attention.traffic.bytes == 2 * rows * 8 * ELEMENT_BYTES
    assert attention.traffic.dense_rows == 2 * 28
    assert attention.rows == 2 * 4
    assert attention.state_bytes == 2 * 4 * 8


def test_bad_capacity():
    with pytest.raises(ValueError, match="capacity must be at least 1, not 0"):
        H2OAttention(0)
    with pytest.raises(ValueError, match="per must be head or layer, not group"):
        H2OAttention(4, per="group")
