"""Prompts whose outputs nobody needs: the same state as after steps, in less time."""

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention, attention_scores, softmax
from golden.algorithms.baselines import H2OAttention, SnapKVAttention, StreamingAttention
from golden.algorithms.prompt import probabilities
from golden.algorithms.topick import TokenPickerAttention
from golden.algorithms.unicaim import StaticDynamicAttention
from golden.algorithms.veda import VotingAttention
from tests.support.qkv import random_qkv

POLICIES = {
    "dense": lambda n: DenseAttention(),
    "streaming": lambda n: StreamingAttention(9, 3),
    "streaming, no sinks": lambda n: StreamingAttention(5, 0),
    "snapkv": lambda n: SnapKVAttention(9, n, window=4, kernel=3),
    "snapkv, longer prompt": lambda n: SnapKVAttention(9, n + 5, window=4, kernel=3),
    "voting": lambda n: VotingAttention(9, 5, prompt=n),
    "voting, no reserve": lambda n: VotingAttention(9, 0, b=1.5, prompt=n + 3),
    "voting, evicting": lambda n: VotingAttention(9, 5, prompt=n, prefill="evict"),
    "topick": lambda n: TokenPickerAttention(0.05, latency=3, calibration=8),
    "unicaim": lambda n: StaticDynamicAttention(5, 4, 3, prompt=n, observe=4),
    "unicaim, longer prompt": lambda n: StaticDynamicAttention(5, 4, 3, prompt=n + 2, observe=9),
    "unicaim, paper": lambda n: StaticDynamicAttention(5, 4, 3, prompt=n, observe=0),
    "h2o by step": lambda n: H2OAttention(9, prompt_by="step"),
}


@pytest.mark.parametrize("n", [1, 8, 9, 10, 11, 40])
@pytest.mark.parametrize("policy", POLICIES)
def test_later_steps_are_those_after_a_sequence(policy, n):
    q, k, v = random_qkv(6, 2, n + 12, 8, seed=n)
    steps, prompt = POLICIES[policy](n), POLICIES[policy](n)
    steps.sequence(q[:, :n], k[:, :n], v[:, :n])
    before = len(steps.evicted)
    prompt.prefill(q[:, :n], k[:, :n], v[:, :n])
    assert prompt.rows == steps.rows and prompt.evicted == steps.evicted
    for t in range(n, n + 12):
        step = q[:, t], k[:, t], v[:, t]
        assert np.allclose(prompt.step(*step), steps.step(*step), atol=1e-6)
    assert prompt.evicted == steps.evicted and prompt.rows == steps.rows
    assert policy != "voting" or len(steps.evicted) > before or n == 1


def test_votes_of_a_prompt():
    """Every count, in float64, where queries at different thresholds vote in one block."""
    q, k, v = random_qkv(4, 2, 300, 8, seed=5)
    for b in (0.2, 1.0, 3.0):
        steps, prompt = (VotingAttention(64, 7, b=b, prompt=300) for _ in range(2))
        steps.sequence(q, k, v)
        prompt.prefill(q, k, v)
        assert (prompt.votes == steps.votes).all() and prompt.votes.any()
        assert (prompt.positions == steps.positions).all()


@pytest.mark.parametrize("per", ["head", "layer"])
@pytest.mark.parametrize("n", [1, 9, 10, 300])
def test_h2o_keeps_the_prompt_s_heavy_hitters(per, n):
    """The newest half, and of the others those with the largest sums over all queries."""
    q, k, v = random_qkv(4, 2, n + 1, 8, seed=n)
    sums = np.zeros((2, n))
    for t in range(n):
        p = softmax(attention_scores(q[:, t], k[:, : t + 1]))
        sums[:, : t + 1] += p.reshape(2, 2, -1).sum(axis=1)
    attention = H2OAttention(9, per=per)
    attention.prefill(q[:, :n], k[:, :n], v[:, :n])
    kept = min(n, 9)
    assert attention.rows == 2 * kept
    for head in range(2):
        ranks = (sums.sum(axis=0) if per == "layer" else sums[head])[: max(n - 5, 0)]
        heavy = np.argsort(-ranks, kind="stable")[: kept - min(n, 5)].tolist()
        held = attention._positions[head, :kept]
        assert sorted(held.tolist()) == sorted([*heavy, *range(max(n - 5, 0), n)])
        assert np.allclose(attention._accumulated[head, :kept], sums[head, held])
    # The next token sees those rows and itself.
    held = np.concatenate([attention._positions[1, :kept], [n]])
    o = attention.step(q[:, n], k[:, n], v[:, n])
    p = softmax(attention_scores(q[2:, n], k[1:, held]))
    assert np.allclose(o[2:], p @ v[1, held])
    assert attention.rows == 2 * min(n + 1, 9)


@pytest.mark.parametrize("n", [1, 255, 256, 257, 600])
def test_probabilities(n):
    q, k, _ = random_qkv(4, 2, n, 8, seed=n)
    seen = 0
    for first, p in probabilities(q, k, 0.7):
        assert first == seen
        for t in (first, first + p.shape[1] - 1):
            exact = softmax(attention_scores(q[:, t], k[:, : t + 1], 0.7))
            assert np.allclose(p[:, t - first, : t + 1], exact, atol=1e-6)
            assert not p[:, t - first, t + 1 :].any()
        seen += p.shape[1]
    assert seen == n
