"""The bit-exact models of the baselines beside float64 attention and H2O's algorithm."""

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention
from golden.algorithms.baselines import H2OAttention
from golden.baseline.dense_core import DenseCore
from golden.baseline.h2o_core import H2oCore

D, HEADS, KV_HEADS, TOKENS = 16, 6, 2, 60


def tokens(seed: int, ties: bool = False):
    """Each token's float16 ``q [heads, d]``, times the scale, ``k`` and ``v``."""
    rng = np.random.default_rng(seed)
    for token in range(TOKENS):
        q, k, v = (rng.standard_normal((n, D)) for n in (HEADS, KV_HEADS, KV_HEADS))
        if ties:  # all probabilities but the last token's are 0
            q[:], k[:] = 8, 8 * (token + 1)
        yield [x.astype(np.float16) for x in (q / np.sqrt(D), k, v)]


def test_dense_is_about_float64_attention():
    core = DenseCore(64, HEADS, KV_HEADS, D)
    exact = DenseAttention(scale=1.0)
    for token, (q, k, v) in enumerate(tokens(1)):
        result = core.step(q, k, v, group=3, restart=token == 0)
        np.testing.assert_allclose(result.o, exact.step(q, k, v), atol=4e-3)
        assert result.reports[0].length == token + 1


@pytest.mark.parametrize("capacity", [1, 2, 7, 24])
@pytest.mark.parametrize("ties", [False, True])
def test_h2o_evicts_as_the_algorithm_does(capacity, ties):
    """Also of tokens with equal sums the oldest, and the newest ones stay."""
    core = H2oCore(32, HEADS, KV_HEADS, D, sum_bits=12, position_bits=8)
    algorithm = H2OAttention(capacity, scale=1.0)
    held = np.empty(0)
    limits = {"target": capacity, "recent": -(-capacity // 2)}
    held = np.empty((0, 0))
    for token, (q, k, v) in enumerate(tokens(2, ties)):
        result = core.step(q, k, v, group=3, restart=token == 0, **limits)
        np.testing.assert_allclose(result.o, algorithm.step(q, k, v), atol=4e-3)
        kept = [set(core.positions[head, : core.length]) for head in range(KV_HEADS)]
        if token:  # the algorithm has evicted after its step, the core does before the next one
            before = [set(row.tolist()) for row in held]
            assert [found - {token} for found in kept] == before
        held = algorithm._positions[:, :capacity].copy()


def test_sums_saturate():
    core = H2oCore(4, 1, 1, 2, sum_bits=1, position_bits=8)
    row = np.ones((1, 2), np.float16)
    for token in range(12):
        core.step(row, (token == 0) * 20 * row, row, group=1, restart=token == 0, target=3)
    assert core.sums.max() == (1 << 25) - 1 and core.positions[0, 0] == 0
