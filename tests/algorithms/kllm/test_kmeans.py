"""One-dimensional K-Means against every partition, ckwrap, and the definition of nearest."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from golden.algorithms.kllm import kmeans as module
from golden.algorithms.kllm.kmeans import EXACT, binned, kmeans, nearest


def cost(x, weights, centroids):
    """Sum of weight * squared distance to the nearest centroid, by all distances."""
    x = np.asarray(x, np.float64)
    weights = np.ones(len(x)) if weights is None else weights
    return float(np.sum(weights * np.min((x[:, None] - centroids) ** 2, axis=1)))


def least_cost(x, weights, k):
    """The same for the best of all partitions of the sorted values into at most k runs."""
    order = np.argsort(x)
    x, weights = x[order], weights[order]
    best = np.inf
    for cuts in combinations(range(1, len(x)), min(k, len(x)) - 1):
        ends = [0, *cuts, len(x)]
        total = 0.0
        for first, last in zip(ends, ends[1:], strict=False):
            part, weight = x[first:last], weights[first:last]
            if weight.sum() > 0:
                mean = (part * weight).sum() / weight.sum()
                total += (weight * (part - mean) ** 2).sum()
        best = min(best, total)
    return best


small_values = st.lists(st.integers(-8, 8), min_size=1, max_size=9)


@given(small_values, st.integers(1, 5), st.data())
def test_no_partition_costs_less(values, k, data):
    x = np.array(values) / 4
    counts = st.lists(st.integers(0, 5), min_size=len(x), max_size=len(x))
    weights = np.array(data.draw(counts), float)
    assume(weights.any())
    found = kmeans(x, k, weights)
    assert found.shape == (k,) and found.dtype == np.float64
    assert (np.diff(found) >= 0).all()
    assert cost(x, weights, found) == pytest.approx(least_cost(x, weights, k), abs=1e-12)


@given(small_values, st.integers(1, 5), st.data())
def test_integer_weights_are_repetitions(values, k, data):
    x = np.array(values, float)
    counts = st.lists(st.integers(0, 3), min_size=len(x), max_size=len(x))
    weights = np.array(data.draw(counts))
    assume(weights.any())
    np.testing.assert_allclose(kmeans(x, k, weights), kmeans(np.repeat(x, weights), k), atol=1e-12)


def distributions(n, seed):
    rng = np.random.default_rng(seed)
    return {
        "normal": rng.normal(size=n),
        "laplace": rng.laplace(size=n),
        "heavy": rng.standard_t(2, size=n),
        "two": np.where(rng.random(n) < 0.3, rng.normal(-5, 0.1, n), rng.normal(5, 2, n)),
        "spikes": np.where(rng.random(n) < 0.5, 0.0, rng.normal(size=n)),
        "far": np.append(rng.normal(size=n - 1), 1e4),
        "coarse": rng.normal(size=n).round(1),
    }


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", distributions(10, 0))
def test_exact_costs_what_ckwrap_does(name, weighted):
    ckwrap = pytest.importorskip("ckwrap")
    for seed, k in ((1, 2), (2, 8), (3, 16)):
        x = distributions(EXACT, seed)[name]
        weights = np.random.default_rng(seed).random(len(x)) ** 4 if weighted else None
        found = cost(x, weights, kmeans(x, k, weights))
        best = cost(x, weights, np.array(ckwrap.ckmeans(x, k, weights=weights).centers))
        assert found == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", distributions(10, 0))
def test_fast_costs_little_more(name, weighted):
    """Beyond ``EXACT`` distinct values: within 0.5 % of the optimum."""
    ckwrap = pytest.importorskip("ckwrap")
    for seed, k in ((1, 8), (2, 16)):
        x = distributions(8000, seed)[name]
        weights = np.random.default_rng(seed).random(len(x)) ** 4 if weighted else None
        found = cost(x, weights, kmeans(x, k, weights))
        best = cost(x, weights, np.array(ckwrap.ckmeans(x, k, weights=weights).centers))
        assert best * (1 - 1e-9) <= found <= best * 1.005


def test_fast_costs_little_more_than_exact(monkeypatch):
    x = distributions(1200, 5)["heavy"]
    fast = cost(x, None, kmeans(x, 16))
    monkeypatch.setattr(module, "EXACT", 1200)
    exact = cost(x, None, kmeans(x, 16))
    assert exact <= fast * (1 + 1e-12)
    assert fast <= exact * 1.005


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", sorted(distributions(10, 0).keys() - {"far"}))
def test_bins_cost_little_more(name, weighted):
    """Within 0.1 % of K-Means of the values themselves."""
    x = distributions(20000, 7)[name].astype(np.float32)
    weights = np.random.default_rng(7).random(len(x)) ** 4 if weighted else None
    value, mass = binned(x, weights)
    assert len(value) <= 4096 and (np.diff(value) > 0).all() and (mass > 0).all()
    assert mass.sum() == pytest.approx(len(x) if weights is None else weights.sum())
    assert value @ mass == pytest.approx(x.sum() if weights is None else x @ weights, rel=1e-4)
    found = cost(x, weights, kmeans(value, 16, mass))
    assert found <= cost(x, weights, kmeans(x, 16, weights)) * 1.001


def test_bins_of_rows_with_one_weight_each():
    x = np.random.default_rng(8).normal(size=(30, 40)).astype(np.float32)
    weights = np.arange(30.0)[:, None]
    value, mass = binned(x, weights)
    assert mass.sum() == pytest.approx(weights.sum() * 40)
    assert value @ mass == pytest.approx((x * weights).sum())


def test_bins_of_one_value():
    for weights, total in ((None, 6), (np.full((2, 1), 0.5), 3)):
        value, mass = binned(np.full((2, 3), 1.5, np.float32), weights)
        assert value.tolist() == [1.5] and mass.tolist() == [total]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_bins_of_no_number(wrong):
    with pytest.raises(ValueError, match="x must hold finite floats"):
        binned(np.array([0, wrong, 1], np.float32))


@pytest.mark.parametrize("wrong", [[1, np.nan, 1], [1, -1, 1], [0, 0, 0]])
def test_bins_of_wrong_weights(wrong):
    with pytest.raises(ValueError, match="weights must be finite and at least 0, and one above 0"):
        binned(np.float32([0, 1, 2]), np.float32(wrong))


def test_lloyd_ends_where_every_centroid_is_the_mean_of_its_values():
    x = distributions(5000, 6)["normal"]
    found = kmeans(x, 16)
    index = nearest(x, found)
    for i, centroid in enumerate(found):
        assert x[index == i].mean() == pytest.approx(centroid, abs=1e-12)


def test_lloyd_keeps_the_centroid_of_a_cluster_that_loses_its_values():
    """Of 1 and 9 around their mean 5, both lie nearer to a neighbour's centroid."""
    value = np.array([0.0, 1.0, 9.0, 10.0])
    m0, m1 = np.arange(5.0), np.append(0, np.cumsum(value))
    found = module.lloyd(value, m0, m1, np.array([0, 1, 3, 4]))
    np.testing.assert_array_equal(found, [0.5, 5, 9.5])


def test_lloyd_gives_a_value_midway_to_the_lower_centroid():
    """4 lies midway between 1, the mean of 0 and 2, and 7, the mean of 4 and 10."""
    value = np.array([0.0, 2.0, 4.0, 10.0])
    m0, m1 = np.arange(5.0), np.append(0, np.cumsum(value))
    found = module.lloyd(value, m0, m1, np.array([0, 2, 4]))
    np.testing.assert_array_equal(found, [2, 10])


def test_order_does_not_matter():
    x = np.random.default_rng(4).normal(size=3000).round(2)
    np.testing.assert_array_equal(kmeans(x, 16), kmeans(x[::-1], 16))
    np.testing.assert_array_equal(kmeans(x, 16), kmeans(x.reshape(30, 100), 16))


def test_of_equal_solutions_the_lower_ends():
    np.testing.assert_array_equal(kmeans(np.array([0.0, 1.0, 2.0]), 2), [0, 1.5])


def test_fewer_values_than_centroids():
    np.testing.assert_array_equal(kmeans(np.array([3.0, 1, 3, 1]), 4), [1, 3, 3, 3])
    np.testing.assert_array_equal(kmeans(np.array([2.0]), 2), [2, 2])
    np.testing.assert_array_equal(kmeans(np.array([5.0, 1, 3]), 2, np.array([0, 2, 1])), [1, 3])


def test_nearly_equal_values_far_from_zero():
    """Sums about the mean: otherwise the differences would be lost to cancellation."""
    x = 2.0**30 + np.array([0, 1, 2, 1024, 1025]) / 1024
    np.testing.assert_allclose(kmeans(x, 2) - 2.0**30, [1 / 1024, 1024.5 / 1024], atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_other_floats(dtype):
    x = np.random.default_rng(7).normal(size=400).astype(dtype)
    np.testing.assert_array_equal(kmeans(x, 8), kmeans(x.astype(np.float64), 8))


codebooks = st.lists(st.integers(-20, 20), min_size=1, max_size=16, unique=True).map(sorted)


@given(codebooks, st.lists(st.integers(-50, 50), min_size=1, max_size=30))
def test_nearest_is_the_lowest_of_the_nearest(codebook, values):
    """Halves among integers: many values lie midway."""
    codebook, x = np.array(codebook, np.float16), np.array(values) / 2
    expected = np.abs(x[:, None] - codebook.astype(float)).argmin(axis=1)
    index = nearest(x, codebook)
    assert index.dtype == np.uint8
    np.testing.assert_array_equal(index, expected)


def test_nearest_among_repeated_centroids_has_their_value():
    codebook = np.array([-1, 2, 2, 2, 5], np.float16)
    x = np.array([-3, 0.5, 0.6, 2, 2.5, 3.5, 3.6])
    np.testing.assert_array_equal(codebook[nearest(x, codebook)], [-1, -1, 2, 2, 2, 2, 5])
    np.testing.assert_array_equal(nearest(x[3:4], codebook), [1])


def test_nearest_compares_in_float64():
    codebook = np.array([1, 1 + 2**-10], np.float16)  # FP16 cannot hold their midpoint
    x = np.array([1 + 2**-11, 1 + 2**-11 + 2**-23], np.float32)
    np.testing.assert_array_equal(nearest(x, codebook), [0, 1])


@pytest.mark.parametrize(
    ("x", "k", "weights", "message"),
    [
        ([1.0], 0, None, "k must be at least 1, not 0"),
        ([], 2, None, "x must hold finite floats, at least one"),
        ([np.nan], 2, None, "x must hold finite floats, at least one"),
        ([1.0, 2.0], 2, [1.0], "weights must be as many as values, 2, not 1"),
        ([1.0], 2, [-1.0], "weights must be finite and at least 0, and one above 0"),
        ([1.0], 2, [0.0], "weights must be finite and at least 0, and one above 0"),
        ([1.0], 2, [np.inf], "weights must be finite and at least 0, and one above 0"),
    ],
)
def test_wrong_arguments(x, k, weights, message):
    weights = None if weights is None else np.array(weights)
    with pytest.raises(ValueError, match=f"^{message}$"):
        kmeans(np.array(x), k, weights)
