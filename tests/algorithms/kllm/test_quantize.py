"""Quantisation against the definition in loops, and the outliers against Orizuru."""

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from golden.algorithms.kllm.kmeans import kmeans, nearest
from golden.algorithms.kllm.quantize import (
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
    outlier_count,
    quantize_activations,
    quantize_weights,
    static_outliers,
)
from golden.kllm.orizuru import orizuru

CODEBOOK = np.array([-0.9, -0.25, 0.25, 0.75], np.float16)


def closest(value, codebook):
    distances = [abs(float(value) - float(centroid)) for centroid in codebook]
    return distances.index(min(distances))


def test_weights_by_the_definition():
    rng = np.random.default_rng(0)
    w = rng.normal(size=(40, 6)).astype(np.float32) * np.array([1, 10, 0.01, 3, 2, 1], np.float32)
    found = quantize_weights(w, 3)
    scale = [np.float16(max(abs(value) for value in column)) for column in w.T]
    np.testing.assert_array_equal(found.scale, scale)
    x = w / np.array(scale, np.float32)
    np.testing.assert_array_equal(found.codebook, kmeans(x, 8).astype(np.float16))
    for k in range(40):
        for n in range(6):
            assert found.index[k, n] == closest(x[k, n], found.codebook)
            value = float(found.scale[n]) * float(found.codebook[found.index[k, n]])
            assert found.dequantize()[k, n] == value
    dtypes = [found.index.dtype, found.codebook.dtype, found.scale.dtype, found.zero.dtype]
    assert dtypes == [np.uint8, np.float16, np.float16, np.float16]
    assert not found.zero.any()
    np.testing.assert_allclose(found.dequantize(np.float32), found.dequantize(), rtol=1e-6)


def test_more_bits_err_less():
    w = np.random.default_rng(1).normal(size=(200, 8)).astype(np.float32)
    errors = [np.square(quantize_weights(w, bits).dequantize() - w).mean() for bits in range(1, 9)]
    assert (np.diff(errors) < 0).all()
    assert errors[-1] < 1e-3 * errors[0]


def test_channels_of_zeros_have_scale_one():
    w = np.array([[0, 1.0], [0, -0.5], [0, 0]], np.float32)
    found = quantize_weights(w, 2)
    np.testing.assert_array_equal(found.scale, [1, 1])
    np.testing.assert_array_equal(found.dequantize(), w)


def test_half_precision_weights_are_divided_in_single():
    w = np.random.default_rng(2).normal(size=(50, 4)).astype(np.float16)
    half, single = quantize_weights(w), quantize_weights(w.astype(np.float32))
    np.testing.assert_array_equal(half.codebook, single.codebook)
    np.testing.assert_array_equal(half.index, single.index)


@pytest.mark.parametrize(
    ("w", "bits", "message"),
    [
        (np.zeros(3), 4, r"w must be a matrix of finite floats, not float64\[3\]"),
        (np.zeros((0, 3)), 4, r"w must be a matrix of finite floats, not float64\[0, 3\]"),
        (np.zeros((1, 1), int), 4, r"w must be a matrix of finite floats, not int64\[1, 1\]"),
        (np.full((1, 1), np.nan), 4, r"w must be a matrix of finite floats, not float64\[1, 1\]"),
        (np.ones((1, 1)), 0, "bits must be between 1 and 8, not 0"),
        (np.ones((1, 1)), 9, "bits must be between 1 and 8, not 9"),
        (np.full((1, 1), 1e6), 4, "magnitude 1000000.0 is too large for an FP16 scale"),
    ],
)
def test_wrong_weights(w, bits, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        quantize_weights(w, bits)


@pytest.mark.parametrize(
    ("n", "share", "expected"),
    [(4096, 0.01, 21), (576, 0.01, 3), (1536, 0.01, 8), (4096, 0.1, 205), (100, 0, 0), (7, 1, 4)],
)
def test_outlier_count(n, share, expected):
    assert outlier_count(n, share) == expected


def test_outlier_count_takes_the_share_as_printed():
    assert ceil(0.14 / 2 * 100) == 8  # the float is a little above 0.14
    assert outlier_count(100, 0.14) == 7


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_wrong_shares(share):
    with pytest.raises(ValueError, match=f"share of outliers must be between 0 and 1, not {share}"):
        outlier_count(10, share)


def tokens(longest=12):
    """FP16 tokens: any finite values, or few distinct ones with both zeros."""
    anything = st.integers(0, 0xFFFF).filter(lambda bits: bits & 0x7C00 != 0x7C00)
    few = st.sampled_from([0x0000, 0x8000, 0x3C00, 0xBC00, 0x0001])
    shapes = st.tuples(st.integers(1, 3), st.integers(1, longest))
    return shapes.flatmap(
        lambda shape: st.sampled_from([anything, few]).flatmap(
            lambda element: arrays(np.uint16, shape, elements=element)
        )
    ).map(lambda bits: bits.view(np.float16))


@given(tokens(), st.data())
def test_dynamic_outliers_are_what_orizuru_pops(x, data):
    k = data.draw(st.integers(0, x.shape[1]))
    found = dynamic_outliers(x, k)
    for token, mask in zip(x, found, strict=True):
        popped = orizuru(token, k)
        expected = {*popped.max_indices.tolist(), *popped.min_indices.tolist()}
        assert set(np.flatnonzero(mask).tolist()) == expected


def test_dynamic_outliers_of_real_tokens(shipped_trace):
    for x in shipped_trace.x.values():
        x = x[:3].astype(np.float16)
        k = outlier_count(x.shape[1])
        for token, mask in zip(x, dynamic_outliers(x, k), strict=True):
            popped = orizuru(token, k)
            expected = np.union1d(popped.max_indices, popped.min_indices)
            np.testing.assert_array_equal(np.flatnonzero(mask), expected)


def test_ties_among_outliers_go_to_the_lower_index():
    x = np.array([[0, 5, 5, 5, -2, -2, -2]], np.float16)
    np.testing.assert_array_equal(np.flatnonzero(dynamic_outliers(x, 2)), [1, 2, 4, 5])
    zeros = np.array([[0.0, -0.0, 0.0, -0.0]], np.float16)
    np.testing.assert_array_equal(np.flatnonzero(dynamic_outliers(zeros, 1)), [0])


@pytest.mark.parametrize("k", [-1, 4])
def test_wrong_numbers_of_outliers(k):
    with pytest.raises(ValueError, match=f"^k must be between 0 and N = 3, not {k}$"):
        dynamic_outliers(np.zeros((2, 3), np.float16), k)


def test_static_outliers_lie_beyond_the_thresholds():
    x = np.array([-3, -2, 0, 1, 1.5], np.float16)
    np.testing.assert_array_equal(static_outliers(x, -2, 1), [True, False, False, False, True])


def test_activations_by_the_definition():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(5, 30)).astype(np.float16)
    outlier = dynamic_outliers(x, 2)
    found = quantize_activations(x, CODEBOOK, outlier)
    for t in range(5):
        inliers = [abs(value) for value, out in zip(x[t], outlier[t], strict=True) if not out]
        assert found.scale[t] == max(inliers)
        one = found.token(t)
        for k in range(30):
            if outlier[t, k]:
                assert one.value[k] == x[t, k] == one.dequantize()[k]
            else:
                index = closest(float(x[t, k]) / float(found.scale[t]), CODEBOOK)
                assert one.index[k] == index
                assert one.value[k] == 0
                assert one.dequantize()[k] == float(CODEBOOK[index]) * float(found.scale[t])
    np.testing.assert_array_equal(found.token(3).dequantize(), found.dequantize()[3])
    dtypes = [found.index.dtype, found.scale.dtype, found.zero.dtype, found.value.dtype]
    assert dtypes == [np.uint8, np.float16, np.float16, np.float16]


def test_a_token_without_inliers_but_zeros_has_scale_one():
    x = np.array([[0, 0, 0, 0], [9, 0, 0, -9], [1, 2, 3, 4]], np.float16)
    outlier = np.array([[False] * 4, [True, False, False, True], [True] * 4])
    found = quantize_activations(x, CODEBOOK, outlier)
    np.testing.assert_array_equal(found.scale, [1, 1, 1])
    np.testing.assert_array_equal(found.index[0], [1, 1, 1, 1])  # midway: the lower of -1/4, 1/4
    np.testing.assert_array_equal(found.dequantize()[2], x[2])


def test_a_fixed_scale_saturates():
    x = np.array([[-4, 0.6, 3]], np.float16)
    found = quantize_activations(x, CODEBOOK, np.zeros((1, 3), bool), np.float16(2))
    np.testing.assert_array_equal(found.index, [[0, 2, 3]])
    np.testing.assert_array_equal(found.scale, [2])


def test_scale_is_the_largest_magnitude_of_either_sign():
    x = np.array([[-3, 1, 2], [1, -1, 2.5]], np.float16)
    np.testing.assert_array_equal(inlier_scale(x, np.zeros((2, 3), bool)), [3, 2.5])
    np.testing.assert_array_equal(inlier_scale(x, x < -2), [2, 2.5])


def test_an_outlier_of_zero_is_positive():
    x = np.array([[-0.0, 1.0]], np.float16)
    found = quantize_activations(x, CODEBOOK, np.array([[True, False]]))
    assert not np.signbit(found.value[0, 0])


@pytest.mark.parametrize("x", [np.zeros((1, 2)), np.array([[np.nan]], np.float16), [[1.0]]])
def test_wrong_activations(x):
    with pytest.raises(ValueError, match="^activations must be finite float16 values$"):
        quantize_activations(x, CODEBOOK, np.zeros(np.shape(x), bool))


def test_a_codebook_of_many_samples_is_that_of_bins():
    rng = np.random.default_rng(9)
    samples = np.clip(rng.normal(0, 0.3, 70_000), -1, 1).astype(np.float32)
    weights = rng.random(len(samples)).astype(np.float32)
    for own in (None, weights):
        many, few = (fit_activation_codebook(samples, 4, own), kmeans(samples, 16, own))
        assert np.abs(many - few).max() < 0.01
        errors = [np.square(samples - c[nearest(samples, c)]) for c in (many, few)]
        costs = [np.average(error, weights=own) for error in errors]
        assert costs[0] < 1.001 * costs[1]


def test_activation_codebook():
    samples = np.array([0.0, 0.5, 1.0])
    np.testing.assert_array_equal(fit_activation_codebook(samples, 1), [0, 0.75])
    heavy = fit_activation_codebook(samples, 1, np.array([1, 1, 1000.0]))
    np.testing.assert_array_equal(heavy, [0.25, 1])
    assert heavy.dtype == np.float16
    with pytest.raises(ValueError, match="bits must be between 1 and 8"):
        fit_activation_codebook(samples, 9)
