"""Bounds on scores by leading bits: always right, and no wider than they must be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.algorithms.lad import PAPER_BOUNDS, LocalityAwareAttention
from golden.algorithms.lad.identification import CHUNKS, ByBounds

AWKWARD = [0.0, 1.0, -1.0, 1e-8, -1e-8, 7.99, -8.0, 8.0, 0.1, 1e4, -3e3]


def bounds_of(q, k):
    """Bounds by chunks, and the scores [heads, rows] in float64."""
    identification = ByBounds()
    for n in range(1, k.shape[1] + 1):
        identification.add(k[:, :n])
    keys = np.repeat(k, len(q) // len(k), axis=0).astype(np.float64)
    scores = np.einsum("hd,hnd->hn", q.astype(np.float64), keys)
    found = [identification.bounds(q, chunks, k.shape[1]) for chunks in range(1, CHUNKS + 1)]
    return found, scores


def test_keys_of_a_prompt_are_added_as_one_by_one():
    rng = np.random.default_rng(2)
    k = rng.choice(AWKWARD, size=(2, 40, 7)).astype(np.float32)
    q = rng.normal(size=(4, 7)).astype(np.float32)
    together = ByBounds()
    together.add(k[:, :15], 15)
    together.add(k, 25)
    for chunks, expected in enumerate(bounds_of(q, k)[0], start=1):
        assert np.array_equal(together.bounds(q, chunks, 40), expected)


@given(st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float64]), st.integers(1, 70))
def test_the_score_lies_between_its_bounds(seed, dtype, d):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(4, d)) * 10.0 ** rng.integers(-3, 3)
    k = rng.normal(size=(2, 6, d)) * 10.0 ** rng.integers(-5, 4, size=(2, 6, 1))
    awkward = rng.random(k.shape) < 0.3
    k[awkward] = rng.choice(AWKWARD, awkward.sum())
    q, k = q.astype(dtype), k.astype(dtype)
    found, scores = bounds_of(q, k)
    computed = (q.reshape(2, 2, d) @ k.transpose(0, 2, 1)).reshape(4, 6)
    for least, greatest in found:
        for s in (scores, computed):
            assert (least <= s).all() and (s <= greatest).all()


def test_margins_of_a_small_key():
    """d = 2, unit 2^-12: 8 is 32768 units, cut to 32767; -3.3 is code -13517.

    First chunks 7 (28672) and -4 (-16384), each with 4096 units unknown; q = (2, -1).
    """
    q, k = np.array([[2.0, -1.0]]), np.array([[[8.0, -3.3]]])
    found, scores = bounds_of(q, k)
    assert scores[0, 0] == pytest.approx(19.3)
    low = [(28672, -16384), (32512, -13568), (32752, -13520)]
    for (least, greatest), (a, b), rest in zip(found, low, (4096, 256, 16), strict=True):
        base = 2 * a - b
        assert least[0, 0] == pytest.approx((base - rest) / 4096, abs=1e-9)
        assert greatest[0, 0] == pytest.approx((base + 2 * rest) / 4096, abs=1e-9)


def test_a_key_of_zeros_has_a_score_of_about_zero():
    found, _ = bounds_of(np.ones((1, 3), np.float32), np.zeros((1, 1, 3), np.float32))
    for least, greatest in found:
        assert -0.01 < least[0, 0] <= 0 <= greatest[0, 0] < 0.01


def test_what_a_step_reads_of_k():
    """q = (1, 1, 0, ...), m = 100, all earlier positions but the first in mode 0.

    The first key scores m itself, so it is read whole to find m, but stays in mode 4: its value is
    not read. Twenty keys score -60: their first chunk is enough. (80, 5), in units of 80 / 2^15,
    has a first chunk that allows 70 to 90, that is m - 10, a border of mode 0; its second decides.
    """
    d = 8
    q, v = np.array([[1.0, 1] + 6 * [0]]), np.ones((1, d))
    keys = np.zeros((23, 1, d))
    keys[0, 0, 0] = keys[22, 0, 0] = 100
    keys[1:21, 0, 0] = -60
    keys[21, 0, :2] = 80, 5
    attention = LocalityAwareAttention(PAPER_BOUNDS, window=1, identification="bounds", scale=1.0)
    for key in keys[:22]:
        attention.step(q, key, v)
    assert attention.modes.mode[0].tolist() == [4] + 21 * [0]
    k_bytes, v_bytes = attention.traffic.k_bytes, attention.traffic.v_bytes
    attention.step(q, keys[22], v)
    assert attention.active[0].tolist() == 22 * [False] + [True]
    row, chunk = 2 * d, d // 2
    assert attention.traffic.v_bytes - v_bytes == row
    assert attention.traffic.k_bytes - k_bytes == 2 * row + 20 * chunk + 2 * chunk


def search(identification, q, exact, modes, old, kv_heads):
    """The reads of ``ByBounds.find`` in plain loops: whole keys, chunks, m and J."""
    group = len(q) // kv_heads
    tables = [identification.bounds(q, chunks, old) for chunks in range(1, CHUNKS + 1)]
    chunks = [[1] * old for _ in range(kv_heads)]
    whole = [set() for _ in range(kv_heads)]

    def limits(h, i):
        if i in whole[h // group]:
            return exact[h, i], exact[h, i]
        least, greatest = tables[chunks[h // group][i] - 1]
        return least[h, i], greatest[h, i]

    def on_the_border(h, i):
        low, high = (limit - m[h] for limit in limits(h, i))
        return any(low <= border[h, i] < high for border in (modes.lower, modes.upper))

    m = [max(exact[h, old:]) for h in range(len(q))]
    for step in (1, 2, 3):
        wanted = [set() for _ in range(kv_heads)]
        for h in range(len(q)):
            reached = max(m[h], *(limits(h, i)[0] for i in range(old)))
            wanted[h // group] |= {i for i in range(old) if limits(h, i)[1] > reached}
        for kv in range(kv_heads):
            for i in wanted[kv]:
                if step < 3 and chunks[kv][i] == step:
                    chunks[kv][i] += 1
    whole = wanted
    m = [max(m[h], *(limits(h, i)[0] for i in range(old))) for h in range(len(q))]
    for step in (1, 2):
        for kv in range(kv_heads):
            for i in range(old):
                heads = range(kv * group, (kv + 1) * group)
                if chunks[kv][i] == step and any(on_the_border(h, i) for h in heads):
                    chunks[kv][i] += 1
    active = []
    for h in range(len(q)):
        inside = set()
        for i in range(old):
            low, high = (limit - m[h] for limit in limits(h, i))
            if modes.lower[h, i] < low and high <= modes.upper[h, i]:
                inside.add(i)
        active.append(set(range(old)) - inside)
    return whole, chunks, m, active


@pytest.mark.parametrize("spread", [0.3, 2.0, 6.0])
def test_chunks_are_read_only_where_they_may_decide(spread):
    rng = np.random.default_rng(8)
    heads, kv_heads, tokens, window = 4, 2, 40, 4
    q = spread * np.cumsum(rng.normal(size=(heads, tokens + 1, 6)), axis=1) / 3
    k, v = rng.normal(size=(2, kv_heads, tokens, 6))
    attention = LocalityAwareAttention(window=window, identification="bounds", scale=1.0)
    attention.sequence(q[:, :tokens], k, v)
    keys = np.repeat(k, heads // kv_heads, axis=0)
    exact = np.einsum("hd,hnd->hn", q[:, tokens], keys)
    old = tokens - window
    seen = set()
    arguments = q[:, tokens], exact, attention.modes, old
    shared = attention.identification.find(*arguments)
    for found, readers in ((shared, kv_heads), (shared.alone, heads)):
        whole, chunks, m, active = search(attention.identification, *arguments, readers)
        assert found.m.tolist() == m == exact.max(axis=1).tolist()
        assert found.chunks.tolist() == chunks
        for reader in range(readers):
            read = set(np.flatnonzero(found.k_rows[reader]).tolist())
            assert read == whole[reader] | set(range(old, tokens))
            seen |= set(chunks[reader])
        for h in range(heads):
            assert set(np.flatnonzero(found.active[h]).tolist()) == active[h]
    assert len(seen) > 1
