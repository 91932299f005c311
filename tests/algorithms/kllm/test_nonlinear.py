"""Nonlinear functions on indices against the functions of the dequantised vector."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.algorithms.kllm.matvec import matvec
from golden.algorithms.kllm.nonlinear import layer_norm, replace_codebook, rms_norm
from tests.algorithms.kllm.test_matvec import operands

cases = given(
    st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 50), st.booleans(),
    st.sampled_from([0, 0.2, 1]),
)  # fmt: skip


@cases
def test_rms_norm(seed, bits, k, zeros, share):
    a, _ = operands(seed, bits, 1, k, 1, zeros, share)
    x = a.dequantize()
    found = rms_norm(a, 1e-5)
    expected = x / np.sqrt(sum(value**2 for value in x) / k + 1e-5)
    np.testing.assert_allclose(found.dequantize(), expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(found.index, a.index)
    np.testing.assert_array_equal(found.codebook, a.codebook)


@cases
def test_layer_norm(seed, bits, k, zeros, share):
    a, _ = operands(seed, bits, 1, k, 1, zeros, share)
    x = a.dequantize()
    found = layer_norm(a, 1e-2)
    centred = x - sum(x) / k
    expected = centred / np.sqrt(sum(value**2 for value in centred) / k + 1e-2)
    np.testing.assert_allclose(found.dequantize(), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(found.index, a.index)
    np.testing.assert_array_equal(found.codebook, a.codebook)


@cases
def test_replace_codebook(seed, bits, k, zeros, share):
    """A function that neither scales nor rises everywhere, nor maps 0 to 0."""
    a, _ = operands(seed, bits, 1, k, 1, zeros, share)
    found = replace_codebook(lambda x: np.cos(x) + 0.1 * x, a)
    x = a.dequantize()
    np.testing.assert_allclose(found.dequantize(), np.cos(x) + 0.1 * x, rtol=1e-12, atol=1e-13)
    assert not found.value[~a.outlier].any()
    np.testing.assert_array_equal(found.index, a.index)


def test_the_norm_may_wait_for_the_product():
    """Fig. 4: the factor goes into the scale, so the product of the normalised is the product."""
    a, b = operands(5, 4, 4, 60, 7, True, 0.1)
    for norm in (rms_norm, layer_norm):
        normed = norm(a)
        expected = normed.dequantize() @ b.dequantize()
        np.testing.assert_allclose(matvec(normed, b), expected, rtol=1e-9, atol=1e-10)
    factor = rms_norm(a).scale / float(a.scale)
    np.testing.assert_allclose(matvec(rms_norm(a), b), factor * matvec(a, b), rtol=1e-11)


def test_a_replaced_codebook_multiplies():
    a, b = operands(6, 3, 4, 60, 7, True, 0.1)
    silu = replace_codebook(lambda x: x / (1 + np.exp(-x)), a)
    expected = silu.dequantize() @ b.dequantize()
    np.testing.assert_allclose(matvec(silu, b), expected, rtol=1e-9, atol=1e-10)


def test_functions_see_each_centroid_once():
    a, _ = operands(7, 3, 1, 500, 1, False, 0)
    sizes = []
    replace_codebook(lambda x: sizes.append(x.size) or x, a)
    assert sizes[0] == 8


@pytest.mark.parametrize("norm", [rms_norm, layer_norm])
def test_vectors_of_zeros_need_eps(norm):
    a, _ = operands(8, 2, 1, 10, 1, False, 0)
    zero = type(a)(a.index, np.zeros_like(a.codebook), a.scale, a.zero, a.outlier, a.value)
    np.testing.assert_array_equal(norm(zero, 1e-5).dequantize(), np.zeros(10))
