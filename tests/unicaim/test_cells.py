"""Cell levels, bitwise expansion and row scores against the definitions, element by element."""

import numpy as np
import pytest

from golden.algorithms.unicaim.selection import top_k
from golden.unicaim.cells import (
    converter_codes,
    key_levels,
    key_limit,
    key_step,
    query_levels,
    query_limit,
    query_planes,
    query_step,
    row_scores,
    score_limit,
)
from golden.unicaim.sar_adc import sar_adc


def test_the_papers_range_of_scores():
    """-512 .. 512 for 3-bit cells, d = 128 and a query of +1 and -1 (section IV-A)."""
    assert score_limit(128, key_bits=3, query_bits=1) == 512
    keys = np.full((2, 128), 4)
    keys[1] = -4
    assert row_scores(keys, np.ones((1, 128), int)).tolist() == [[512, -512]]


@pytest.mark.parametrize(("bits", "limit"), [(1, 1), (2, 2), (3, 4), (4, 8)])
def test_key_limit(bits, limit):
    assert key_limit(bits) == limit


def test_key_levels_of_one_cell():
    """Nearest level, halves to the even one, clipped at both ends."""
    k = np.array([[-9.0, -4.6, -4.4, -1.5, -0.5, 0.0, 0.5, 0.51, 1.5, 2.5, 3.4, 77.0]])
    expected = [[-4, -4, -4, -2, 0, 0, 0, 1, 2, 2, 3, 4]]
    assert key_levels(k, np.ones(1), 3).tolist() == expected
    assert key_levels(2 * k, np.full(1, 2.0), 3).tolist() == expected


def test_every_kv_head_has_its_own_key_step():
    k = np.ones((2, 5, 4))
    k[1] *= 100
    step = key_step(k, 3)
    assert step.tolist() == [1, 100]
    assert [key_step(k, bits)[0] for bits in (1, 2, 4)] == [1, 1, 0.5]
    assert (key_levels(2 * k, step, 3) == 2).all()
    assert (key_levels(2 * k[:, 0], step, 3) == 2).all()


def test_key_step_by_span():
    """The highest level is the span, but a level never more than a root mean square."""
    k = np.ones((1, 5, 4))
    steps = {(bits, span): key_step(k, bits, span)[0] for bits in (1, 3, 5) for span in (2.0, 8.0)}
    assert steps == {(1, 2): 1, (1, 8): 1, (3, 2): 0.5, (3, 8): 1, (5, 2): 0.125, (5, 8): 0.5}


@pytest.mark.parametrize(
    ("limit", "bits", "unit"),
    [(512, 10, 1), (513, 10, 2), (511, 10, 1), (1792, 10, 4), (3584, 10, 8), (3584, 16, 1)],
)
def test_converter_codes(limit, bits, unit):
    """All scores but the highest have a code near them; the codes are those of the converter."""
    scores = np.arange(-limit, limit + 1)
    codes, found = converter_codes(scores, limit, bits)
    assert found == unit
    np.testing.assert_array_equal(codes, sar_adc(scores * 16 // unit, bits, 4))
    errors = np.abs(codes * unit - scores)
    assert errors[:-1].max() <= unit // 2
    assert errors[-1] == (limit == 512 or limit % unit)


def test_converters_round_half_up():
    scores = np.array([-1.5, -0.5, 0.49, 0.5, 1.5, 600.0, -600.0])
    assert converter_codes(scores, 512, 10)[0].tolist() == [-1, 0, 0, 1, 2, 511, -512]


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_query_levels(bits):
    q = np.random.default_rng(bits).normal(size=(5, 64))
    q[3] *= 1000
    levels = query_levels(q, bits)
    for row, got in zip(q, levels, strict=True):
        rms = (sum(float(x) ** 2 for x in row) / len(row)) ** 0.5
        step = bits * rms / (2**bits - 1)
        want = [max(min(round(x / step), 2**bits - 1), 1 - 2**bits) for x in row.tolist()]
        assert got.tolist() == want
    assert np.abs(levels).max() == query_limit(bits)


def test_zeros_stay_zero():
    zeros = np.zeros((2, 3, 4))
    assert key_step(zeros, 3).tolist() == [1, 1]
    assert query_step(zeros, 2).shape == (2, 3)
    assert not key_levels(zeros, key_step(zeros, 3), 3).any()
    assert not query_levels(zeros, 3).any()


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_planes_add_up_to_the_query(bits):
    """A row scored plane by plane, plane b with weight 2^b, has the score of the levels."""
    rng = np.random.default_rng(bits)
    limit = query_limit(bits)
    queries = rng.integers(-limit, limit + 1, (6, 16))
    keys = rng.integers(-4, 5, (9, 16))
    planes = query_planes(queries, bits)
    assert planes.shape == (bits, 6, 16)
    assert set(np.unique(planes)) <= {-1, 0, 1}
    total = sum(2**b * row_scores(keys, plane) for b, plane in enumerate(planes))
    np.testing.assert_array_equal(total, row_scores(keys, queries))
    for q, row in enumerate(total):
        for r, score in enumerate(row):
            assert score == sum(int(a) * int(b) for a, b in zip(keys[r], queries[q], strict=True))


def test_levels_keep_most_of_the_nearest_rows_of_a_real_model(shipped_trace):
    """Of the exact 64 nearest of 448 rows, 3-bit levels find 69 %; 14 % would be chance."""
    kept = []
    for layer in range(len(shipped_trace.q)):
        k = shipped_trace.k[layer, :, :448].astype(np.float64)
        levels = key_levels(k, key_step(k, 3), 3)
        for head, q in enumerate(shipped_trace.q[layer, :, 448:].astype(np.float64)):
            kv = head // shipped_trace.group
            near = top_k(q @ k[kv].T, 64)
            found = top_k(row_scores(levels[kv], query_levels(q, 3)), 64)
            kept.append((near & found).sum() / near.sum())
    assert np.mean(kept) > 0.67
