"""``golden eval --context``: policies at a fixed context, in windows of several texts."""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console

from golden import FailedError, InputError
from golden.evaluation.context_table import table
from golden.evaluation.knobs import Knob, open_knob
from golden.evaluation.policies import parse
from golden.evaluation.row import Row
from golden.evaluation.setting import (
    QUERIES,
    TASKS,
    Setting,
    choose_all,
    run_windows,
    score_all,
)
from golden.evaluation.tasks import DEPTHS
from golden.evaluation.windows import ECHO_QUERIES
from golden.files import json_text
from golden.lm.commands import at_least
from golden.lm.model import Llama, in_memory
from golden.lm.text import text_source
from golden.lm.texts import HELD_OUT, TEXTS
from golden.lm.tokenizer import Tokenizer


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


def setting_of(
    arguments: argparse.Namespace, model: Llama, tokenizer: Tokenizer, about: dict
) -> Setting:
    """The setting that the options describe. Raises ``InputError``."""
    most = model.config.context
    if arguments.context > most:
        raise InputError(f"--context: the model sees at most {most} tokens")
    return Setting(
        in_memory(model),
        tokenizer,
        arguments.context,
        arguments.queries,
        arguments.windows or 1,
        arguments.task or TASKS[0],
        arguments.states != "dense",
        about,
    )


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
    # Not before the other policies' rows are printed.
    failed = [
        f"policy {row.policy}: its figures are not finite"
        for row in rows
        if setting.loop and setting.task != "agreement" and not math.isfinite(row.kl.mean)
    ]
    if json:
        told = (losses for _, losses in chosen)
        print(json_text([row.as_json() | of for row, of in zip(rows, told, strict=True)]))
    else:
        _show(rows, setting, judge if allowed else texts)
        for text, losses in chosen if allowed else ():
            told_kl = f"KL {losses['chosen_kl']:.4f} of {losses['allowed_kl']:g}"
            print(f"{text}: {told_kl} where it was chosen")
    if failed:
        raise FailedError("; ".join(failed))


def _show(rows: Sequence[Row], setting: Setting, texts: Iterable[str]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 130)  # a file or a pipe has no width
    title = f"{setting.about['model']} on {', '.join(texts)}, {setting.task}"
    console.print(table(rows, title, setting.task))
