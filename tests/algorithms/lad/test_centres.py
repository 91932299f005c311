"""Algorithm 1 against its own lines, one key at a time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.algorithms.lad.centres import Centres


def algorithm_1(keys, threshold):
    """cid, norm, dnorm and C of one head's keys, in plain Python."""
    cid, norm, dnorm, centres = [], [], [], []
    for n, key in enumerate(keys):
        max_cos, max_pos = 0.0, 0
        norm.append(math.sqrt(sum(float(x) * float(x) for x in key)))
        for pos in centres:
            dot = sum(float(x) * float(y) for x, y in zip(key, keys[pos], strict=True))
            length = norm[n] * norm[pos]
            cos = dot / length if length > 0 else 0.0
            if abs(cos) > abs(max_cos):
                max_cos, max_pos = cos, pos
        if max_cos > threshold:
            cid.append(max_pos)
            dnorm.append(norm[n] / norm[max_pos])
        elif max_cos < -threshold:
            cid.append(max_pos)
            dnorm.append(-norm[n] / norm[max_pos])
        else:
            cid.append(n)
            dnorm.append(1.0)
            centres.append(n)
    return cid, norm, dnorm, centres


def run(keys, threshold):
    centres = Centres(threshold)
    for n in range(1, keys.shape[1] + 1):
        centres.add(keys[:, :n])
    return centres


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 0.9, 0.98]), st.integers(1, 4))
def test_algorithm_1(seed, threshold, d):
    """Small integers make parallel, opposite, zero and equally near keys common."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(-3, 4, size=(2, rng.integers(1, 40), d)).astype(np.float64)
    centres = run(keys, threshold)
    for h in range(2):
        cid, norm, dnorm, c = algorithm_1(keys[h], threshold)
        assert centres.cid[h].tolist() == cid
        assert np.flatnonzero(centres.is_centre[h]).tolist() == c
        np.testing.assert_allclose(centres.norm[h], norm, rtol=1e-15)
        np.testing.assert_allclose(centres.dnorm[h], dnorm, rtol=1e-14)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.6, 0.9, 0.98]), st.integers(1, 6))
def test_keys_of_a_prompt_are_added_as_one_by_one(seed, threshold, d):
    """To the bit, in FP32 too, after some keys; parallel, zero and nearly parallel ones."""
    rng = np.random.default_rng(seed)
    n, before = int(rng.integers(2, 60)), int(rng.integers(0, 3))
    keys = rng.integers(-3, 4, size=(2, n + before, d)) * rng.choice([0.1, 1.0, 7.0])
    keys = (keys + rng.choice([0, 1e-3], size=keys.shape)).astype(np.float32)
    single, together = run(keys, threshold), run(keys[:, :before], threshold)
    together.add(keys, n)
    for name in ("cid", "norm", "dnorm", "is_centre"):
        assert np.array_equal(getattr(together, name), getattr(single, name)), name


def test_keys_of_a_long_prompt_are_added_as_one_by_one():
    """Of more keys than one product of matrices takes, some near the threshold."""
    rng = np.random.default_rng(5)
    keys = (rng.normal(size=(1, 20, 8)) + 0.17 * rng.normal(size=(30, 20, 8))).reshape(2, 300, 8)
    keys = keys.astype(np.float32)
    single, together = run(keys, 0.9), Centres(0.9)
    together.add(keys, 300)
    assert 0.05 < single.is_centre.mean() < 0.95
    for name in ("cid", "norm", "dnorm", "is_centre"):
        assert np.array_equal(getattr(together, name), getattr(single, name)), name


def test_the_oldest_of_equally_near_centres():
    """(1, 1) is as near to (1, 0) as to (0, 1)."""
    keys = np.array([[[0.0, 1], [1, 0], [2, 2]]])
    assert run(keys, 0.7).cid[0].tolist() == [0, 1, 0]
    assert run(keys, 0.71).cid[0].tolist() == [0, 1, 2]


def test_a_cosine_on_the_threshold_makes_a_centre():
    keys = np.array([[[1.0, 0], [3, 4], [-3, 4]]])  # cosines 0.6 and -0.6 with the first
    assert run(keys, 0.6).is_centre[0].tolist() == [True, True, True]
    joined = run(keys, np.nextafter(0.6, 0))
    assert joined.is_centre[0].tolist() == [True, False, False]
    assert joined.dnorm[0].tolist() == [1, 5, -5]


def test_keys_that_joined_are_no_centres():
    """The third key is near the second alone, which is no centre."""
    keys = np.array([[[1.0, 0], [0.9, 0.3], [0.9, 0.6]]])
    assert run(keys, 0.9).cid[0].tolist() == [0, 0, 2]


@pytest.mark.parametrize("threshold", [-0.1, 1.1, np.nan])
def test_threshold_is_checked(threshold):
    with pytest.raises(ValueError, match="collinear must lie between 0 and 1, not"):
        Centres(threshold)
