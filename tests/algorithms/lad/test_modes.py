"""Counters and modes against one position's story told in plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.algorithms.lad.modes import Modes
from golden.algorithms.lad.piecewise_exp import PAPER_BOUNDS, PiecewiseExp

EXP = PiecewiseExp(PAPER_BOUNDS)


class Story:
    """One head: a list of counters and a mode for each position, as section IV-B tells it."""

    def __init__(self, full):
        self.full, self.cnt, self.mode = full, [], []

    def step(self, intervals, leaving):
        self.cnt.append([0] * len(EXP))
        self.mode.append(0)
        updated = []
        for i, interval in enumerate(intervals):
            cnt = self.cnt[i]
            cnt[interval] += 1
            exceeds = interval != self.mode[i] and cnt[interval] > cnt[self.mode[i]]
            if i == leaving or i < leaving and exceeds:
                self.mode[i] = int(interval)
                updated.append(i)
            if max(cnt) == self.full:
                self.cnt[i] = [c // 2 for c in cnt]
        return updated


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from([2, 3, 12]))
def test_modes_and_counters(seed, window, counter_bits):
    """Counters of two and three bits are full all the time."""
    rng = np.random.default_rng(seed)
    stories = [Story(2**counter_bits - 1) for _ in range(2)]
    modes = Modes(2, EXP, counter_bits)
    for n in range(1, 40):
        modes.append()
        intervals = np.minimum(rng.integers(0, 9, size=(2, n)), len(EXP) - 1).astype(np.uint8)
        updated = modes.record(intervals, n - window)
        for h, story in enumerate(stories):
            assert np.flatnonzero(updated[h]).tolist() == story.step(intervals[h], n - window)
            assert modes.mode[h].tolist() == story.mode
            assert modes.counters[h].tolist() == story.cnt
    for name in ("lower", "upper", "a", "b"):
        np.testing.assert_array_equal(getattr(modes, name), getattr(EXP, name)[modes.mode])


def test_halving_keeps_the_order():
    modes = Modes(1, EXP, 3)
    before = None
    rng = np.random.default_rng(3)
    halved = 0
    for _ in range(400):
        if before is None:
            modes.append()
            before = modes.counters[0, 0]
        interval = rng.integers(0, len(EXP), size=(1, 1)).astype(np.uint8)
        modes.record(interval, 0)
        raised, after = before.copy(), modes.counters[0, 0]
        raised[interval[0, 0]] += 1
        if after.sum() < raised.sum():
            halved += 1
            for i in range(len(EXP)):
                for j in range(len(EXP)):
                    assert raised[i] >= raised[j] or after[i] <= after[j]
        assert after.max() < 7
        before = after
    assert halved > 20


def test_a_mode_changes_only_when_exceeded():
    """Intervals 3, 3, then 2, 2, 2: a tie at two each keeps the mode, the third changes it."""
    modes = Modes(1, EXP, 12)
    modes.append()
    modes.record(np.array([[3]], np.uint8), 0)
    modes.append()
    story = [int(modes.mode[0, 0])]
    for interval in (3, 2, 2, 2):
        modes.record(np.array([[interval, 0]], np.uint8), 1)
        story.append(int(modes.mode[0, 0]))
    assert story == [3, 3, 3, 3, 2]


def test_a_score_on_a_bound_belongs_to_the_interval_below():
    """For identification as for MD: position in mode 2, (-6, -3]."""
    modes = Modes(1, EXP, 12)
    modes.append()
    modes.record(np.array([[2]], np.uint8), 0)
    assert modes.mode[0, 0] == 2
    for x, outside in ((-6.0, True), (-5.999, False), (-3.0, False), (-2.999, True)):
        assert modes.outside(np.array([[x]]))[0, 0] == outside
        assert (EXP.interval(np.array([x]))[0] != 2) == outside


def test_likeliest_intervals():
    modes = Modes(1, EXP, 12)
    for n, intervals in enumerate([[1], [1, 2], [3, 2, 0], [1, 4, 0, 0]], 1):
        modes.append()
        modes.record(np.array([intervals], np.uint8), n - 1)
    # First position 1, 1, 3, 1; second 2, 2, 4; two more in the window of two.
    top, two = modes.top_probabilities(2)
    assert top == pytest.approx((3 / 4 + 2 / 3) / 2)
    assert two == pytest.approx(1)
    assert np.isnan(modes.top_probabilities(4)).all()


@pytest.mark.parametrize("bits", [1, 17])
def test_counter_width_is_checked(bits):
    with pytest.raises(ValueError, match=f"counter_bits must lie between 2 and 16, not {bits}"):
        Modes(1, EXP, bits)


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 12]))
def test_counts_of_a_prompt(seed, counter_bits):
    rng = np.random.default_rng(seed)
    n, settled = 12, int(rng.integers(0, 13))
    counts = rng.integers(0, 40, size=(2, n, len(EXP)))
    modes = Modes(2, EXP, counter_bits)
    modes.fill(counts, settled)
    assert (modes.mode[:, settled:] == 0).all()
    assert (modes.mode[:, :settled] == modes.counters[:, :settled].argmax(axis=-1)).all()
    assert (modes.upper == EXP.upper[modes.mode]).all() and (modes.a == EXP.a[modes.mode]).all()
    pairs = zip(*(x.reshape(-1, len(EXP)) for x in (modes.counters, counts)), strict=True)
    for held, given_ in pairs:
        halvings = [h for h in range(7) if (given_ >> h).max() < 2**counter_bits - 1]
        assert held.tolist() == (given_ >> halvings[0]).tolist()
