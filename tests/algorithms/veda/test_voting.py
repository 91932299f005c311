"""Voting eviction against plain loops written from the paper, and the properties it promises."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.algorithms.attention import ELEMENT_BYTES
from golden.algorithms.veda import VotingAttention, cast_votes, count_votes, slot_to_evict
from golden.algorithms.veda.voting import MAX_VOTES
from tests.support.qkv import random_qkv


def plain_vote(s, a, b):
    """Figure 3's vote of one token over scores in order of age: a set of indices, and T."""
    mean = math.fsum(s) / len(s)
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in s) / len(s))
    threshold = a * mean - b * deviation
    if threshold < 0:
        return {min(range(len(s)), key=lambda i: (s[i], i))}, threshold
    return {i for i in range(len(s)) if s[i] < threshold}, threshold


def plain_voting(q, k, v, capacity, reserved=32, a=1.0, b=0.2, protect=False, prompt=0, scale=None):
    """The algorithm in float64 loops over kept positions, oldest first.

    Returns outputs [heads, token, d], evicted positions, and per step the votes of the kept ones.
    """
    heads, tokens, d = q.shape
    group = heads // len(k)
    scale = 1 / math.sqrt(d) if scale is None else scale
    kept, votes, evicted, history = [], {}, [], []
    o = np.zeros((heads, tokens, d))
    for t in range(tokens):
        kept.append(t)
        votes[t] = 0
        average = [0.0] * len(kept)
        for h in range(heads):
            scores = [scale * float(np.dot(q[h, t], k[h // group, j])) for j in kept]
            e = [math.exp(x - max(scores)) for x in scores]
            for i, j in enumerate(kept):
                average[i] += e[i] / math.fsum(e) / heads
                o[h, t] += e[i] / math.fsum(e) * v[h // group, j]
        if t >= reserved:
            for i in plain_vote(average, a, b)[0]:
                votes[kept[i]] = min(votes[kept[i]] + 1, 65535)
        while t >= prompt and len(kept) > capacity:
            out = max(
                (j for j in kept if not protect or j >= reserved), key=lambda j: (votes[j], -j)
            )
            kept.remove(out)
            evicted.append(out)
        history.append({j: votes[j] for j in kept})
    return o, evicted, history


def state(attention):
    return dict(zip(attention.positions.tolist(), attention.votes.tolist(), strict=True))


# --- one vote, one eviction ---


def test_a_slot_below_the_threshold_gets_a_vote():
    s = np.array([0.4, 0.1, 0.2, 0.3])
    votes, threshold = cast_votes(s, np.arange(4), a=1.0, b=0.2)
    assert threshold == pytest.approx(0.25 - 0.2 * math.sqrt(0.0125))  # the population's deviation
    assert votes.tolist() == [False, True, True, False]
    assert votes.dtype == bool


def test_a_score_at_the_threshold_gets_no_vote():
    assert not cast_votes(np.full(8, 0.125), np.arange(8))[0].any()


def test_a_threshold_of_zero_is_not_below_zero():
    votes, threshold = cast_votes(np.array([0.0, 1.0]), np.arange(2), a=1.0, b=1.0)
    assert threshold == 0
    assert not votes.any()


def test_below_zero_only_the_minimum_gets_a_vote_the_oldest_on_ties():
    s = np.array([0.05, 0.01, 0.92, 0.01, 0.01])
    votes, threshold = cast_votes(s, np.array([0, 9, 4, 3, 7]), a=1.0, b=1.0)
    assert threshold < 0
    assert np.flatnonzero(votes).tolist() == [3]


def test_the_most_votes_leave_the_oldest_on_ties():
    positions = np.array([40, 7, 12, 3])
    assert slot_to_evict(np.array([2, 5, 5, 1], np.uint16), positions) == 1
    assert slot_to_evict(np.array([2, 5, 6, 1], np.uint16), positions) == 2
    assert slot_to_evict(np.zeros(4, np.uint16), positions) == 3
    assert slot_to_evict(np.zeros(4, np.uint16), positions, protected=8) == 2
    assert slot_to_evict(np.array([0, 9, 0, 9], np.uint16), positions, protected=13) == 0
    with pytest.raises(ValueError, match="all 4 slots are protected"):
        slot_to_evict(np.zeros(4, np.uint16), positions, protected=41)


def test_counts_saturate():
    counts = np.array([MAX_VOTES, MAX_VOTES - 1, 0, MAX_VOTES], np.uint16)
    counted = count_votes(counts, np.array([True, True, True, False]))
    assert counted.tolist() == [65535, 65535, 1, 65535]
    assert counted.dtype == np.uint16


@given(st.data())
def test_vote_and_choice_do_not_depend_on_the_layout(data):
    """Scores from a coarse grid, so that ties are common; any order of slots, the same tokens."""
    slots = data.draw(st.integers(1, 12))
    numbers = st.lists(st.integers(0, 3), min_size=slots, max_size=slots)
    s = np.array(data.draw(numbers)) / 4
    counts = np.array(data.draw(numbers), np.uint16)
    positions = np.array(data.draw(st.permutations(range(slots))))
    b = data.draw(st.sampled_from([0.0, 0.25, 1.0, 3.0]))
    order = np.argsort(positions)
    voted, threshold = plain_vote(s[order].tolist(), 1.0, b)
    votes, actual = cast_votes(s, positions, 1.0, b)
    assert actual == pytest.approx(threshold, abs=1e-15)
    # Scores are quarters: one nearer to T than 1e-9 equals it, and rounding may decide either way.
    clear = (np.abs(s - threshold) > 1e-9) | (threshold < -1e-9)
    if abs(threshold) > 1e-9:
        assert set(positions[votes & clear]) == {p for p in voted if clear[order[p]]}
    leaving = positions[slot_to_evict(counts, positions)]
    assert leaving == min(range(slots), key=lambda p: (-int(counts[order[p]]), p))


# --- the whole algorithm ---


SETTINGS = [
    {"capacity": 1, "reserved": 0},
    {"capacity": 2, "reserved": 0, "b": 2.0},
    {"capacity": 8, "reserved": 4},
    {"capacity": 8, "reserved": 8, "protect_reserved": True},
    {"capacity": 12, "reserved": 3, "protect_reserved": True, "prompt": 30},
    {"capacity": 12, "reserved": 4, "prompt": 25},
    {"capacity": 12, "reserved": 4, "prompt": 7},
    {"capacity": 8, "reserved": 20},
    {"capacity": 16, "reserved": 4, "a": 0.5, "b": -0.1, "scale": 0.7},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: ",".join(f"{k}={s[k]}" for k in s))
@pytest.mark.parametrize("sharpness", [0.5, 2.0, 8.0])
def test_equals_the_plain_loops(settings, sharpness):
    q, k, v = random_qkv(6, 2, 60, 8, seed=11, sharpness=sharpness)
    attention = VotingAttention(**settings)
    arguments = {{"protect_reserved": "protect"}.get(n, n): x for n, x in settings.items()}
    expected, evicted, history = plain_voting(q, k, v, **arguments)
    for t in range(60):
        o = attention.step(q[:, t], k[:, t], v[:, t])
        np.testing.assert_allclose(o, expected[:, t], rtol=1e-9, atol=1e-12)
        assert state(attention) == history[t]
    assert attention.evicted == evicted
    assert len(evicted) == 60 - settings["capacity"]


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_equals_the_plain_loops_on_real_data(shipped_trace, layer):
    """In float64 on both sides, so that no score is within rounding of its threshold."""
    q, k, v = (getattr(shipped_trace, x)[layer, :, :120].astype(np.float64) for x in "qkv")
    attention = VotingAttention(40, scale=shipped_trace.scale)
    o = attention.sequence(q, k, v)
    expected, evicted, history = plain_voting(q, k, v, 40, scale=shipped_trace.scale)
    assert attention.evicted == evicted
    assert state(attention) == history[-1]
    np.testing.assert_allclose(o, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"prompt": 200}, {"protect_reserved": True}])
def test_real_data_in_float32(shipped_trace, settings):
    """One eviction a step when full, of the oldest among those with the most votes before it."""
    q, k, v = (getattr(shipped_trace, x)[1].astype(np.float32) for x in "qkv")
    attention = VotingAttention(64, **settings)
    prompt = settings.get("prompt", 0)
    protected = 32 if "protect_reserved" in settings else 0
    for t in range(300):
        before, evicted = state(attention) | {t: 0}, len(attention.evicted)
        assert attention.step(q[:, t], k[:, t], v[:, t]).dtype == np.float32
        left, after = attention.evicted[evicted:], state(attention)
        assert len(left) == (max(t + 1 - 64, 0) - evicted if t >= prompt else 0)
        assert after.keys() == before.keys() - set(left)
        assert all(after[p] - before[p] in (0, 1) for p in after)
        for out in left:
            rivals = [p for p in after if p >= protected]
            assert out >= protected
            # Its own last vote is no longer there to see, so it may have had one more than before.
            assert all((before[out] + 1, -out) >= (after[p], -p) for p in rivals)
        if t < 32:
            assert set(after.values()) == {0}
    assert len(attention.evicted) == 300 - 64


def test_the_one_evicted_had_the_most_votes(monkeypatch):
    """Seen at the moment of choice, in every step once the cache is full."""
    seen = []

    def spy(counts, positions, protected):
        slot = slot_to_evict(counts, positions, protected)
        seen.append((counts.copy(), positions.copy(), int(positions[slot])))
        return slot

    monkeypatch.setattr("golden.algorithms.veda.voting.slot_to_evict", spy)
    q, k, v = random_qkv(4, 2, 200, 8, seed=5, sharpness=2.0)
    attention = VotingAttention(20, reserved=6)
    attention.sequence(q, k, v)
    assert len(seen) == 200 - 20
    for t, (counts, positions, out) in enumerate(seen, 20):
        assert len(counts) == 21
        assert positions.max() == t
        assert out == positions[counts == counts.max()].min()
    assert [out for _, _, out in seen] == attention.evicted


def test_reserved_tokens_never_vote():
    q, k, v = random_qkv(4, 2, 12, 8, seed=2)
    attention = VotingAttention(100, reserved=10)
    attention.sequence(q[:, :10], k[:, :10], v[:, :10])
    assert attention.votes.tolist() == [0] * 10
    attention.step(q[:, 10], k[:, 10], v[:, 10])
    assert attention.votes.sum() > 0


def test_a_negative_threshold_gives_one_vote_a_step():
    q, k, v = random_qkv(4, 2, 30, 8, seed=3)
    attention = VotingAttention(100, reserved=5, a=0.0, b=1.0)
    for t in range(30):
        attention.step(q[:, t], k[:, t], v[:, t])
        assert attention.votes.sum(dtype=int) == max(t + 1 - 5, 0)


def test_equal_scores_below_zero_evict_in_order_of_age():
    """Zero keys: all scores are equal, the oldest gets the vote and is evicted."""
    q, k, v = random_qkv(2, 1, 20, 4, seed=4)
    attention = VotingAttention(6, reserved=0, a=-1.0, b=0.0)
    attention.sequence(q, 0 * k, v)
    assert attention.evicted == list(range(14))


def test_the_new_token_may_leave_with_the_only_vote():
    """Two sharp steps: the third token attends to the others and votes against itself alone."""
    k = np.eye(3, 4)[None]
    q = np.array([[[0, 0, 0, 1.0], [0, 0, 0, 1.0], [40, 40, -40, 0]]])
    attention = VotingAttention(2, reserved=2)
    attention.sequence(q, k, np.ones((1, 3, 4)))
    assert attention.evicted == [2]
    assert state(attention) == {0: 0, 1: 0}


def test_the_new_token_takes_the_slot_with_no_votes():
    q, k, v = random_qkv(4, 2, 80, 8, seed=6)
    attention = VotingAttention(16, reserved=4)
    attention.sequence(q[:, :16], k[:, :16], v[:, :16])
    for t in range(16, 80):
        before = attention.positions.copy()
        attention.step(q[:, t], k[:, t], v[:, t])
        changed = before != attention.positions
        if attention.evicted[-1] == t:
            assert not changed.any()
        else:
            assert before[changed].tolist() == [attention.evicted[-1]]
            assert attention.positions[changed].tolist() == [t]
            assert attention.votes[changed] <= 1  # its own vote at most


def test_votes_saturate_in_use():
    """Full counts saturate, and the oldest of those slots is evicted."""
    q, k, v = random_qkv(4, 2, 12, 8, seed=8)
    attention = VotingAttention(10, reserved=0, a=100.0, b=0.0)  # everyone gets every vote
    attention.sequence(q[:, :10], k[:, :10], v[:, :10])
    attention.votes[:] = [7, MAX_VOTES - 1, MAX_VOTES, *[3] * 7]
    attention.step(q[:, 10], k[:, 10], v[:, 10])
    assert attention.evicted == [1]
    assert state(attention)[2] == MAX_VOTES
    attention.step(q[:, 11], k[:, 11], v[:, 11])
    assert attention.evicted == [1, 2]


def test_what_a_prompt_evicts():
    """A sharp sink, and thresholds below zero. At the end of the prompt only token 1 has votes, and
    of all others the sink is the oldest. Evicting one by one, the one with the latest vote leaves.
    """
    k = np.zeros((1, 40, 4))
    k[0, 0, 0] = 4.0
    q = np.zeros((2, 40, 4))
    q[..., 0] = 4.0
    v = np.ones((1, 40, 4))
    literal, fixed, same = (
        VotingAttention(8, reserved=4, b=1.0, **given)
        for given in ({"prompt": 30}, {"prompt": 30, "prefill": "evict"}, {})
    )
    for attention in (literal, fixed, same):
        attention.sequence(q, k, v)
    assert literal.evicted[:2] == [1, 0] and 0 not in fixed.evicted
    assert fixed.evicted == same.evicted and state(fixed) == state(same)


def test_the_layout_of_slots_does_not_matter():
    q, k, v = random_qkv(6, 2, 150, 8, seed=9)
    plain, shuffled = VotingAttention(24, reserved=8), VotingAttention(24, reserved=8)
    rng = np.random.default_rng(10)
    for t in range(150):
        token = q[:, t], k[:, t], v[:, t]
        np.testing.assert_allclose(shuffled.step(*token), plain.step(*token), rtol=1e-9, atol=1e-12)
        order = rng.permutation(len(shuffled.positions))
        shuffled.positions, shuffled.votes = shuffled.positions[order], shuffled.votes[order]
        for rows in (shuffled._cache.k, shuffled._cache.v):
            rows[:, : len(order)] = rows[:, order]
    assert shuffled.evicted == plain.evicted
    assert state(shuffled) == state(plain)


def test_traffic_and_memory():
    q, k, v = random_qkv(6, 2, 9, 8, seed=13)
    attention = VotingAttention(4, prompt=6)
    attention.sequence(q, k, v)
    # Six tokens of prompt and the one after it see all before them, then four and themselves.
    rows = 2 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 5 + 5)
    assert (attention.traffic.k_rows, attention.traffic.v_rows) == (rows, rows)
    assert attention.traffic.bytes == 2 * rows * 8 * ELEMENT_BYTES
    assert attention.traffic.dense_rows == 2 * 45
    assert attention.rows == 2 * 4
    assert attention.state_bytes == 4 * 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, "capacity must be at least 1, not 0"),
        ({"capacity": 4, "reserved": -1}, "reserved must be at least 0, not -1"),
        ({"capacity": 4, "a": math.nan}, "a must be a finite number, not nan"),
        ({"capacity": 4, "b": math.inf}, "b must be a finite number, not inf"),
        ({"capacity": 4, "prompt": -1}, "prompt must be at least 0, not -1"),
        ({"capacity": 4, "prefill": "at once"}, "prefill must be vote or evict, not at once"),
        (
            {"capacity": 31, "protect_reserved": True},
            "capacity must be at least reserved, 32, where those tokens are protected, not 31",
        ),
    ],
)
def test_bad_parameters(settings, message):
    with pytest.raises(ValueError, match=message):
        VotingAttention(**settings)
