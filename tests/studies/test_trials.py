"""Trials as tasks of a window each: the same figures as all windows at once, in little memory."""

import gc
import shutil
import weakref

import numpy as np
import pytest

from golden.evaluation.policies import Policy, parse
from golden.evaluation.row import row_of
from golden.evaluation.setting import run_windows, score_all
from golden.studies import trials
from golden.studies.trials import Choice, Place, Trial, rows_of, run, tasks_of
from tests.support.lm.tiny_llama import SIZES, write_gguf

TEXT = "The theory of the thing is that the other thinks, and then the rest follows. " * 9
POLICIES = ("streaming:capacity=9", "unicaim:heavy=9,reserved=8,top_k=5,spread_mv=30")


@pytest.fixture
def place(tensors, tmp_path, monkeypatch):
    """Three windows of a text, and a tiny model that sees 500 tokens."""
    tiny = write_gguf(tmp_path / "tiny.gguf", tensors, sizes=SIZES | {"context": 500})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text(TEXT)
    yield Place(str(tiny), 24, 7, 3, "one.txt")
    trials.cut.cache_clear()
    trials._opened.cache_clear()


def without_time(row):
    return {name: value for name, value in row.as_json().items() if name != "seconds"}


def test_rows_are_those_of_all_windows_at_once(place):
    """Devices of a window and layer have the seed that they have there."""
    wanted = [Trial(policy, place) for policy in POLICIES]
    tasks = tasks_of([*wanted, wanted[0]])
    assert [(task.first, task.count, task.policies) for task in tasks] == [
        (number, 1, (policy,)) for number in range(3) for policy in POLICIES
    ]
    rows = rows_of(wanted, {task: run(task) for task in tasks})
    setting, windows = trials._setting(place), trials.cut(place)
    scores = score_all(setting, run_windows(setting.model, windows), list(map(parse, POLICIES)))
    for trial in wanted:
        exact = row_of(trial.policy, place.model, 24, 7, scores[trial.policy])
        assert without_time(rows[trial]) == without_time(exact)
    first, second = (np.array(rows[trial].deltas) for trial in wanted)
    assert rows[wanted[0]].over(rows[wanted[1]]).mean == pytest.approx((first - second).mean())
    assert len(set(first)) == 3 and trials.texts_of(place) == ["one.txt"]


def test_questions_on_a_filler_are_one_task(place):
    place = Place(place.model, 400, 7, 2, "one.txt", task="retrieval")
    tasks = tasks_of([Trial("dense", place)])
    done = {task: run(task) for task in tasks}
    assert [len(scores["dense"]) for scores in done.values()] == [5, 5]
    (row,) = rows_of([Trial("dense", place)], done).values()
    assert len(trials.cut(place)) == 10 and row.windows == 2


def test_a_quantised_model_is_made_once_for_all_windows(place, monkeypatch):
    """And at most as many are in one task as may be in memory."""
    monkeypatch.setattr(trials, "AT_ONCE", {place.model: 3})
    policies = [f"rtn:activation_bits={bits}" for bits in (2, 3, 4, 5)]
    wanted = [Trial(policy, place) for policy in (*policies, "dense")]
    tasks = tasks_of(wanted)
    assert [(task.first, task.count, len(task.policies)) for task in tasks] == [
        *((number, 1, 1) for number in range(3)),
        *((0, 3, 3), (0, 3, 1)),
    ]
    made, make = [], Policy.model

    def noted(self, model, **defaults):
        if self.quantises_products:
            made.append(self.parameters["activation_bits"])
        return make(self, model, **defaults)

    monkeypatch.setattr(Policy, "model", noted)
    rows = rows_of(wanted, {task: run(task) for task in tasks})
    assert made == [2, 3, 4, 5] and rows[wanted[0]].windows == 3
    assert rows[wanted[0]].delta.mean != rows[wanted[3]].delta.mean


def test_a_choice(place):
    choice = Choice("streaming:capacity=5..23", (0.002, 0.01), place)
    for allowed, chosen in zip(choice.allowed, run(choice), strict=True):
        assert 0 < chosen.loss <= allowed
        (trial,) = wanted = [Trial(chosen.policy, place)]
        rows = rows_of(wanted, {task: run(task) for task in tasks_of(wanted)})
        assert rows[trial].kl.mean == pytest.approx(chosen.loss)


def test_one_model_is_in_memory(place, tmp_path, monkeypatch):
    """However many places of several models were used."""
    other = shutil.copy(place.model, tmp_path / "other.gguf")
    opened, in_memory = [], trials.in_memory

    def noted(model):
        opened.append(weakref.ref(made := in_memory(model)))
        return made

    monkeypatch.setattr(trials, "in_memory", noted)
    for context in (24, 25, 26):
        for model in (place.model, str(other)):
            trials.cut(Place(model, context, 7, 3, "one.txt"))
            trials.cut(Place(model, context, 6, 3, "one.txt"))
    gc.collect()
    assert len(opened) == 6 and sum(model() is not None for model in opened) == 1


def test_states_of_a_window(place):
    """Of every token that the model sees."""
    layers = trials.hidden_inputs(place, 1)
    seen = {}
    model, tokens = trials._setting(place).model, trials.cut(place)[1].tokens

    def observer(layer, name, array):
        seen[layer, name] = array

    model.hidden(tokens[:-1], observer=observer)
    for layer, inputs in enumerate(layers):
        for name in "qkv":
            np.testing.assert_allclose(inputs[name], seen[layer, name], atol=1e-5)
