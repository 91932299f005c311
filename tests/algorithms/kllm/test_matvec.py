"""Products on indices against loops over equation 1 and against the dequantised product."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.algorithms.kllm.matvec import (
    concatenate,
    count_indices,
    matvec,
    matvec_integer,
    product_table,
    reduce,
)
from golden.algorithms.kllm.quantize import (
    QuantizedActivations,
    QuantizedWeights,
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
    outlier_count,
    quantize_activations,
    quantize_weights,
)


def equation_1(a, b):
    """y in loops; and the sum of magnitudes, to which rounding is relative."""
    k_count, n_count = b.index.shape
    y, size = np.zeros(n_count), np.zeros(n_count)
    for n in range(n_count):
        for k in range(k_count):
            centroid = float(a.codebook[a.index[k]])
            element = float(a.scale) * (centroid - float(a.zero))
            if a.outlier[k]:
                element = float(a.value[k])
            weight = float(b.codebook[b.index[k, n]]) - float(b.zero[n])
            y[n] += element * float(b.scale[n]) * weight
            largest = (abs(centroid) + abs(float(a.zero))) * float(a.scale) + abs(float(a.value[k]))
            smallest = abs(float(b.codebook[b.index[k, n]])) + abs(float(b.zero[n]))
            size[n] += largest * abs(float(b.scale[n])) * smallest
    return y, size


def operands(seed, bits_a, bits_b, k, n, zeros, share):
    rng = np.random.default_rng(seed)
    half = np.float16
    outlier = rng.random(k) < share
    a = QuantizedActivations(
        rng.integers(0, 1 << bits_a, k).astype(np.uint8),
        np.sort(rng.normal(size=1 << bits_a)).astype(half),
        half(rng.random() + 0.1),
        half(rng.normal() * zeros),
        outlier,
        np.where(outlier, 10 * rng.normal(size=k), 0).astype(half),
    )
    b = QuantizedWeights(
        rng.integers(0, 1 << bits_b, (k, n)).astype(np.uint8),
        np.sort(rng.normal(size=1 << bits_b)).astype(half),
        (rng.random(n) + 0.1).astype(half),
        (rng.normal(size=n) * zeros).astype(half),
    )
    return a, b


@given(
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from([0, 0.2, 1]),
)
def test_matvec_is_equation_1(seed, bits_a, bits_b, k, n, zeros, share):
    a, b = operands(seed, bits_a, bits_b, k, n, zeros, share)
    expected, size = equation_1(a, b)
    found = matvec(a, b)
    assert found.dtype == np.float64
    assert (np.abs(found - expected) <= 1e-14 * (k + 256) * size).all()
    assert (np.abs(a.dequantize() @ b.dequantize() - expected) <= 1e-14 * (k + 4) * size).all()


@given(st.integers(0, 2**32))
def test_the_table_in_half_precision_is_near(seed):
    a, b = operands(seed, 4, 4, 64, 5, False, 0.1)
    _, size = equation_1(a, b)
    table = product_table(a.codebook, b.codebook, np.float16)
    assert table.dtype == np.float16
    # Half a unit in the last place of each product; 2^-25 where it is subnormal.
    bound = 2.0**-11 * size + 64 * 2.0**-25 * float(a.scale) * b.scale.astype(float)
    assert (np.abs(matvec(a, b, table) - matvec(a, b)) <= bound * (1 + 1e-9)).all()


def test_the_table_given_is_the_table_used():
    a, b = operands(1, 2, 3, 20, 4, False, 0)
    table = product_table(a.codebook, b.codebook)
    np.testing.assert_allclose(matvec(a, b, 3 * table), 3 * matvec(a, b), rtol=1e-12)


def test_product_table_is_indexed_by_activation_then_weight():
    a, b = np.array([1, 2], np.float16), np.array([3, 5, 7, 11], np.float16)
    np.testing.assert_array_equal(product_table(a, b), [3, 5, 7, 11, 6, 10, 14, 22])
    smallest = np.array([2.0**-24], np.float16)
    assert product_table(smallest, smallest)[0] == 2.0**-48


def test_figure_3a_in_shape():
    """K = 8, N = 4, nA = 1, nB = 2 as in the figure; the numbers are ours."""
    index_a = np.array([0, 1, 1, 0, 1, 0, 0, 1], np.uint8)
    index_b = np.array(
        [[0, 1, 2, 3], [3, 2, 1, 0], [1, 1, 1, 1], [2, 0, 2, 0]] * 2, np.uint8
    )  # fmt: skip
    both = concatenate(index_a, index_b, 2)
    assert both.dtype == np.uint16
    np.testing.assert_array_equal(both[:2], [[0, 1, 2, 3], [7, 6, 5, 4]])
    counts = count_indices(both, 8)
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(counts.sum(axis=1), [8, 8, 8, 8])
    # By hand, column 1 concatenates to 1 6 5 0 5 2 1 4.
    np.testing.assert_array_equal(counts[1], [1, 2, 1, 0, 1, 2, 1, 0])
    table = product_table(np.array([1, 10], np.float16), np.array([1, 2, 3, 4], np.float16))
    a, b = np.array([1, 10])[index_a], np.array([1, 2, 3, 4])[index_b]
    np.testing.assert_array_equal(reduce(counts, table), a @ b)


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 4), st.booleans())
def test_counts_by_loops(seed, k, n, weighted):
    rng = np.random.default_rng(seed)
    index = rng.integers(0, 8, (k, n))
    keep = rng.random(k) < 0.7
    increments = rng.integers(-9, 9, (k, n)) if weighted else None
    expected = [[0] * 8 for _ in range(n)]
    for row in range(k):
        for column in range(n):
            if keep[row]:
                by = increments[row, column] if weighted else 1
                expected[column][index[row, column]] += by
    np.testing.assert_array_equal(count_indices(index, 8, keep, increments), expected)


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 6), st.booleans())
def test_integer_products(seed, k, n, vector_of_integers):
    """Integer attention scores times V, and K-Means activations times an integer matrix."""
    rng = np.random.default_rng(seed)
    integers = rng.integers(-128, 128, k if vector_of_integers else (k, n))
    index = rng.integers(0, 16, (k, n) if vector_of_integers else k)
    codebook = rng.normal(size=16).astype(np.float16)
    scale = rng.random(n)
    values = codebook.astype(np.float64)[index]
    left, right = (integers, values) if vector_of_integers else (values, integers)
    expected, size = left @ right, np.abs(left) @ np.abs(right)
    found = matvec_integer(integers, index, codebook, scale)
    assert found.shape == (n,)
    assert (np.abs(found - scale * expected) <= 1e-13 * scale * size).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint64])
def test_integers_of_any_width_are_added_in_int64(dtype):
    integers = np.full(1000, 127, dtype)
    found = matvec_integer(integers, np.zeros((1000, 1), np.uint8), np.array([1.0], np.float16))
    np.testing.assert_array_equal(found, [127000])


def test_counts_pass_what_half_precision_holds():
    """4096 equal pairs: a count of 4096, beyond the integers of an FP16 counter's neighbours."""
    a, b = operands(2, 1, 1, 4096, 1, False, 0)
    a = dataclasses.replace(a, index=np.ones(4096, np.uint8))
    b = dataclasses.replace(b, index=np.ones((4096, 1), np.uint8))
    expected = 4096 * float(a.scale) * float(b.scale[0])
    expected *= float(a.codebook[1]) * float(b.codebook[1])
    np.testing.assert_allclose(matvec(a, b), [expected], rtol=1e-14)


def test_real_operands(shipped_trace):
    """Quantised end to end: the index-based product is the dequantised one, near the real one."""
    for name, x in shipped_trace.x.items():
        x = x.astype(np.float16)
        b = quantize_weights(shipped_trace.w[name].astype(np.float32))
        outlier = dynamic_outliers(x, outlier_count(x.shape[1]))
        samples = (x / inlier_scale(x, outlier).astype(np.float32)[:, None])[~outlier]
        codebook = fit_activation_codebook(samples, 4)
        a = quantize_activations(x, codebook, outlier)
        real = x.astype(np.float64) @ shipped_trace.w[name].astype(np.float64)
        for t in range(0, len(x), 16):
            found = matvec(a.token(t), b)
            together = a.dequantize()[t] @ b.dequantize()
            np.testing.assert_allclose(found, together, rtol=1e-11, atol=1e-11)
            error = np.square(found - real[t]).sum() / np.square(real[t]).sum()
            assert error < 0.06


def test_operands_must_fit():
    a, b = operands(3, 2, 2, 5, 3, False, 0)
    with pytest.raises(ValueError, match=r"^a must be one token's vector, not of shape \(1, 5\)$"):
        matvec(dataclasses.replace(a, index=a.index[None]), b)
    with pytest.raises(ValueError, match="^a has 5 elements but b 4 rows$"):
        matvec(a, dataclasses.replace(b, index=b.index[:4]))
    with pytest.raises(ValueError, match="^integers must be integers, not float64$"):
        matvec_integer(np.ones(3), np.zeros((3, 1), np.uint8), b.codebook)
