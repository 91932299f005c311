"""The discharges against a plain model: sort the rows and take from the top or the bottom."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from golden.algorithms.unicaim.selection import (
    charge_share,
    eviction_candidate,
    static_pruning,
    top_k,
)

ROWS = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=12)


def discharge(scores, used, k, fill):
    """The discharge, step by step: rows of the lowest score drop until k or fewer are high."""
    high = [row for row in range(len(scores)) if used[row]]
    dropped = []
    while len(high) > k:
        lowest = min(scores[row] for row in high)
        dropped = [row for row in high if scores[row] == lowest]
        high = [row for row in high if scores[row] != lowest]
    if fill:
        high += dropped[: k - len(high)]
    return sorted(high)


@given(ROWS, st.integers(1, 13), st.booleans(), st.sampled_from([np.int64, np.float32]))
@example([(2, True)] * 5, 2, True, np.int64)
@example([(2, True)] * 5, 2, False, np.int64)
@example([(0, False)] * 3 + [(-3, True)], 1, True, np.float32)
def test_top_k_is_the_discharge(rows, k, fill, dtype):
    scores, used = np.array([r[0] for r in rows], dtype), np.array([r[1] for r in rows])
    selected = top_k(scores, k, used, fill)
    assert np.flatnonzero(selected).tolist() == discharge(scores, used, k, fill)
    if fill:
        assert selected.sum() == min(k, used.sum())
    else:
        assert selected.sum() <= k


@pytest.mark.parametrize("k", [1, 7, 64, 575, 576, 600])
def test_top_k_of_distinct_scores_is_a_sort(k):
    scores = np.random.default_rng(k).permutation(576).reshape(1, 576) - 300
    for fill in (True, False):
        selected = top_k(scores, k, fill=fill)
        np.testing.assert_array_equal(selected, scores >= np.sort(scores)[0, max(576 - k, 0)])


def test_the_papers_example():
    """Top 3 of 9 keys whose scores are all different (Fig. 7c), and with a tie."""
    scores = np.array([-4, 3, 0, 4, -2, 1, 2, -1, -3])
    assert np.flatnonzero(top_k(scores, 3)).tolist() == [1, 3, 6]
    scores[5] = 2
    assert np.flatnonzero(top_k(scores, 3)).tolist() == [1, 3, 5]
    assert np.flatnonzero(top_k(scores, 3, fill=False)).tolist() == [1, 3]


def test_many_discharges_at_once():
    scores = np.random.default_rng(1).integers(-4, 5, (3, 5, 20))
    used = np.random.default_rng(2).random((3, 5, 20)) < 0.6
    for fill in (True, False):
        selected = top_k(scores, 4, used, fill)
        for i in np.ndindex(3, 5):
            assert np.flatnonzero(selected[i]).tolist() == discharge(scores[i], used[i], 4, fill)


def test_inputs_are_left_alone():
    scores, used = np.array([1, 2, 3]), np.array([True, False, True])
    for k in (1, 3):
        selected = top_k(scores, k, used)
        selected[:] = False
    assert scores.tolist() == [1, 2, 3] and used.tolist() == [True, False, True]


def test_k_is_checked():
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        top_k(np.zeros(3), 0)


@given(ROWS.filter(lambda rows: any(used for _, used in rows)))
def test_eviction_candidate(rows):
    accumulation, used = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    smallest = min(a for a, u in rows if u)
    want = min(row for row, (a, u) in enumerate(rows) if u and a == smallest)
    assert eviction_candidate(accumulation, used) == want
    if used.all():
        assert eviction_candidate(accumulation) == want


@pytest.mark.parametrize("share", [0, 1, 4])
def test_charge_share_is_the_capacitors_formula(share):
    """(C_acc acc + C_sl v) / (C_acc + C_sl) with C_sl / (C_acc + C_sl) = 2^-share."""
    c_sl, c_acc = 1, 2**share - 1
    acc, v = np.array([8.0, -3.0, 0.0]), np.array([0.0, 5.0, -1.0])
    want = [(c_acc * a + c_sl * b) / (c_acc + c_sl) for a, b in zip(acc, v, strict=True)]
    np.testing.assert_allclose(charge_share(acc, v, share), want, rtol=1e-15)
    assert charge_share(acc.astype(np.float32), v.astype(np.float32), share).dtype == np.float32


def test_charge_share_forgets_by_halves():
    acc = np.array([64.0])
    for expected in (32, 16, 8):
        acc = charge_share(acc, np.zeros(1), 1)
        assert acc == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(1, 10))
@example([1, 1, 1, 1], 2)
def test_static_pruning_drops_the_lowest_oldest_first(sums, heavy):
    left = list(range(len(sums)))
    while len(left) > heavy:
        left.remove(min(left, key=lambda token: (sums[token], token)))
    assert static_pruning(np.array(sums), heavy).tolist() == left
    assert static_pruning(np.array([sums, sums]), heavy).tolist() == [left, left]
