"""Perplexity after a shared prompt: equal to a run over the whole window, and its errors."""

import math

import numpy as np
import pytest

from golden.evaluation.after_prompt import Scores, cut, score
from golden.evaluation.measure import measure
from golden.evaluation.policies import POLICIES, parse
from golden.lm.commands import open_model

PROMPT, GENERATED = 24, 8
TEXT = "The theory of the thing is that the other thinks, and then the rest follows. " * 9


@pytest.fixture(scope="module")
def opened(tiny):
    model, tokenizer, _ = open_model(tiny)
    return model, tokenizer.encode(TEXT, 3 * (PROMPT + GENERATED))


@pytest.mark.parametrize(
    "policy",
    [
        "dense",
        "snapkv:capacity=12,window=4",
        "unicaim:heavy=9,reserved=4,top_k=5,seed=3",
        "unicaim:heavy=9,reserved=4,top_k=5,exact=cells,spread_mv=54,seed=3",
    ],
)
def test_equals_a_run_over_the_whole_window(opened, policy):
    """The perplexity of ``measure``, and the rows that it finds at the end of the last window."""
    model, tokens = opened
    windows = cut(tokens, PROMPT, GENERATED, PROMPT + GENERATED, 9)
    assert len(windows) == 3
    found = score(model, windows, PROMPT, [policy], "test")[policy]
    whole = measure(parse(policy, prompt=PROMPT), model, tokens, prompt=PROMPT, context=32)
    assert found.perplexity == pytest.approx(whole.perplexity, rel=1e-5)
    assert found.rows == whole.rows
    for window, loss in zip(windows, found.losses, strict=True):
        alone = measure(parse(policy, prompt=PROMPT), model, window, prompt=PROMPT)
        assert math.exp(loss) == pytest.approx(alone.perplexity, rel=1e-5)


def test_every_window_and_layer_has_devices_of_its_own(opened, monkeypatch):
    """Unless the policy's text gives the seed."""
    model, tokens = opened
    windows = cut(tokens, PROMPT, GENERATED, PROMPT + GENERATED, 2)
    seeds = []

    class Seeded(type(parse("unicaim").attention())):
        def __init__(self, seed: int = 0, prompt: int = 1) -> None:
            seeds.append(seed)
            super().__init__(seed=seed, prompt=prompt)

    monkeypatch.setitem(POLICIES, "unicaim", Seeded)
    score(model, windows, PROMPT, ["unicaim"], "test")
    used = seeds[1:]  # the first is the parser's trial
    assert len(used) == 2 * model.config.layers == len(set(used))
    seeds.clear()
    score(model, windows, PROMPT, ["unicaim:seed=5"], "test")
    assert set(seeds) == {5}


def test_cut():
    tokens = list(range(20))
    assert cut(tokens, 4, 2, 6, 9) == [tokens[:6], tokens[6:12], tokens[12:18]]
    assert cut(tokens, 4, 2, 6, 2) == [tokens[:6], tokens[6:12]]
    assert [window[0] for window in cut(tokens, 4, 2, 7, 9)] == [0, 7, 14]
    assert cut(tokens[:5], 4, 2, 6, 9) == []


def test_ratio_and_its_error_are_paired():
    """A difference that is the same in all windows has no error, however different they are."""
    dense = Scores((1.0, 3.0, 2.0), 5)
    assert dense.perplexity == pytest.approx(math.exp(2))
    ratio, error = Scores((1.1, 3.1, 2.1), 5).over(dense)
    assert ratio == pytest.approx(math.exp(0.1)) and error == pytest.approx(0, abs=1e-12)
    ratio, error = Scores((1.1, 3.2, 2.3), 5).over(dense)
    assert ratio == pytest.approx(math.exp(0.2))
    assert error == pytest.approx(ratio * np.std([0.1, 0.2, 0.3], ddof=1) / 3**0.5)
    assert math.isnan(Scores((1.0,), 5).over(Scores((1.5,), 5))[1])
