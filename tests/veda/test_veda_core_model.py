"""The bit-exact model of ``veda.veda_core`` against the voting algorithm and dense attention."""

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention, attention_scores, softmax
from golden.algorithms.veda.voting import VotingAttention, cast_votes
from golden.attention.probability import fixed
from golden.evaluation.measure import measure
from golden.evaluation.policies import parse
from golden.lm.commands import open_model
from golden.lm.text import default_text, first_tokens
from golden.veda.veda_core import VedaCore
from golden.veda.voting_engine import vote as exact_vote
from sim.testbenches.veda.veda_core import A, B

RNG = np.random.default_rng


def doubt(s, positions) -> float:
    """The least change, relative to the mean score, that would change the votes."""
    _, threshold = cast_votes(s, positions)
    least = np.sort(s)
    gap = np.abs(s - threshold).min() if threshold >= 0 else least[1] - least[0]
    return min(gap, abs(threshold)) / s.mean()


def side_by_side(trace, layer: int, tokens: int, target: int):
    """Run the bit-exact and the float64 algorithm on real tokens.

    Returns both, the largest error of o while they agree, and the doubt about the votes in the
    first step after which they differ, None if there is no such step.
    """
    settings = {"capacity": target, "reserved": target // 4, "prompt": target // 2}
    exact_model = VotingAttention(**settings, scale=trace.scale, bit_exact=True)
    level_1 = VotingAttention(**settings, scale=trace.scale)
    error, first = 0.0, None
    for t in range(tokens):
        q, k, v = (x[layer, :, t].astype(np.float64) for x in (trace.q, trace.k, trace.v))
        slots = np.append(level_1.positions, t)
        same = exact_model.evicted == level_1.evicted
        got, want = exact_model.step(q, k, v), level_1.step(q, k, v)
        if same:
            error = max(error, np.abs(got - want).max() / np.abs(want).max())
        alike = (
            exact_model.evicted == level_1.evicted and (exact_model.votes == level_1.votes).all()
        )
        if first is None and not alike:
            keys = trace.k[layer][:, slots].astype(np.float64)
            first = doubt(softmax(attention_scores(q, keys, trace.scale)).mean(axis=0), slots)
    return exact_model, level_1, error, first


@pytest.mark.parametrize(
    ("tokens", "target"), [(100, 32), pytest.param(320, 128, marks=pytest.mark.campaign)]
)
def test_model_is_close_to_the_algorithm(shipped_trace, tokens, target):
    """Results in FP16 against float64; the first vote that differs is of a score at the threshold.

    From there the sequences may differ; most evicted rows are the same.
    """
    for layer in range(len(shipped_trace.q)):
        exact_model, level_1, error, first = side_by_side(shipped_trace, layer, tokens, target)
        common = set(exact_model.evicted) & set(level_1.evicted)
        print(
            f"layer {layer}: error {error:.1e}, doubt {first}, {len(common)} evictions of"
            f" {len(exact_model.evicted)} in common"
        )
        assert len(exact_model.evicted) == len(level_1.evicted) == tokens - target
        assert 2.0**-14 < error < 2.0**-8
        assert first is None or first < 2.0**-9
        assert len(common) > 0.95 * len(exact_model.evicted)
        assert exact_model.traffic == level_1.traffic
        assert (exact_model.rows, exact_model.state_bytes) == (level_1.rows, level_1.state_bytes)


@pytest.mark.campaign
@pytest.mark.model
def test_perplexity_of_the_core(smollm2):
    """On the real model it is the algorithm's to 1 %, and both evict."""
    model, tokenizer, _ = open_model(smollm2)
    tokens = first_tokens(tokenizer, default_text(), 256, "text")
    policies = ("dense", "voting:capacity=64", "voting:capacity=64,bit_exact=true")
    dense, level_1, core = (measure(parse(text), model, tokens) for text in policies)
    print([round(found.perplexity, 3) for found in (dense, level_1, core)])
    assert abs(core.perplexity / level_1.perplexity - 1) < 0.01
    assert core.perplexity not in (dense.perplexity, level_1.perplexity)
    assert core.rows == level_1.rows == 64


def test_model_without_evictions_is_dense_attention():
    """With rows of no power of two too."""
    rng = RNG(1)
    q, k, v = (rng.standard_normal((heads, 40, 12)) for heads in (6, 2, 2))
    got = VotingAttention(40, bit_exact=True).sequence(q, k, v)
    want = DenseAttention().sequence(q, k, v)
    assert got.shape == want.shape and np.abs(got - want).max() < 2.0**-7


def test_options_of_the_model():
    """Protected rows stay; a prompt longer than the core's capacity is evicted early."""
    rng = RNG(2)
    q, k, v = (rng.standard_normal((heads, 40, 8)) for heads in (2, 1, 1))
    kept = VotingAttention(12, reserved=6, protect_reserved=True, bit_exact=True)
    kept.sequence(q, k, v)
    assert set(range(6)) <= set(kept.positions) and len(kept.positions) == 12
    short = VotingAttention(12, reserved=0, prompt=30, bit_exact=True, rows=16)
    short.sequence(q[:, :30], k[:, :30], v[:, :30])
    assert len(short.evicted) == 30 - 15
    short.sequence(q[:, 30:], k[:, 30:], v[:, 30:])
    assert len(short.positions) == 12


def test_model_votes_as_its_probabilities_say():
    rng = RNG(3)
    core = VedaCore(32)
    counts = np.zeros(0, int)
    for _ in range(20):
        q, k, v = (rng.standard_normal((n, 8)).astype(np.float16) for n in (4, 2, 2))
        result = core.step(q, k, v, a=A, b=B, evict=False)
        s = fixed(result.p).sum(axis=0)
        counts = np.append(counts, 0) + exact_vote(s, core.contexts[0].engine.positions, A, B)
    assert (core.contexts[0].engine.counts == counts).all() and counts.any()


# --- the hardware ---
