"""What policies are measured on at a fixed context, and the measurements."""

import dataclasses
import functools
import pickle
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tqdm import tqdm

from golden import InputError
from golden.algorithms.kllm.calibration import calibration_samples, tuning_samples
from golden.algorithms.tsuru import KeyConstants, constant_samples, kept_key_constants
from golden.evaluation.in_context import (
    DenseRun,
    Score,
    run_dense,
    run_free,
    run_policy,
    written,
)
from golden.evaluation.knobs import Knob, choose
from golden.evaluation.policies import Policy, parse
from golden.evaluation.row import Row, row_of
from golden.evaluation.tasks import DEPTHS, retrieval
from golden.evaluation.windows import ECHO_QUERIES, Window, echo, prose
from golden.lm.model import Llama, in_memory
from golden.lm.tokenizer import Tokenizer

TASKS = ("prose", "echo", "retrieval", "agreement")
QUERIES = 64
TOGETHER = {"retrieval": len(DEPTHS)}
"""Windows of a task that are not independent, if there are any: questions on one filler."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What policies are measured on: a model, sizes of windows, and parameters for policies."""

    model: Llama
    tokenizer: Tokenizer
    context: int
    queries: int | None
    windows: int
    task: str
    loop: bool
    about: dict[str, Any]

    def cut(self, texts: dict[str, str]) -> list[Window]:
        """Windows that feed `context` tokens, and one more to predict."""
        queries = self.queries or (ECHO_QUERIES if self.task == "echo" else QUERIES)
        if queries >= self.context:
            raise InputError(f"--queries: they must be fewer than the context's {self.context}")
        if self.task == "retrieval":
            questions = retrieval(
                self.tokenizer, texts, self.context + 1, chat=False, prompts=self.windows
            )
            return [question.window for question in questions]
        cut = echo if self.task == "echo" else prose
        return cut(self.tokenizer, texts, self.context + 1, queries=queries, windows=self.windows)

    def defaults(self, policies: Sequence[Policy], windows: Sequence[Window]) -> dict[str, Any]:
        """Samples to calibrate with, which the windows' text is not among, and constants."""
        defaults = self.constants(policies)
        evaluated = "\n".join(self.tokenizer.decode(list(window.tokens)) for window in windows)
        if any(policy.quantises_products for policy in policies):
            defaults["samples"] = calibration_samples(self.tokenizer, evaluated=evaluated)
        if any(policy.parameters.get("tuned") for policy in policies):
            defaults["tuning"] = tuning_samples(self.tokenizer, evaluated=evaluated)
        return defaults

    def constants(self, policies: Sequence[Policy]) -> dict[str, Any]:
        """What a policy knows of the model before a sequence begins."""
        return (
            {"constants": self._key_constants} if any(p.name == "tsuru" for p in policies) else {}
        )

    @functools.cached_property
    def _key_constants(self) -> list[KeyConstants]:
        return kept_key_constants(self.model, constant_samples(self.tokenizer, self.context))

    def row(self, policy: str, scores: Sequence[Score], queries: int) -> Row:
        """The policy's row."""
        together = TOGETHER.get(self.task, 1)
        return row_of(policy, self.about["model"], self.context, queries, scores, together=together)


def run_windows(model: Llama, windows: Iterable[Window]) -> Iterator[DenseRun]:
    """Dense runs, one after another."""
    before = None
    for window in windows:
        before = run_dense(model, window, before)
        yield before


class StoredRuns:
    """Dense runs in files of a folder, to go over repeatedly with two of them in memory at most.

    A run of 2048 tokens has some 250 MB.
    """

    def __init__(self, folder: Path, runs: Iterable[DenseRun]) -> None:
        self._paths: list[Path] = []
        for number, dense in enumerate(runs):
            self._paths.append(folder / f"{number}.pickle")
            with self._paths[-1].open("wb") as file:
                pickle.dump(dense, file, pickle.HIGHEST_PROTOCOL)

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[DenseRun]:
        for path in self._paths:
            with path.open("rb") as file:
                yield pickle.load(file)


def choose_all(
    setting: Setting,
    windows: Sequence[Window],
    knobs: Iterable[str | Knob],
    allowed: Sequence[float],
    *,
    nearest: bool = False,
) -> list[tuple[str, dict[str, float]]]:
    """For each open parameter and allowed loss the policy's text, and both losses by name.

    nearest
        As :func:`~golden.evaluation.knobs.choose` has it.

    Raises ``InputError``, or ``OSError`` if the folder for temporary files is full.
    """
    with TemporaryDirectory(prefix="senbazuru_") as folder:
        with_bar = tqdm(windows, desc="dense", unit="run", disable=None)
        runs = StoredRuns(Path(folder), run_windows(setting.model, with_bar))
        return list(_chosen(setting, runs, knobs, allowed, nearest))


def _chosen(
    setting: Setting,
    runs: StoredRuns,
    knobs: Iterable[str | Knob],
    allowed: Sequence[float],
    nearest: bool,
) -> Iterator[tuple[str, dict[str, float]]]:
    losses: dict[str, float] = {}

    def loss(text: str) -> float:
        if text not in losses:
            policy = parse(text, prompt=setting.context)
            known = setting.constants([policy])
            scores = score_all(setting, runs, [policy], total=len(runs), **known)[text]
            losses[text] = float(np.mean([score.kl for score in scores]))
        return losses[text]

    for knob in knobs:
        assert isinstance(knob, Knob), "check_policies has seen to that"
        for target in allowed:
            text, found = choose(knob, target, loss, nearest=nearest)
            yield text, {"allowed_kl": target, "chosen_kl": found}


def score_all(
    setting: Setting,
    runs: Iterable[DenseRun],
    policies: Sequence[Policy],
    *,
    first: int = 0,
    total: int | None = None,
    **defaults,
) -> dict[str, list[Score]]:
    """Scores of each policy, by its text, in each window.

    first
        Number of the first window, for seeds.
    total
        Number of windows, for a progress bar; without it there is no bar.
    """
    scores: dict[str, list[Score]] = {policy.text: [] for policy in policies}
    dense_model, free = setting.model, setting.task == "agreement"
    models = {
        policy.text: in_memory(policy.model(dense_model, **defaults))
        if policy.quantises_products
        else dense_model
        for policy in policies
    }
    runs_of_all = None if total is None else total * len(policies)
    hidden = True if total is None else None
    with tqdm(total=runs_of_all, unit="run", disable=hidden) as bar:
        for index, dense in enumerate(runs, first):
            reference = written(parse("dense"), dense_model, dense) if free else []
            for policy in policies:
                bar.set_description(f"{dense.window.source}, {policy.text}")
                model = models[policy.text]
                given = defaults | {"number": index}
                try:
                    if free:
                        decode = setting.tokenizer.decode
                        found = run_free(policy, model, dense, reference, decode, **given)
                    else:
                        found = run_policy(policy, model, dense, loop=setting.loop, **given)
                except ValueError as error:
                    raise InputError(f"policy {policy.text}: {error}") from None
                scores[policy.text].append(found)
                bar.update()
    return scores
