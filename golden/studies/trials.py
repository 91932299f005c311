"""Trials of policies at fixed contexts that studies ask for, as tasks of some windows each."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from golden.evaluation.in_context import DenseRun, Score
from golden.evaluation.knobs import open_knob
from golden.evaluation.policies import parse
from golden.evaluation.row import Row, row_of
from golden.evaluation.setting import TOGETHER, Setting, choose_all, run_windows, score_all
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
    """An open parameter of a policy, to be chosen at a place for each of some allowed losses.

    nearest
        Take the nearest end of the parameter's range where a loss cannot be had in it.
    """

    policy: str
    allowed: tuple[float, ...]
    place: Place
    nearest: bool = False

    def __str__(self) -> str:
        return f"{self.place.model} choose {self.policy}"


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The policy with the parameter that was chosen, and its loss there."""

    policy: str
    loss: float


@dataclasses.dataclass(frozen=True)
class WindowTask:
    """Policies in `count` windows of a place, or fillers' questions, from number `first` on."""

    place: Place
    first: int
    count: int
    policies: tuple[str, ...]

    def __str__(self) -> str:
        place, some = self.place, f"window {self.first}"
        if self.count > 1:
            some = f"windows {self.first} to {self.first + self.count - 1}"
        names = ", ".join(dict.fromkeys(map(_algorithm, self.policies)))
        return f"{place.model} {place.task} {place.context}, {some}, {names}"


Task = WindowTask | Choice

AT_ONCE = {"smollm2": 3}
"""Quantised models that a task may hold, by the name of the float one; of others it holds one.

A task then has up to 4 GB, but where a larger model's weights are fitted first.
"""


def tasks_of(trials: Iterable[Trial]) -> list[WindowTask]:
    """Tasks that have all trials' policies.

    Attentions of one algorithm are tried together, window by window, and a window's tasks come one
    after another, since they share its dense run. A quantised model takes longer to make than to
    run: each is tried in all windows of a place, some of them together, in the order of the trials.
    """
    places: dict[Place, dict[str, None]] = {}
    for trial in trials:
        places.setdefault(trial.place, {})[trial.policy] = None
    return [task for place, policies in places.items() for task in _tasks(place, policies)]


def _tasks(place: Place, policies: Iterable[str]) -> Iterator[WindowTask]:
    products: list[str] = []
    attentions: dict[str, list[str]] = {}
    for text in policies:
        quantises = parse(text, prompt=place.context).quantises_products
        (products if quantises else attentions.setdefault(_algorithm(text), [])).append(text)
    for number in range(place.windows):
        yield from (WindowTask(place, number, 1, tuple(of)) for of in attentions.values())
    at_once = AT_ONCE.get(place.model, 1)
    for number in range(0, len(products), at_once):
        yield WindowTask(place, 0, place.windows, tuple(products[number : number + at_once]))


def _algorithm(policy: str) -> str:
    return policy.partition(":")[0]


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
            together=TOGETHER.get(trial.place.task, 1),
        )
        for trial in trials
    }


def run(task: Task) -> dict[str, list[Score]] | list[Chosen]:
    """Perform one task. Raises as `golden eval`."""
    setting, windows = _setting(task.place), cut(task.place)
    if isinstance(task, Choice):
        knob = open_knob(task.policy)
        assert knob is not None, f"{task.policy} has no open parameter"
        chosen = choose_all(setting, windows, [knob], task.allowed, nearest=task.nearest)
        return [Chosen(policy, losses["chosen_kl"]) for policy, losses in chosen]
    policies = [parse(text, prompt=setting.context) for text in task.policies]
    defaults = setting.defaults(policies, windows)
    numbers = range(task.first, task.first + task.count)
    runs = (dense for number in numbers for dense in _dense(task.place, number))
    first = task.first * len(windows) // task.place.windows
    return score_all(setting, runs, policies, first=first, **defaults)


@functools.lru_cache(maxsize=1)  # the tasks of a window come one after another
def _dense(place: Place, number: int) -> list[DenseRun]:
    """Dense runs of a window, or of the questions on a filler, which come one after another."""
    windows = cut(place)
    each = len(windows) // place.windows
    some = windows[number * each : (number + 1) * each]
    return list(run_windows(_setting(place).model, some))


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
    (dense,) = _dense(place, number)
    return [
        {name: np.concatenate([a[name], b[name]], axis=1) for name in "qkv"}
        for a, b in zip(dense.prefix, dense.queries, strict=True)
    ]
