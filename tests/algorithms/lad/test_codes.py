"""Scores by codes: within their bound, and the reads and decisions that follow from them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.algorithms.lad import PAPER_BOUNDS, LocalityAwareAttention
from golden.algorithms.lad.codes import ByCodes


def added(k, code_bits=6):
    identification = ByCodes(code_bits, -3.0)
    for n in range(1, k.shape[1] + 1):
        identification.add(k[:, :n])
    return identification


@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.float32, np.float64]),
    d=st.integers(1, 70),
    code_bits=st.integers(2, 8),
)
def test_scores_keep_their_bound(seed, dtype, d, code_bits):
    """Half a unit in each element, 2^-11 of the score for the unit's rounding; FP16 keys."""
    rng = np.random.default_rng(seed)
    q = (rng.normal(size=(4, d)) * 10.0 ** rng.integers(-3, 3)).astype(dtype)
    k = rng.normal(size=(2, 6, d)) * 10.0 ** rng.integers(-2, 4, size=(2, 6, 1))
    k[rng.random(k.shape) < 0.2] = 0
    k = k.astype(dtype)
    scores = added(k, code_bits).scores(q, 6)
    keys = np.repeat(k, 2, axis=0).astype(np.float64)
    exact = np.einsum("hd,hnd->hn", q.astype(np.float64), keys)
    unit = np.abs(keys).max(axis=2) / (2 ** (code_bits - 1) - 1)
    q_sum = np.abs(q.astype(np.float64)).sum(axis=1)[:, None]
    largest = q_sum * np.abs(keys).max(axis=2)
    rounding = 2 * (d + 8) * np.finfo(dtype).eps * largest
    assert (np.abs(scores - exact) <= unit * q_sum / 2 + 2**-11 * largest + rounding).all()


def test_codes_of_a_key():
    """L = 31: 3.1 is the peak; -1 becomes -10, 0.04 is less than half a unit of FP16(0.1)."""
    identification = added(np.array([[[3.1, -1.0, 0.04]]]))
    unit = float(np.float16(0.1))
    for q, expected in [((1, 0, 0), 31), ((0, 1, 0), -10), ((0, 0, 1), 0), ((2, 1, 5), 52)]:
        assert identification.scores(np.array([q], float), 1)[0, 0] == pytest.approx(
            expected * unit
        )


def test_keys_of_a_prompt_are_added_as_one_by_one():
    k = np.random.default_rng(2).normal(size=(2, 40, 7)).astype(np.float32)
    k[0, 3] = 0
    together = ByCodes(6, -3.0)
    together.add(k[:, :15], 15)
    together.add(k, 25)
    q = np.eye(7, dtype=np.float32)[[0, 3]]
    assert np.array_equal(together.scores(q, 40), added(k).scores(q, 40))


def test_a_key_of_zeros_has_a_score_of_zero():
    identification = added(np.zeros((1, 2, 3), np.float32))
    assert identification.scores(np.ones((1, 3), np.float32), 2).tolist() == [[0, 0]]


@pytest.mark.parametrize("slack", [0.0, 1e-3])
@pytest.mark.parametrize("code_bits", [3, 6])
def test_a_step_in_plain_loops(code_bits, slack):
    """m, J, M, the reads and the false negatives of the last of 40 steps; four query heads."""
    rng = np.random.default_rng(8)
    heads, kv_heads, tokens, window, d = 4, 2, 40, 4, 8
    q = np.cumsum(rng.normal(size=(heads, tokens + 1, d)), axis=1) / 2
    k, v = rng.normal(size=(2, kv_heads, tokens + 1, d))
    attention = LocalityAwareAttention(
        PAPER_BOUNDS,
        window,
        identification="codes",
        code_bits=code_bits,
        slack=slack,
        scale=1.0,
    )
    attention.sequence(q[:, :tokens], k[:, :tokens], v[:, :tokens])
    modes = attention.modes
    lower, upper, mode = (x.copy() for x in (modes.lower, modes.upper, modes.mode))
    k_bytes, v_bytes = attention.traffic.k_bytes, attention.traffic.v_bytes
    missed, large_before = attention.statistics.false_negatives, attention.statistics.large
    attention.step(q[:, tokens], k[:, tokens], v[:, tokens])

    n, old, limit = tokens + 1, tokens + 1 - window, 2 ** (code_bits - 1) - 1
    keys_read, values_read = ([set() for _ in range(kv_heads)] for _ in range(2))
    false_negatives = large_total = 0
    for h in range(heads):
        kv = h // 2
        exact = [float(q[h, tokens] @ k[kv, i]) for i in range(n)]
        large = {i for i in range(old) if mode[h, i] and PAPER_BOUNDS[mode[h, i] - 1] >= -3.0}
        s = list(exact)
        for i in set(range(old)) - large:
            peak = np.abs(k[kv, i]).max()
            code = [round(x * limit / peak) for x in k[kv, i]]
            s[i] = float(q[h, tokens] @ code) * float(np.float16(peak / limit))
        m = max(s)
        active = {i for i in range(old) if not lower[h, i] < s[i] - m <= upper[h, i]}
        active |= set(range(old, n))
        assert attention.m[h] == pytest.approx(m)
        assert set(np.flatnonzero(attention.active[h]).tolist()) == active
        false_negatives += sum(
            not lower[h, i] < exact[i] - m <= upper[h, i] for i in set(range(n)) - active
        )
        large_total += len(large)
        keys_read[kv] |= active | large
        values_read[kv] |= active
    rows = sum(map(len, keys_read))
    codes = kv_heads * old * d * code_bits // 8
    assert attention.traffic.k_bytes - k_bytes == 2 * d * rows + codes
    assert attention.traffic.v_bytes - v_bytes == 2 * d * sum(map(len, values_read))
    assert attention.statistics.false_negatives - missed == false_negatives
    assert attention.statistics.large - large_before == large_total > 0
    g_bytes, cache_bytes = 2 * n * (kv_heads + heads), 4 * heads * (d * d + 3 * d + 2)
    counters = 2 * n * heads * 5
    copy = kv_heads * n * d * code_bits // 8
    assert attention.state_bytes == g_bytes + cache_bytes + counters + copy


def test_wider_codes_miss_fewer_positions():
    rng = np.random.default_rng(3)
    q = np.cumsum(rng.normal(size=(2, 300, 16)), axis=1) / 4
    k, v = rng.normal(size=(2, 1, 300, 16))
    shares = []
    for bits in (4, 6, 8):
        attention = LocalityAwareAttention(identification="codes", code_bits=bits)
        attention.sequence(q, k, v)
        shares.append(attention.statistics.false_negative_share)
    assert 0.2 > shares[0] > shares[1] > shares[2] > 0
