"""The cache of K and V codes: scales that follow the rows."""

import numpy as np

from golden.algorithms.topick import QuantisedCache, quantise, scale_for


def test_codes_by_hand():
    x = np.array([0.0, 0.5, 1.5, 2.49, -0.5, -1.5, -2.51, 7.0, 8.0, -8.0, -9.0])
    assert quantise(x, 1.0, 4).tolist() == [0, 0, 2, 2, 0, -2, -3, 7, 7, -8, -8]
    assert quantise(x, 2.0, 4).tolist() == [0, 0, 1, 1, 0, -1, -1, 4, 4, -4, -4]


def test_the_peak_gets_the_largest_code():
    assert scale_for(7.0, 4) == 1.0
    assert quantise(np.array([3.0, -3.0]), scale_for(3.0, 12), 12).tolist() == [2047, -2047]
    assert scale_for(0.0, 12) == 1.0


def rows(*peaks):
    """One kv head, one token for each peak, two elements a token."""
    return np.array([[[peak, -peak / 2] for peak in peaks]], np.float32)


def test_scales_follow_the_maximum_until_the_calibration_ends():
    cache = QuantisedCache(bits=4, calibration=4, headroom=1.0)
    k = rows(7, 5, 14, 14, 28, 2)
    v = rows(1, 1, 1, 1, 1, 1)
    assert cache.append(k, v) == 2  # the third token raises the maximum of K
    assert cache.k_scale == 1
    assert cache.k.tolist() == [[[7, -4], [5, -2]]]
    assert cache.rewritten == 0
    # The maximum stands in the rest of the calibration; what comes later doubles the scale.
    assert cache.append(k[:, 2:], v[:, 2:]) == 2
    assert cache.k_scale == 2 and cache.rewritten == 2
    assert cache.k.tolist() == [[[4, -2], [2, -1], [7, -4], [7, -4]]]
    assert cache.append(k[:, 4:], v[:, 4:]) == 2
    assert cache.k_scale == 4 and cache.rewritten == 4 and cache.stored_again == 6
    assert cache.k.tolist() == [[[2, -1], [1, 0], [4, -2], [4, -2], [7, -4], [0, 0]]]
    np.testing.assert_allclose(cache.v_scale, 1 / 7)
    assert cache.v.tolist() == [[[7, -4]] * 6]
    assert len(cache) == 6 and cache.saturated == 0


def test_a_row_far_beyond_its_codes_halves_those_of_the_others():
    cache = QuantisedCache(bits=4, calibration=2, headroom=2.0)
    for peak in (3.5, 7.0):
        assert cache.append(rows(peak), rows(7.0)) == 1
    assert cache.k_scale == cache.v_scale == 2  # 2 * 7 / 7
    stored = cache.k.tolist()
    assert stored == [[[2, -1], [4, -2]]]
    assert cache.append(rows(14.0, 100.0), rows(1.0, 1.0)) == 1
    assert cache.k_scale == cache.v_scale == 2 and cache.k[:, :2].tolist() == stored
    assert cache.append(rows(100.0, 1.0), rows(1.0, 15.0)) == 1
    assert cache.k_scale == 16 and cache.v_scale == 2
    assert cache.k.tolist() == [[[0, 0], [0, 0], [1, 0], [6, -3]]]
    assert cache.v.tolist()[0][:2] == [[4, -2], [4, -2]] and cache.saturated == 0


def test_heads_and_k_and_v_have_scales_of_their_own():
    cache = QuantisedCache(bits=4, calibration=1, headroom=1.0)
    cache.append(np.array([[[7.0]], [[14.0]]]), np.array([[[21.0]], [[0.0]]]))
    assert cache.k_scale.tolist() == [1, 2]
    assert cache.v_scale.tolist() == [3, 1]
    assert cache.k.tolist() == [[[7]], [[7]]]
    assert cache.v.tolist() == [[[7]], [[0]]]


def test_a_raised_maximum_of_v_or_of_another_head_ends_a_run_too():
    ones = np.ones((2, 3, 1))
    raised = ones.copy()
    raised[1, 2] = 2
    for k, v in ((ones, raised), (raised, ones)):
        cache = QuantisedCache(bits=12, calibration=10, headroom=1.25)
        assert cache.append(k, v) == 2
        assert cache.append(k[:, 2:], v[:, 2:]) == 1
