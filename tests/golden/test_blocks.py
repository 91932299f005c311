"""Eviction of blocks: of one token, it is the papers' policies; of more, they leave whole."""

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention
from golden.algorithms.baselines import H2OAttention
from golden.algorithms.blocks import BlockEvictionAttention
from golden.algorithms.unicaim import StaticDynamicAttention
from golden.algorithms.veda import VotingAttention
from golden.trace import load, shipped

HEADS, KV_HEADS, D, TOKENS = 4, 2, 8, 70


@pytest.fixture(params=range(3))
def qkv(request):
    rng = np.random.default_rng(request.param)
    q = rng.normal(0, 2, (HEADS, TOKENS, D)).astype(np.float32)
    k, v = (rng.normal(0, 1, (KV_HEADS, TOKENS, D)).astype(np.float32) for _ in range(2))
    return q, k, v


def same(one, other, qkv, prompt: int = 0) -> None:
    """Outputs, evictions and reads are equal, step by step."""
    q, k, v = qkv
    for attention in (one, other) if prompt else ():
        attention.prefill(q[:, :prompt], k[:, :prompt], v[:, :prompt])
    for t in range(prompt, TOKENS):
        a, b = (each.step(q[:, t], k[:, t], v[:, t]) for each in (one, other))
        assert np.allclose(a, b, atol=1e-5), t
        assert sorted(one.evicted) == sorted(other.evicted), t
    assert one.evicted and one.traffic == other.traffic


@pytest.mark.parametrize("per", ["head", "layer"])
@pytest.mark.parametrize("prompt", [0, 40])
def test_blocks_of_one_by_sums_are_h2o(qkv, per, prompt):
    one = BlockEvictionAttention(16, block=1, per=per)
    same(one, H2OAttention(16, per=per), qkv, prompt)


@pytest.mark.parametrize("reserved", [0, 20])
def test_blocks_of_one_by_votes_are_vedas(qkv, reserved):
    one = BlockEvictionAttention(16, block=1, by="votes", reserved=reserved)
    other = VotingAttention(16, reserved=reserved)
    same(one, other, qkv)
    assert sorted(one.positions[0]) == sorted(other.positions)


@pytest.mark.parametrize("observe", [0, 8])
def test_blocks_of_one_by_charge_are_unicaims(qkv, observe):
    """Of 20 rows UniCAIM evicts before it writes the next, so 19 remain after a step."""
    one = BlockEvictionAttention(19, block=1, per="head", by="charge", observe=observe, heavy=12)
    other = StaticDynamicAttention(12, 8, top_k=20, prompt=40, key_bits=0, observe=observe)
    q, k, v = qkv
    for attention in (one, other):
        attention.prefill(q[:, :40], k[:, :40], v[:, :40])
    for t in range(40, TOKENS):
        a, b = (each.step(q[:, t], k[:, t], v[:, t]) for each in (one, other))
        assert np.allclose(a, b, atol=1e-5), t


@pytest.mark.parametrize("by", ["sum", "charge", "votes"])
@pytest.mark.parametrize("per", ["head", "layer"])
@pytest.mark.parametrize("block, capacity", [(4, 16), (8, 16), (16, 32)])
def test_blocks_leave_whole(qkv, by, per, block, capacity):
    q, k, v = qkv
    attention = BlockEvictionAttention(capacity, block=block, per=per, by=by)
    dense = DenseAttention()
    for t in range(TOKENS):
        o, full = (each.step(q[:, t], k[:, t], v[:, t]) for each in (attention, dense))
        if t < capacity:
            assert np.allclose(o, full, atol=1e-5)
        held = attention.positions
        assert capacity - block < held.shape[1] <= capacity or t < capacity
        for row in held:
            begins, counts = np.unique(row // block, return_counts=True)
            assert np.all(counts[:-1] == block) and counts[-1] == t % block + 1
            assert begins[-1] == t // block  # the newest token is never evicted
        assert per == "head" or np.all(held == held[0])
    assert attention.rows == held.size
    gone = np.setdiff1d(np.arange(TOKENS), held)
    assert sorted(attention.evicted) == gone.tolist()
    assert attention.traffic.k_rows < dense.traffic.k_rows == attention.traffic.dense_rows


def test_the_block_with_the_least_score_goes():
    """One block of keys that nobody likes, in the middle; with its best row alone it would stay."""
    k = np.zeros((1, 24, D), np.float32)
    k[:, 4:8, 0] = -9
    k[:, 4, 0] = 0.5
    q = np.zeros((2, D), np.float32)
    q[:, 0] = 4
    v = np.ones_like(k)
    attention = BlockEvictionAttention(20, block=4, by="sum")
    for t in range(24):
        attention.step(q, k[:, t], v[:, t])
    assert attention.evicted == [4, 5, 6, 7]


def test_a_prompt_is_pruned_to_its_blocks(qkv):
    q, k, v = qkv
    for by in ("sum", "charge", "votes"):
        attention = BlockEvictionAttention(32, block=8, by=by, observe=16, heavy=16)
        attention.prefill(q, k, v)
        assert 8 < attention.positions.shape[1] <= 16 and attention.traffic.k_rows == 0
        attention.step(q[:, 0], k[:, 0], v[:, 0])
        assert attention.traffic.k_rows == KV_HEADS * attention.positions.shape[1]


def test_the_shipped_trace():
    """Real heads: larger blocks and one table for all heads evict what a head would keep."""
    trace = load(shipped()[0])
    q, k, v = (array[1].astype(np.float32) for array in (trace.q, trace.k, trace.v))
    exact = DenseAttention(trace.scale).sequence(q, k, v)
    errors = {}
    for block, per in ((1, "head"), (16, "head"), (16, "layer")):
        attention = BlockEvictionAttention(128, block=block, per=per, scale=trace.scale)
        errors[block, per] = np.abs(attention.sequence(q, k, v) - exact).mean()
    assert errors[1, "head"] < errors[16, "head"] < errors[16, "layer"]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"capacity": 24}, "capacity must be blocks of 16, two at least, not 24"),
        ({"capacity": 16}, "capacity must be blocks of 16, two at least, not 16"),
        ({"capacity": 32, "heavy": 48}, "heavy must be at most capacity, 32, not 48"),
        ({"capacity": 32, "heavy": 0}, "heavy must be blocks of 16"),
        ({"capacity": 32, "block": 0}, "block must be at least 1"),
        ({"capacity": 32, "per": "group"}, "per must be one of head, layer"),
        ({"capacity": 32, "by": "age"}, "by must be one of sum, charge, votes"),
        ({"capacity": 32, "observe": -1}, "observe must be at least 0"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=words):
        BlockEvictionAttention(**options)
