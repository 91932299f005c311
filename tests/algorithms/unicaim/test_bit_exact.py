"""The core's attention as a policy: after a prompt it is about the algorithm's."""

import numpy as np
import pytest

from golden.algorithms.unicaim import StaticDynamicAttention
from golden.algorithms.unicaim.bit_exact import BitExactAttention, dense_prompt


def sequence(tokens: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        x.astype(np.float16).astype(np.float32)
        for x in (rng.standard_normal((heads, tokens, 16)) for heads in (4, 2, 2))
    ]


def test_a_prompt_and_steps_are_the_algorithms():
    options = {"heavy": 24, "reserved": 8, "top_k": 32, "prompt": 40, "seed": 1}
    q, k, v = sequence(47, 1)
    core, algorithm = BitExactAttention(**options), StaticDynamicAttention(**options)
    o, want = core.sequence(q, k, v), algorithm.sequence(q, k, v)
    np.testing.assert_allclose(o[:, :40], want[:, :40], atol=1e-5)
    np.testing.assert_allclose(o[:, 40:], want[:, 40:], atol=3e-3)
    assert core.rows == 2 * 31 and core.conversions == algorithm.conversions
    assert core.figures() == {"conversions": core.conversions}


@pytest.mark.parametrize("scale", [None, 0.6])
def test_reads_and_scale_are_the_algorithms(scale):
    options = {"heavy": 24, "reserved": 8, "top_k": 6, "prompt": 40, "seed": 1, "scale": scale}
    q, k, v = sequence(47, 1)
    core, algorithm = BitExactAttention(**options), StaticDynamicAttention(**options)
    o, want = (a.sequence(q[:, :40], k[:, :40], v[:, :40]) for a in (core, algorithm))
    np.testing.assert_allclose(o, want, atol=1e-5)
    before = algorithm.traffic.k_rows
    o, want = (a.sequence(q[:, 40:], k[:, 40:], v[:, 40:]) for a in (core, algorithm))
    # Keys are levels of the float's in one and of FP16's in the other.
    assert np.linalg.norm(o - want) < 0.1 * np.linalg.norm(want)
    read = algorithm.traffic.k_rows - before
    assert core.traffic.k_rows == core.traffic.v_rows == pytest.approx(read, abs=3)
    assert read < 7 * 2 * 12 + 1


def test_a_spread_and_converted_scores_change_outputs():
    q, k, v = sequence(60, 2)
    outputs = [
        BitExactAttention(heavy=24, reserved=8, top_k=8, prompt=40, **options).sequence(q, k, v)
        for options in ({}, {"spread_mv": 54}, {"exact": "cells"}, {"rotate": False})
    ]
    for other in outputs[1:]:
        assert np.array_equal(other[:, :40], outputs[0][:, :40])
        difference = np.linalg.norm((other - outputs[0])[:, 40:]) / np.linalg.norm(
            outputs[0][:, 40:]
        )
        assert 0 < difference < 1.5


def test_sums_count_the_last_queries():
    q, k, v = sequence(12, 3)
    _, every = dense_prompt(q, k, v, 12)
    _, last = dense_prompt(q, k, v, 1)
    np.testing.assert_allclose(every.sum(axis=1), 2 * 12, rtol=1e-5)
    np.testing.assert_allclose(last.sum(axis=1), 2, rtol=1e-5)


def test_a_prompt_in_parts_is_refused():
    q, k, v = sequence(12, 4)
    with pytest.raises(ValueError, match="the prompt must have 40 tokens, not 12"):
        BitExactAttention(prompt=40).sequence(q, k, v)
