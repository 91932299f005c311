"""Updates of the caches: in pairs or by differences, exact or with products in FP16."""

import numpy as np
import pytest

from golden.algorithms.lad import LocalityAwareAttention
from golden.algorithms.lad.caches import Caches

NAMES = Caches.NAMES


def history(tokens, d, dtype):
    rng = np.random.default_rng(5)
    q = np.cumsum(rng.normal(size=(2, tokens, d)), axis=1) / 2
    k, v = rng.normal(size=(2, 1, tokens, d))
    return [x.astype(dtype) for x in (q, k, v)]


def test_pairs_equal_differences_without_rounding():
    q, k, v = history(200, 6, np.float64)
    runs = [LocalityAwareAttention(terms=terms) for terms in ("differences", "pairs")]
    outputs = [run.sequence(q, k, v) for run in runs]
    np.testing.assert_allclose(*outputs, rtol=1e-7, atol=1e-9)
    for name in NAMES:
        caches = [getattr(run.caches, name) for run in runs]
        np.testing.assert_allclose(*caches, rtol=1e-9, atol=1e-9)
    assert runs[0].statistics == runs[1].statistics


def rounded_terms(modes, k, v):
    """The caches as the sum of each position's terms, products in FP16, sums in float64."""
    heads, d = len(modes.a), k.shape[2]
    caches = {"A": np.zeros((heads, d, d))}
    caches |= {name: np.zeros((heads, d)) for name in "BCD"}
    caches |= {name: np.zeros(heads) for name in "EF"}
    for h in range(heads):
        for a, b, key, value in zip(
            modes.a[h].astype(np.float16),
            modes.b[h].astype(np.float16),
            k[0].astype(np.float16),
            v[0].astype(np.float16),
            strict=True,
        ):
            a_v = a * value
            terms = {"A": np.outer(key, a_v), "B": a_v, "C": b * value, "D": a * key}
            for name, term in (terms | {"E": a, "F": b}).items():
                caches[name][h] += term.astype(np.float64)
    return caches


def test_exact_removal_leaves_only_the_terms_of_the_present_modes():
    """After 400 steps: what differs is FP32 rounding, 2^-24 of the caches' size for each term.

    Differences keep the errors of all earlier products: they are a hundred times as far off.
    """
    q, k, v = history(400, 8, np.float32)
    found = {}
    for terms in ("pairs", "differences"):
        run = LocalityAwareAttention(terms=terms, arithmetic="fp16")
        run.sequence(q, k, v)
        exact = rounded_terms(run.modes, k, v)
        found[terms] = max(
            np.abs(getattr(run.caches, name) - exact[name]).max() / np.abs(exact[name]).max()
            for name in NAMES
        )
    # In the history every head has fewer than 2 |U| <= 4096 terms; caches may have been larger.
    assert run.statistics.updates < 2 * 2048
    assert found["pairs"] < 4096 * 2**-24
    assert found["differences"] > 100 * found["pairs"]


def test_rebuilt_caches_are_those_of_pairs():
    """Refreshed or not, pairs arrive at the same terms."""
    q, k, v = history(120, 8, np.float32)
    options = {"terms": "pairs", "arithmetic": "fp16", "identification": "bounds"}
    never, once = (LocalityAwareAttention(**options, refresh=n) for n in (0, 120))
    never.sequence(q, k, v)
    once.sequence(q, k, v)
    assert once.statistics.refresh_rows > 0 == never.statistics.refresh_rows
    for name in NAMES:
        got, exact = getattr(never.caches, name), getattr(once.caches, name)
        assert np.abs(got - exact).max() < 2**-14 * np.abs(exact).max()


@pytest.mark.parametrize("terms", ["pairs", "differences"])
def test_rounding_to_fp16_costs_little_output(terms):
    q, k, v = history(200, 8, np.float32)
    exact = LocalityAwareAttention().sequence(q, k, v)
    o = LocalityAwareAttention(terms=terms, arithmetic="fp16").sequence(q, k, v)
    assert 0 < np.linalg.norm(o - exact) < 0.02 * np.linalg.norm(exact)
