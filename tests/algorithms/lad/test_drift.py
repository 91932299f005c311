"""The caches keep to their definition, on real data and on random data."""

import numpy as np
import pytest

from golden.algorithms.lad import PAPER_BOUNDS, LocalityAwareAttention, measure_drift
from golden.algorithms.lad.drift import relative_error

CACHES = "ABCDEF"


@pytest.fixture(scope="module")
def real(shipped_trace):
    """One kv head of the middle layer, with its three query heads."""
    return shipped_trace.q[1, :3], shipped_trace.k[1, :1], shipped_trace.v[1, :1]


@pytest.fixture(scope="module")
def random():
    rng = np.random.default_rng(7)
    q = np.cumsum(rng.normal(size=(2, 400, 16)), axis=1) / 4
    k, v = rng.normal(size=(2, 1, 400, 16))
    return q, k, v


def largest(drift):
    return max(drift.caches[name].max() for name in CACHES)


@pytest.mark.parametrize("data", ["real", "random"])
def test_drift_is_bounded(data, request):
    """Errors of the caches stay within what measurements on 2000 tokens allow."""
    q, k, v = request.getfixturevalue(data)
    single = measure_drift(q, k, v)
    half = measure_drift(q, k, v, storage="float16")
    refreshed = measure_drift(q, k, v, storage="float16", refresh=16)
    assert single.steps.tolist() == list(range(16, q.shape[1] + 1, 16))
    for drift in (single, half, refreshed):
        assert drift.caches.keys() == set(CACHES)
        assert all(error.shape == (len(single.steps), len(q)) for error in drift.caches.values())
        assert drift.output.shape == (len(single.steps), len(q))
    assert largest(single) < 2e-5
    assert np.median(single.output) < 2e-5
    assert 2e-5 < largest(half) < 0.1
    assert np.median(single.output) < np.median(half.output) < 0.1
    # Recomputed just before each sample: the rounding to FP16 alone is left.
    assert largest(refreshed) < 2**-10
    late = len(half.steps) // 2
    for name in CACHES:
        assert np.median(half.caches[name][late:]) > np.median(refreshed.caches[name][late:])


def test_a_wrong_cache_shows(random, monkeypatch):
    """From step 200 on, one number of one cache is 1.5 times as large."""
    step = LocalityAwareAttention.step

    def faulty_step(self, q, k, v):
        o = step(self, q, k, v)
        if self.statistics.steps == 200:
            self.caches.B[1] *= 1.5
        return o

    monkeypatch.setattr(LocalityAwareAttention, "step", faulty_step)
    drift = measure_drift(*random, every=10, bounds=PAPER_BOUNDS)
    wrong = drift.caches["B"][:, 1] > 0.01
    assert drift.steps[wrong][0] == 200
    assert drift.caches["B"][:, 0].max() < 2e-5
    assert drift.output[:20].max() < 1e-3 < drift.output[20:, 1].max()


def test_relative_error():
    value, exact = np.array([[3.0, 4], [0, 0], [0, 1]]), np.array([[3.0, 0], [0, 0], [0, 0]])
    assert relative_error(value, exact).tolist() == [4 / 3, 0, np.inf]


@pytest.mark.parametrize("data", ["real", "random"])
def test_pairs_do_not_drift_with_products_in_fp16(data, request):
    """A product of two roundings is off by 2^-10 of itself at most; differences add up theirs."""
    arrays = request.getfixturevalue(data)
    drifts = [
        measure_drift(*arrays, arithmetic="fp16", terms=terms) for terms in ("pairs", "differences")
    ]
    pairs, differences = drifts
    assert largest(pairs) < 2**-10 < largest(differences)
    assert np.median(pairs.output) < np.median(differences.output) / 2
    quarter = len(pairs.steps) // 4
    for name in CACHES:
        early, late = pairs.caches[name][:quarter], pairs.caches[name][-quarter:]
        assert np.median(late) <= 2 * np.median(early) + 1e-6, name
