"""Quantised attention: its definition, its bit-exact form, and that it decodes step by step."""

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention
from golden.algorithms.kllm.attention import (
    LEVELS,
    QuantizedAttention,
    ends,
    fit_codebooks,
    half,
    quantize,
    row_bytes,
    spread,
)
from golden.algorithms.kllm.quantize import dynamic_outliers


def operands(tokens=20, d=16, seed=0):
    """q [6, token, d], k and v [2, token, d]."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(heads, tokens, d)).astype(np.float32) for heads in (6, 2, 2)]


FITTED = pytest.mark.parametrize("fitted", [False, True])


def codebooks(q, k, v, fitted):
    return fit_codebooks(q, k, v, fitted=fitted)


def hadamard(n):
    """Sylvester's matrix over the square root of `n`, a power of two."""
    made = np.ones((1, 1))
    while len(made) < n:
        made = np.block([[made, made], [made, -made]])
    return made / np.sqrt(n)


def definition(q, k, v, c, head):
    """One head's last token, number by number in float64: q [d], k and v [token, d]."""
    f16, kept = np.float16, np.zeros(len(q), bool)
    if c.mean is not None:
        turned = hadamard(len(q))
        q = (q @ turned).astype(np.float32)
        k = ((k - c.mean[head]) @ turned).astype(np.float32)
        kept = dynamic_outliers(q.astype(f16), 3)
    values = []
    for x, codebook in ((np.where(kept, 0, q)[None], c.q), (k, c.k), (v, c.v)):
        index, scale = quantize(x, codebook)
        values.append((codebook.astype(float)[index], scale))
    (cq, sq), (ck, sk), (cv, sv) = values
    sk = (sk.astype(float) / np.sqrt(len(q))).astype(f16)
    query = np.where(kept, q.astype(f16), float(sq[0]) * cq[0])
    scores = np.array([float(s) * (query @ row) for s, row in zip(sk, ck)])  # noqa: B905
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


@FITTED
def test_is_its_definition(fitted):
    q, k, v = operands()
    c = codebooks(q, k, v, fitted)
    found = QuantizedAttention(c).sequence(q, k, v)
    for head in range(6):
        for t in range(q.shape[1]):
            rows = slice(0, t + 1)
            kv = head // 3
            expected = definition(q[head, t], k[kv, rows], v[kv, rows], c, kv)
            # A score on the border of two FP16 numbers falls to either side by float32's rounding.
            np.testing.assert_allclose(found[head, t], expected, atol=0.02)
    exact = [
        (found[3 * kv + h, t] == definition(q[3 * kv + h, t], k[kv, :n], v[kv, :n], c, kv)).mean()
        for kv in range(2)
        for h in range(3)
        for t, n in enumerate(range(1, q.shape[1] + 1))
    ]
    assert np.mean(exact) > 0.8


@FITTED
@pytest.mark.parametrize("tokens", [3, 40])
def test_bit_exact_agrees(tokens, fitted):
    """Within 2^-9 of the largest output in the median, and 6 % where a weight's level moves."""
    q, k, v = operands(tokens, seed=tokens)
    c = codebooks(q, k, v, fitted)
    found = QuantizedAttention(c).sequence(q, k, v)
    exact = QuantizedAttention(c, bit_exact=True).sequence(q, k, v)
    error = np.abs(found - exact).max(axis=-1) / np.abs(found).max()
    print(f"median {np.median(error):.2e}, largest {error.max():.2e}")
    assert np.median(error) < 2**-9 and error.max() < 0.06
    assert (found != exact).any()


@FITTED
def test_it_is_close_to_dense_attention(fitted):
    q, k, v = operands(60)
    found = QuantizedAttention(codebooks(q, k, v, fitted)).sequence(q, k, v)
    dense = DenseAttention().sequence(q, k, v)
    error = np.linalg.norm(found - dense) / np.linalg.norm(dense)
    assert 0.01 < error < 0.2


@FITTED
@pytest.mark.parametrize("bit_exact", [False, True])
def test_step_by_step_is_all_at_once(bit_exact, fitted):
    q, k, v = operands(12)
    c = codebooks(q, k, v, fitted)
    whole = QuantizedAttention(c, bit_exact=bit_exact).sequence(q, k, v)
    attention = QuantizedAttention(c, bit_exact=bit_exact)
    first = attention.sequence(q[:, :5], k[:, :5], v[:, :5])
    rest = [attention.step(q[:, t], k[:, t], v[:, t]) for t in range(5, 12)]
    found = np.concatenate([first, np.stack(rest, axis=1)], axis=1)
    if bit_exact:
        np.testing.assert_array_equal(found, whole)
    else:
        np.testing.assert_allclose(found, whole, atol=0.02)
    stored = row_bytes(k.shape[2]) / (2 * k.shape[2])  # over that of FP16 numbers
    assert attention.rows == 24 and attention.traffic.ratio == stored


def test_ends():
    w = np.array([[3, 1, 1, 2, 3, 9], [0, 0, 0, 0, 5, 7]], np.float32)
    keep = np.array([[True] * 5 + [False], [True, True, False, False, False, False]])
    # Both ends of the second token are one element.
    expected = [[True, True, False, False, False, False], [True, False, False, False, False, False]]
    np.testing.assert_array_equal(ends(w, keep, 1), expected)
    np.testing.assert_array_equal(ends(w, keep, 3), keep)


def test_rounding_to_half():
    """NumPy's own: every FP16 number, the numbers midway between two, and those beside these."""
    exact = np.arange(0x7BFF, dtype=np.uint16).view(np.float16).astype(np.float32)
    midway = (exact[1:] + exact[:-1]) / 2
    some = np.concatenate([exact, midway, *(np.nextafter(midway, to) for to in exact[[0, -1]])])
    assert np.array_equal(half(some), some.astype(np.float16).astype(np.float32))


def test_what_all_keys_share_costs_nothing():
    """What all keys share costs the fitted form nothing."""
    q, k, v = operands(60, d=64)
    k += 5 * np.random.default_rng(1).normal(size=(2, 1, 64)).astype(np.float32)
    dense = DenseAttention().sequence(q, k, v)
    errors = [
        np.linalg.norm(QuantizedAttention(codebooks(q, k, v, fitted)).sequence(q, k, v) - dense)
        for fitted in (False, True)
    ]
    print(errors)
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("d", [1, 2, 24, 64])
def test_spread_is_a_rotation(d):
    rng = np.random.default_rng(d)
    q, k = rng.normal(size=(2, 3, 5, d)).astype(np.float32)
    size = d & -d
    expected = np.kron(np.eye(d // size), hadamard(size))
    np.testing.assert_allclose(spread(q), q @ expected, atol=1e-5)
    scores, expected = (a @ b.swapaxes(1, 2) for a, b in ((spread(q), spread(k)), (q, k)))
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    # A vector alone and among others is the same on every bit.
    np.testing.assert_array_equal(spread(q[1, 2]), spread(q)[1, 2])


@pytest.mark.parametrize(("d", "outliers"), [(1, 0), (2, 0), (4, 1), (6, 2), (7, 3), (64, 3)])
def test_small_heads_have_fewer_outliers(d, outliers):
    """At least one element of a query is an inlier, in floats and in the accelerator."""
    rng = np.random.default_rng(d)
    q, k, v = rng.normal(size=(3, 2, 9, d)).astype(np.float32)
    codebooks = fit_codebooks(q, k, v, fitted=True)
    assert codebooks.query_outliers == outliers
    found = QuantizedAttention(codebooks).sequence(q, k, v)
    exact = QuantizedAttention(codebooks, bit_exact=True).sequence(q, k, v)
    np.testing.assert_allclose(found, exact, atol=0.05 * np.abs(v).max())
