"""Hadamard transforms: orthogonal, and as flat as can be."""

import numpy as np
import pytest

from golden.algorithms.baselines.hadamard import hadamard_matrix, hadamard_transform, paley

# Least orders m 2^j of the hidden sizes of SmolLM2, Qwen2.5 and Gemma 3, and some that have none:
# 16 = 15 + 1 and 52 = 51 + 1 = 2 (25 + 1) are of no prime, 92 = 2 (45 + 1) neither.
ORDERS = [4, 12, 20, 28, 36, 44, 60, 76, 140]


@pytest.mark.parametrize("order", ORDERS)
def test_paley_s_matrices(order):
    matrix = paley(order)
    assert set(matrix.ravel().tolist()) == {-1, 1}
    np.testing.assert_array_equal(matrix @ matrix.T, order * np.eye(order))


@pytest.mark.parametrize("order", [1, 2, 3, 6, 9, 16, 18, 40, 52, 92])
def test_orders_that_he_has_not(order):
    assert paley(order) is None


@pytest.mark.parametrize("n", [1, 2, 12, 24, 36, 48, 64, 76, 80, 576])
def test_flat_and_orthogonal(n):
    matrix = hadamard_transform(np.eye(n))
    np.testing.assert_allclose(np.abs(matrix), 1 / np.sqrt(n), rtol=1e-12)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(n), atol=1e-12)
    signed = hadamard_matrix(n, 3)
    np.testing.assert_allclose(np.abs(signed), 1 / np.sqrt(n), rtol=1e-12)
    # The rows of the transform, each with one sign.
    np.testing.assert_allclose(np.abs((signed * matrix).sum(axis=1)), 1, rtol=1e-9)


@pytest.mark.parametrize("n", [3, 9, 18])
def test_without_a_hadamard_matrix_it_is_orthogonal(n):
    matrix = hadamard_transform(np.eye(n))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(n), atol=1e-6)


def test_any_axes_before():
    x = np.random.default_rng(1).normal(size=(3, 2, 40)).astype(np.float32)
    matrix = hadamard_transform(np.eye(40))
    got = hadamard_transform(x)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, x @ matrix, atol=1e-5)
