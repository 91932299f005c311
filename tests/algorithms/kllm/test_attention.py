"""Quantised attention: its definition, its bit-exact form, and that it decodes step by step."""

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention
from golden.algorithms.kllm.attention import (
    LEVELS,
    Codebooks,
    QuantizedAttention,
    ends,
    fit_codebook,
    fit_codebooks,
    quantize,
)
from golden.algorithms.kllm.quantize import dynamic_outliers


def operands(tokens=20, d=16, seed=0):
    """q [6, token, d], k and v [2, token, d]."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(heads, tokens, d)).astype(np.float32) for heads in (6, 2, 2)]


def codebooks(q, k, v):
    return Codebooks(fit_codebook(q), fit_codebook(k), fit_codebook(v))


def definition(q, k, v, c):
    """One head's last token, number by number in float64: q [d], k and v [token, d]."""
    f16 = np.float16
    values = []
    for x, codebook in ((q[None], c.q), (k, c.k), (v, c.v)):
        index, scale = quantize(x, codebook)
        values.append((codebook.astype(float)[index], scale))
    (cq, sq), (ck, sk), (cv, sv) = values
    sk = (sk.astype(float) / np.sqrt(len(q))).astype(f16)
    scores = np.array([float(sq[0]) * float(s) * (cq[0] @ row) for s, row in zip(sk, ck)])  # noqa: B905
    scores = scores.astype(f16).astype(float)
    p = np.exp(scores - scores.max())
    p = (p / p.sum()).astype(f16).astype(float)
    w = (p * sv).astype(f16)
    outlier = dynamic_outliers(w, min(3, len(w)))
    inliers = w[~outlier].astype(float)
    scale = inliers.max(initial=0) or 1.0
    integers = np.ceil(inliers / scale * LEVELS - 0.5)
    y = scale / LEVELS * (integers @ cv[~outlier]) + w[outlier].astype(float) @ cv[outlier]
    return y.astype(f16)


def test_is_its_definition():
    q, k, v = operands()
    c = codebooks(q, k, v)
    found = QuantizedAttention(c).sequence(q, k, v)
    for head in range(6):
        for t in range(q.shape[1]):
            rows = slice(0, t + 1)
            expected = definition(q[head, t], k[head // 3, rows], v[head // 3, rows], c)
            # A score on the border of two FP16 numbers falls to either side by float32's rounding.
            np.testing.assert_allclose(found[head, t], expected, atol=0.02)
    exact = [
        (found[h, t] == definition(q[h, t], k[h // 3, : t + 1], v[h // 3, : t + 1], c)).mean()
        for h in range(6)
        for t in range(q.shape[1])
    ]
    assert np.mean(exact) > 0.8


@pytest.mark.parametrize("tokens", [3, 40])
def test_bit_exact_agrees(tokens):
    """Within 2^-9 of the largest output in the median, and 6 % where a weight's level moves."""
    q, k, v = operands(tokens, seed=tokens)
    c = codebooks(q, k, v)
    found = QuantizedAttention(c).sequence(q, k, v)
    exact = QuantizedAttention(c, bit_exact=True).sequence(q, k, v)
    error = np.abs(found - exact).max(axis=-1) / np.abs(found).max()
    print(f"median {np.median(error):.2e}, largest {error.max():.2e}")
    assert np.median(error) < 2**-9 and error.max() < 0.06
    assert (found != exact).any()


def test_it_is_close_to_dense_attention():
    q, k, v = operands(60)
    found = QuantizedAttention(codebooks(q, k, v)).sequence(q, k, v)
    dense = DenseAttention().sequence(q, k, v)
    error = np.linalg.norm(found - dense) / np.linalg.norm(dense)
    assert 0.01 < error < 0.2


@pytest.mark.parametrize("bit_exact", [False, True])
def test_step_by_step_is_all_at_once(bit_exact):
    q, k, v = operands(12)
    c = codebooks(q, k, v)
    whole = QuantizedAttention(c, bit_exact=bit_exact).sequence(q, k, v)
    attention = QuantizedAttention(c, bit_exact=bit_exact)
    first = attention.sequence(q[:, :5], k[:, :5], v[:, :5])
    rest = [attention.step(q[:, t], k[:, t], v[:, t]) for t in range(5, 12)]
    found = np.concatenate([first, np.stack(rest, axis=1)], axis=1)
    if bit_exact:
        np.testing.assert_array_equal(found, whole)
    else:
        np.testing.assert_allclose(found, whole, atol=0.02)
    assert attention.rows == 24 and attention.traffic.ratio == 1


def test_ends():
    w = np.array([[3, 1, 1, 2, 3, 9], [0, 0, 0, 0, 5, 7]], np.float32)
    keep = np.array([[True] * 5 + [False], [True, True, False, False, False, False]])
    # Both ends of the second token are one element.
    expected = [[True, True, False, False, False, False], [True, False, False, False, False, False]]
    np.testing.assert_array_equal(ends(w, keep, 1), expected)
    np.testing.assert_array_equal(ends(w, keep, 3), keep)


def test_codebooks_for_what_the_scores_need():
    """Where channels are large in q and in k, scores err less when their errors count more."""
    rng = np.random.default_rng(0)
    size = np.where(np.arange(64) < 4, 6, 1)
    q, k = (rng.normal(size=(heads, 200, 64)) * size + size for heads in (6, 2))
    exact = q.reshape(2, -1, 64) @ k.swapaxes(1, 2)
    errors = []
    for weigh in (False, True):
        found = fit_codebooks(q, k, k, weigh=weigh)
        (iq, sq), (ik, sk) = quantize(q, found.q), quantize(k, found.k)
        q4, k4 = (
            codebook.astype(float)[index] * scale.astype(float)[..., None]
            for codebook, index, scale in ((found.q, iq, sq), (found.k, ik, sk))
        )
        errors.append(np.square(q4.reshape(2, -1, 64) @ k4.swapaxes(1, 2) - exact).mean())
        np.testing.assert_array_equal(found.v, fit_codebook(k))
    assert errors[1] < 0.8 * errors[0]
