"""Open parameters: their text, and the value at which a loss is allowed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import InputError
from golden.evaluation.knobs import CLOSE, choose, open_knob


def test_text():
    knob = open_knob("topick:bits=8,threshold=1e-5..0.1,latency=4")
    assert (knob.low, knob.high, knob.whole) == (1e-5, 0.1, False)
    assert knob.at(0.00123456) == "topick:bits=8,threshold=0.001235,latency=4"
    whole = open_knob("voting:capacity=64..2048")
    assert whole.whole and whole.at(100.0) == "voting:capacity=100"
    assert open_knob("voting:capacity=5..2e3").whole
    assert not open_knob("topick:headroom=1.0..2.0").whole
    assert open_knob("lad:bounds=1/2/3") is None and open_knob("dense") is None


@pytest.mark.parametrize("ends", ["0.1..0.01", "0..1", "a..b", "1..inf", "3..3"])
def test_ranges_that_are_none(ends):
    with pytest.raises(InputError, match="must be two rising numbers above 0"):
        open_knob(f"topick:threshold={ends}")


@pytest.mark.parametrize("power", [0.3, 1.0, 2.5])
def test_a_rising_loss(power):
    knob = open_knob("topick:threshold=1e-5..0.5")
    calls = []

    def loss(text):
        calls.append(text)
        return 0.4 * float(text.split("=")[1]) ** power

    allowed = 0.4 * 0.002**power
    text, found = choose(knob, allowed, loss)
    assert loss(text) == found and (1 - CLOSE) * allowed <= found <= allowed
    assert len(set(calls)) <= 8


def test_a_falling_loss_of_whole_numbers():
    """A capacity whose loss is close to the allowed one, though the loss is no straight line."""
    text, found = choose(
        open_knob("voting:capacity=4..4096"),
        0.018,
        lambda text: math.exp(-float(text.split("=")[1]) / 300),
    )
    assert (1 - CLOSE) * 0.018 <= found <= 0.018
    assert found == math.exp(-int(text.split("=")[1]) / 300)


def test_a_step_of_whole_numbers():
    """The smallest capacity that is allowed, where none is close to the allowed loss."""
    losses = {4: 0.9, 5: 0.8, 6: 0.7, 7: 0.001, 8: 0.0005, 9: 0.0}
    text, found = choose(
        open_knob("voting:capacity=4..9"), 0.1, lambda text: losses[int(text.split("=")[1])]
    )
    assert (text, found) == ("voting:capacity=7", 0.001)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.2, 3.0, 30.0]))
def test_any_falling_loss_of_whole_numbers(seed, spread):
    """The found one is close to the allowed loss, or the next smaller one loses more than that."""
    rng = np.random.default_rng(seed)
    falls = np.exp(-np.cumsum(rng.exponential(spread, 37))) * rng.choice([0, 1], p=[0.2, 0.8])
    losses = dict(zip(range(4, 41), [1.0, *falls[:-2], 0.0], strict=True))
    allowed = float(rng.choice([0.5, 0.01, losses[20], losses[40]]))
    loss = lambda text: losses[int(text.split("=")[1])]  # noqa: E731
    text, found = choose(open_knob("voting:capacity=4..40"), allowed, loss)
    assert found == loss(text) <= allowed
    value = int(text.split("=")[1])
    assert found >= (1 - CLOSE) * allowed or losses[value - 1] > allowed


def test_a_range_that_does_not_enclose():
    knob = open_knob("voting:capacity=4..8")
    with pytest.raises(InputError, match="0.9 and 0.5 at the ends .* do not enclose 0.1"):
        choose(knob, 0.1, {"voting:capacity=4": 0.9, "voting:capacity=8": 0.5}.__getitem__)
    with pytest.raises(InputError, match="do not enclose 2"):
        choose(knob, 2, {"voting:capacity=4": 0.9, "voting:capacity=8": 0.5}.__getitem__)


@pytest.mark.parametrize(
    ("allowed", "found"),
    [(0.1, ("voting:capacity=8", 0.5)), (2, ("voting:capacity=4", 0.9))],
)
def test_the_nearest_end_of_a_range_that_does_not_enclose(allowed, found):
    losses = {"voting:capacity=4": 0.9, "voting:capacity=8": 0.5}
    knob = open_knob("voting:capacity=4..8")
    assert choose(knob, allowed, losses.__getitem__, nearest=True) == found


def test_nearest_changes_no_range_that_encloses():
    def loss(text):
        return math.exp(-float(text.split("=")[1]) / 300)

    knob = open_knob("voting:capacity=4..4096")
    assert choose(knob, 0.018, loss, nearest=True) == choose(knob, 0.018, loss)
