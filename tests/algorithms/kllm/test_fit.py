"""Weights fitted to their inputs err less than the paper's, in the products with these inputs."""

import numpy as np
import pytest

from golden.algorithms.kllm.fit import (
    choose_with_feedback,
    damped_hessian,
    fit_codebook,
    fit_weights,
    output_error,
)
from golden.algorithms.kllm.kmeans import nearest
from golden.algorithms.kllm.quantize import QuantizedWeights, largest_scale, quantize_weights


def inputs(k, tokens=400, seed=0):
    """Correlated inputs with some large channels, [token, K]."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(tokens, k)) @ rng.normal(size=(k, k)) / np.sqrt(k)
    return (x * rng.lognormal(0, 1, k)).astype(np.float32)


def hessian(k, **given):
    x = inputs(k, **given)
    return x.T @ x / len(x)


def matrix(k, n, seed=1):
    rng = np.random.default_rng(seed)
    return (rng.standard_t(5, (k, n)) * rng.lognormal(-3, 0.5, n)).astype(np.float32)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_fitted_errs_less_than_paper(bits):
    w, h = matrix(96, 70), hessian(96)
    paper = output_error(w, quantize_weights(w, bits), h)
    together = output_error(w, fit_weights(w, h, bits, feedback=False), h)
    fitted = output_error(w, fit_weights(w, h, bits), h)
    print(f"paper {paper:.3%}, together {together:.3%}, with feedback {fitted:.3%}")
    assert fitted < 0.75 * together < 0.75 * paper


def test_real_matrices(shipped_trace):
    for name, w in shipped_trace.w.items():
        if len(w) > 1000:
            continue  # as many tokens as the trace has are far too few
        x = shipped_trace.x[name].astype(np.float32)
        h, w = x.T @ x / len(x), w.astype(np.float32)
        assert output_error(w, fit_weights(w, h), h) < 0.6 * output_error(w, quantize_weights(w), h)


def test_feedback_changes_indices_only_to_lower_the_error():
    """In every column by itself, with the codebook and scale of the nearest indices."""
    w, h = matrix(130, 50), hessian(130)
    near = fit_weights(w, h, 3, feedback=False)
    index = choose_with_feedback(w, h, near.index, near.codebook, near.scale)
    damped, changed = damped_hessian(h), (index != near.index).any(axis=0)
    assert changed.mean() > 0.9
    chosen = QuantizedWeights(index, near.codebook, near.scale, near.zero)
    errors = [w - quantised.dequantize() for quantised in (chosen, near)]
    after, before = (np.einsum("kn,kj,jn->n", e, damped, e) for e in errors)
    assert (after[changed] < before[changed] * (1 + 1e-4)).all()
    assert after.sum() < 0.8 * before.sum()


def test_a_column_that_feedback_would_spoil_keeps_the_nearest():
    """Of uncorrelated inputs no index can take up another's error."""
    w, h = matrix(40, 30), np.diag(np.linspace(1, 2, 40))
    near = fit_weights(w, h, 2, feedback=False)
    index = choose_with_feedback(w, h, near.index, near.codebook, near.scale)
    assert (index != near.index).mean() < 1e-3


def test_importance_moves_scale_and_codebook():
    """Exactly two values times a scale in the rows that matter: these are met, the others not."""
    rng = np.random.default_rng(2)
    w = rng.normal(size=(20, 12)).astype(np.float32)
    scale = rng.uniform(0.5, 2, 12)
    w[:10] = rng.choice([-0.5, 1], size=(10, 12)) * scale
    importance = np.where(np.arange(20) < 10, 1, 1e-7).astype(np.float32)
    codebook, found = fit_codebook(w, importance, 1)
    product = codebook.astype(float)[nearest(w / found.astype(float), codebook)] * found
    np.testing.assert_allclose(product[:10], w[:10], rtol=0.02)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 9), (70, 5000)])
def test_shapes(shape):
    w = matrix(*shape)
    found = fit_weights(w, hessian(shape[0]), 2)
    assert found.index.shape == shape and found.index.max() < 4
    assert found.codebook.dtype == found.scale.dtype == np.float16
    assert (found.scale > 0).all() and (np.diff(found.codebook.astype(float)) >= 0).all()
    assert output_error(w, found, hessian(shape[0])) < 0.2


def test_zeros():
    """A channel and a matrix of zeros, and inputs that are never there."""
    h = np.zeros((8, 8))
    assert (fit_weights(np.zeros((8, 3)), h).dequantize() == 0).all()
    w = matrix(8, 3)
    w[:, 1] = 0
    found = fit_weights(w, h).dequantize()
    assert np.abs(found - w).max() <= 0.2 * largest_scale(w).max()


@pytest.mark.parametrize("bits", [0, 9])
def test_wrong_bits(bits):
    with pytest.raises(ValueError, match=f"^bits must be between 1 and 8, not {bits}$"):
        fit_weights(matrix(4, 4), np.eye(4), bits)
