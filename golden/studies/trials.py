"""Trials of policies at fixed contexts that studies ask for, as tasks of one window each."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from golden.evaluation.in_context import Score
from golden.evaluation.knobs import open_knob
from golden.evaluation.policies import parse
from golden.evaluation.row import Row, row_of
from golden.evaluation.setting import Setting, choose_all, run_windows, score_all
from golden.evaluation.windows import Window
from golden.lm.commands import open_model
from golden.lm.model import in_memory
from golden.lm.models import MODELS
from golden.lm.text import read_texts


@dataclasses.dataclass(frozen=True)
class Place:
    """Where policies are tried.

    model
        A model's name or file.
    texts
        The name of a role of texts, of one text, or a file.
    windows
        Windows of the texts; of retrieval, fillers with several questions each.
    task, states
        As `golden eval` has them.
    """

    model: str
    context: int
    queries: int
    windows: int
    texts: str
    task: str = "prose"
    states: str = "loop"


@dataclasses.dataclass(frozen=True)
class Trial:
    """A policy at a place."""

    policy: str
    place: Place


@dataclasses.dataclass(frozen=True)
class Choice:
    """An open parameter of a policy, to be chosen at a place for each of some allowed losses."""

    policy: str
    allowed: tuple[float, ...]
    place: Place

    def __str__(self) -> str:
        return f"{self.place.model} choose {self.policy}"


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The policy with the parameter that was chosen, and its loss there."""

    policy: str
    loss: float


@dataclasses.dataclass(frozen=True)
class WindowTask:
    """Policies in one window of a place, or in one filler's questions."""

    place: Place
    number: int
    policies: tuple[str, ...]

    def __str__(self) -> str:
        place = self.place
        return f"{place.model} {place.task} {place.context}, window {self.number}"


Task = WindowTask | Choice


def tasks_of(trials: Iterable[Trial]) -> list[WindowTask]:
    """Tasks that have all trials' policies; those at one place share the dense runs."""
    places: dict[Place, dict[str, None]] = {}
    for trial in trials:
        places.setdefault(trial.place, {})[trial.policy] = None
    return [
        WindowTask(place, number, tuple(policies))
        for place, policies in places.items()
        for number in range(place.windows)
    ]


def rows_of(
    trials: Iterable[Trial], done: Mapping[WindowTask, Mapping[str, Sequence[Score]]]
) -> dict[Trial, Row]:
    """A row for each trial, from the results of :func:`tasks_of`."""
    found: dict[tuple[Place, str], list[Score]] = {}
    for task, scores in done.items():
        for policy, some in scores.items():
            found.setdefault((task.place, policy), []).extend(some)
    return {
        trial: row_of(
            trial.policy,
            trial.place.model,
            trial.place.context,
            trial.place.queries,
            found[trial.place, trial.policy],
        )
        for trial in trials
    }


def run(task: Task) -> dict[str, list[Score]] | list[Chosen]:
    """Perform one task. Raises as `golden eval`."""
    setting, windows = _setting(task.place), cut(task.place)
    if isinstance(task, Choice):
        knob = open_knob(task.policy)
        assert knob is not None, f"{task.policy} has no open parameter"
        chosen = choose_all(setting, windows, [knob], task.allowed)
        return [Chosen(policy, losses["chosen_kl"]) for policy, losses in chosen]
    # Questions on one filler come one after another.
    each = len(windows) // task.place.windows
    some = windows[task.number * each : (task.number + 1) * each]
    policies = [parse(text, prompt=setting.context) for text in task.policies]
    defaults = setting.defaults(policies, windows)
    runs = run_windows(setting.model, some)
    return score_all(setting, runs, policies, first=task.number * each, **defaults)


@functools.lru_cache(maxsize=1)  # tasks come model by model, and one may need 2 GB
def _opened(model: str):
    llama, tokenizer, about = open_model(model if model in MODELS else Path(model))
    return in_memory(llama), tokenizer, about


def _setting(place: Place) -> Setting:
    model, tokenizer, about = _opened(place.model)
    return Setting(
        model,
        tokenizer,
        place.context,
        place.queries,
        place.windows,
        place.task,
        place.states == "loop",
        about,
    )


@functools.lru_cache(maxsize=4)
def cut(place: Place) -> list[Window]:
    """The windows of a place."""
    return _setting(place).cut(read_texts([place.texts]))


def texts_of(place: Place) -> list[str]:
    """Names of the texts of a place's windows."""
    return list(dict.fromkeys(window.source.rpartition(":")[0] for window in cut(place)))


def hidden_inputs(place: Place, number: int) -> list[dict[str, np.ndarray]]:
    """Queries, keys and values of each layer of a window, [head, token, d] each."""
    (dense,) = run_windows(_setting(place).model, [cut(place)[number]])
    return [
        {name: np.concatenate([a[name], b[name]], axis=1) for name in "qkv"}
        for a, b in zip(dense.prefix, dense.queries, strict=True)
    ]
