"""``golden eval --context``: policies at a fixed context, in windows of several texts."""

import argparse
import dataclasses
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from tqdm import tqdm

from golden import FailedError, InputError
from golden.algorithms.kllm.calibration import calibration_samples, tuning_samples
from golden.evaluation.context_table import table
from golden.evaluation.in_context import (
    DenseRun,
    Score,
    run_dense,
    run_free,
    run_policy,
    written,
)
from golden.evaluation.knobs import Knob, choose, open_knob
from golden.evaluation.policies import Policy, parse
from golden.evaluation.row import Row, row_of
from golden.evaluation.tasks import DEPTHS, retrieval
from golden.evaluation.windows import ECHO_QUERIES, Window, echo, prose
from golden.files import json_text
from golden.lm.commands import at_least
from golden.lm.model import Llama, in_memory
from golden.lm.text import text_source
from golden.lm.texts import HELD_OUT, TEXTS
from golden.lm.tokenizer import Tokenizer

TASKS = ("prose", "echo", "retrieval", "agreement")
QUERIES = 64


def positive(text: str) -> float:
    """An argument's type: a finite number above zero."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"it must be a number above 0, not {text}")
    return value


def add_context(command: argparse.ArgumentParser) -> None:
    """Add the options of a fixed context."""
    group = command.add_argument_group(
        "at a fixed context",
        "Windows of N tokens, dense but for the last queries, which the policies serve in every"
        " layer. A row a policy: loss and KL(dense || policy) with standard errors over the"
        " windows, and how many times fewer bytes of K and V it reads than dense attention.",
    )
    group.add_argument("--context", type=at_least(2), metavar="N", help="tokens of a window")
    group.add_argument(
        "--queries",
        type=at_least(1),
        metavar="N",
        help=f"last queries of a window, which are counted (default: {QUERIES})",
    )
    group.add_argument(
        "--windows",
        type=at_least(1),
        metavar="N",
        help="windows, spread over the texts (default: 1)",
    )
    group.add_argument(
        "--task",
        choices=TASKS,
        help="prose; echo: a window's last tokens repeat earlier ones, a test of recall"
        f" ({ECHO_QUERIES} queries if not given); retrieval: {len(DEPTHS)} questions a window on"
        " numbers hidden in it, whose answers are counted; agreement: as many tokens as queries,"
        " written greedily and compared with dense attention's (default: prose)",
    )
    group.add_argument(
        "--states",
        choices=("loop", "dense"),
        help="loop: a policy's outputs go on to the next layer; dense: each layer gets the dense"
        " model's states, and only reads are counted (default: loop)",
    )
    group.add_argument(
        "--kl",
        type=positive,
        nargs="+",
        metavar="LOSS",
        help="choose an open parameter, as in topick:threshold=1e-5..0.1, so that KL is at most"
        " this on the texts, and measure the policy then",
    )
    group.add_argument(
        "--judge",
        type=text_source,
        nargs="+",
        metavar="TEXT",
        help="texts to measure on what --kl has chosen (default: the texts that it chose on)",
    )


CONTEXT_OPTIONS = ("queries", "windows", "task", "states", "kl", "judge")
"""Options that ask for ``--context``."""


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

    @classmethod
    def of(cls, arguments: argparse.Namespace, model: Llama, tokenizer: Tokenizer, about: dict):
        """From the options. Raises ``InputError``."""
        most = model.config.context
        if arguments.context > most:
            raise InputError(f"--context: the model sees at most {most} tokens")
        return cls(
            in_memory(model),
            tokenizer,
            arguments.context,
            arguments.queries,
            arguments.windows or 1,
            arguments.task or TASKS[0],
            arguments.states != "dense",
            about,
        )

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
        """Samples to calibrate with, which the windows' text is not among."""
        defaults: dict[str, Any] = {}
        evaluated = "\n".join(self.tokenizer.decode(list(window.tokens)) for window in windows)
        if any(policy.quantises_products for policy in policies):
            defaults["samples"] = calibration_samples(self.tokenizer, evaluated=evaluated)
        if any(policy.parameters.get("tuned") for policy in policies):
            defaults["tuning"] = tuning_samples(self.tokenizer, evaluated=evaluated)
        return defaults

    def row(self, policy: str, scores: Sequence[Score], queries: int) -> Row:
        """The policy's row. Raises ``FailedError`` if its figures are not finite."""
        row = row_of(policy, self.about["model"], self.context, queries, scores)
        if self.loop and self.task != "agreement" and not math.isfinite(row.kl.mean):
            raise FailedError(f"policy {policy}: its figures are not finite: values overflow")
        return row


def check_policies(texts: Sequence[str], arguments: argparse.Namespace) -> list[str | Knob]:
    """Policies, or such with an open parameter if ``--kl`` is given. Raises ``InputError``."""
    found: list[str | Knob] = []
    for text in texts:
        knob = open_knob(text)
        if (knob is None) != (arguments.kl is None):
            needed = (
                "--kl, the loss to choose it for" if knob else "an open parameter, as low..high"
            )
            raise InputError(f"policy {text}: it needs {needed}")
        for value in [text] if knob is None else [knob.at(knob.low), knob.at(knob.high)]:
            policy = parse(value, prompt=arguments.context)
            if policy.quantises_products and (arguments.states == "dense" or knob is not None):
                raise InputError(
                    f"policy {text}: a policy that quantises products can only be measured in the"
                    " loop, with all parameters given"
                )
        found.append(text if knob is None else knob)
    for name in arguments.text or () if arguments.kl is not None else ():
        if name == HELD_OUT or (name in TEXTS and TEXTS[name].role == HELD_OUT):
            raise InputError(
                f"text {name}: it is held out, so that nothing is chosen on it; give it as --judge"
            )
    if arguments.kl is None and arguments.judge is not None:
        raise InputError("--judge: it is for parameters that --kl chooses")
    if arguments.task not in (None, "prose", "echo") and arguments.states == "dense":
        raise InputError("--states dense: reads alone are counted on prose and echo")
    if arguments.task == "retrieval" and arguments.queries is not None:
        raise InputError("--queries: retrieval counts the tokens of the answers")
    if arguments.task == "agreement" and arguments.kl is not None:
        raise InputError("--kl: a text that the model writes has no loss")
    if arguments.kl is not None and arguments.states == "dense":
        raise InputError("--kl: a loss is measured in the loop, not on dense states")
    return found


def run_context(
    setting: Setting,
    policies: Sequence[str | Knob],
    allowed: Sequence[float],
    texts: dict[str, str],
    judge: dict[str, str],
    *,
    json: bool,
) -> None:
    """Print a table or a JSON list of rows. Raises ``InputError`` or ``FailedError``.

    allowed
        Losses at which the open parameters are chosen on `texts`, and measured on `judge`.
    """
    windows = setting.cut(texts)
    chosen: list[tuple[str, dict[str, float]]] = [(str(policy), {}) for policy in policies]
    if allowed:
        judged = setting.cut(judge)
        chosen = choose_all(setting, windows, policies, allowed)
        windows = judged
    names = dict.fromkeys(text for text, _ in chosen)
    parsed = [parse(text, prompt=setting.context) for text in names]
    runs = run_windows(setting.model, windows)
    defaults = setting.defaults(parsed, windows)
    scores = score_all(setting, runs, parsed, total=len(windows), **defaults)
    rows = [setting.row(text, scores[text], windows[0].queries) for text, _ in chosen]
    if json:
        told = (losses for _, losses in chosen)
        print(json_text([row.as_json() | of for row, of in zip(rows, told, strict=True)]))
        return
    console = Console(width=None if sys.stdout.isatty() else 130)  # a file or a pipe has no width
    title = f"{setting.about['model']} on {', '.join(judge if allowed else texts)}, {setting.task}"
    console.print(table(rows, title, setting.task))
    for text, losses in chosen if allowed else ():
        print(
            f"{text}: KL {losses['chosen_kl']:.4f} of {losses['allowed_kl']:g} where it was chosen"
        )


def run_windows(model: Llama, windows: Iterable[Window]) -> Iterator[DenseRun]:
    """Dense runs, one after another."""
    before = None
    for window in windows:
        before = run_dense(model, window, before)
        yield before


def choose_all(
    setting: Setting,
    windows: Sequence[Window],
    knobs: Iterable[str | Knob],
    allowed: Sequence[float],
) -> list[tuple[str, dict[str, float]]]:
    """For each open parameter and allowed loss the policy's text, and both losses by name."""
    with_bar = tqdm(windows, desc="dense", unit="run", disable=None)
    runs = list(run_windows(setting.model, with_bar))
    losses: dict[str, float] = {}

    def loss(text: str) -> float:
        if text not in losses:
            policy = parse(text, prompt=setting.context)
            scores = score_all(setting, runs, [policy], total=len(runs))[text]
            losses[text] = float(np.mean([score.kl for score in scores]))
        return losses[text]

    chosen = []
    for knob in knobs:
        assert isinstance(knob, Knob), "check_policies has seen to that"
        for target in allowed:
            text, found = choose(knob, target, loss)
            chosen.append((text, {"allowed_kl": target, "chosen_kl": found}))
    return chosen


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
    model, free = setting.model, setting.task == "agreement"
    runs_of_all = None if total is None else total * len(policies)
    hidden = True if total is None else None
    with tqdm(total=runs_of_all, unit="run", disable=hidden) as bar:
        for index, dense in enumerate(runs, first):
            reference = written(parse("dense"), model, dense) if free else []
            for policy in policies:
                bar.set_description(f"{dense.window.source}, {policy.text}")
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
