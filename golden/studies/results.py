"""The command ``results``: every experiment, run and written to a folder of pages."""

import argparse
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from golden import InputError
from golden.algorithms.kllm.calibration import calibration_samples, tuning_samples
from golden.evaluation.measure import Measurement, measure
from golden.evaluation.policies import parse
from golden.evaluation.row import Row
from golden.files import check_writable, replacing
from golden.lm.commands import add_model, open_model
from golden.lm.text import first_tokens, read_text, shipped_prose
from golden.studies import kllm, lad, topick, unicaim, veda
from golden.studies.runs import Opened, Results, Run
from golden.studies.study import PAPER, Claim, Study
from golden.studies.trials import Choice, Chosen, Place, Task, Trial, rows_of, tasks_of
from golden.studies.trials import run as run_task

AT_CONTEXT: dict[str, Any] = {"veda": veda, "topick": topick, "lad": lad}
"""Experiments whose policies are tried at fixed contexts, on texts and models that they name."""
EXPERIMENTS = {"veda": veda, "topick": topick, "lad": lad, "unicaim": unicaim, "kllm": kllm}

_opened: Opened | None = None
"""What :func:`open_all` has opened in this process."""


def register(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "results",
        help="repeat each paper's main result and write pages with plots",
        description="Repeat each paper's main result on the language model and write, for each"
        " paper, a page that puts its figure beside ours, a picture and the data as JSON, with an"
        " index. --text, --model and --tokens are for unicaim and kllm; the others name their"
        " models and texts. Takes some hours; `python -m sim results` runs several tasks at a time,"
        " of up to 4 GB of memory each, and resumes.",
    )
    add_model(command, tokens=1024)
    command.add_argument(
        "papers",
        nargs="*",
        metavar="PAPER",
        help=f"of {', '.join(EXPERIMENTS)} (default: all); pages of others stay as they are",
    )
    command.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write to"
    )
    command.add_argument(
        "--kept",
        action="store_true",
        help="run nothing: write the pages again from the data in DIR",
    )
    command.set_defaults(run=run_results)


def run_one_by_one(tasks: list, arguments: argparse.Namespace, needed: int) -> dict:
    """The result of :func:`run` for each task."""
    return {task: run(task) for task in tqdm(tasks, unit="run")}


def run_results(arguments: argparse.Namespace, run_all: Callable = run_one_by_one) -> None:
    """Write the pages. Raises ``InputError`` or ``OSError``.

    run_all
        Called as ``run_all(tasks, arguments, needed)``: returns the result of :func:`run` for each
        task. Where it runs them in other processes, these call :func:`open_all` first, with
        `needed` tokens.
    """
    names = arguments.papers or list(EXPERIMENTS)
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        raise InputError(f"there is no experiment {unknown[0]}; known: {', '.join(EXPERIMENTS)}")
    tokens, output = arguments.tokens, arguments.output
    if tokens < LEAST_TOKENS:
        raise InputError(f"--tokens: the experiments need {LEAST_TOKENS} tokens, not {tokens}")
    check_writable(output)
    if arguments.kept:
        for name in names:
            print(read_kept(output, name, tokens).write(output))
        _write_index(output)
        return
    if output.exists() and not output.is_dir():
        raise InputError(f"output {output}: it is not a folder")
    if others := [name for name in names if name not in AT_CONTEXT]:
        _from_first_token(others, arguments, run_all)
    for name in [name for name in names if name in AT_CONTEXT]:
        print(_at_context(name, lambda tasks: run_all(tasks, arguments, 0)).write(output))
    _write_index(output)


def _from_first_token(
    names: Sequence[str], arguments: argparse.Namespace, run_all: Callable
) -> None:
    """Studies of texts that are read from their first token on, under a policy all the time."""
    tokens = arguments.tokens
    wanted = dict.fromkeys(run for name in names for run in EXPERIMENTS[name].runs(tokens))
    needed = max([unicaim.TOKENS_NEEDED, *(run.tokens for run in wanted)])
    open_all(arguments.model, arguments.text, tokens, needed)
    context = _input().model.config.context
    if tokens > context:
        raise InputError(f"--tokens: the model sees {context} tokens, not {tokens}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    done = run_all([*names, *wanted], arguments, needed)
    for name in names:
        results = {run: done[run] for run in EXPERIMENTS[name].runs(tokens)}
        made = study_of(name, tokens, results, done[name], _input().about)
        print(made.write(arguments.output))


def _at_context(name: str, run_all: Callable[[list], dict]) -> Study:
    module = AT_CONTEXT[name]
    chosen = run_all(module.choices())
    tried = module.trials(chosen)
    tasks = tasks_of(tried)
    done = run_all([name, *tasks])
    rows = rows_of(tried, {task: done[task] for task in tasks})
    return _with_rows(name, rows, chosen, done[name])


def _with_rows(
    name: str,
    rows: Mapping[Trial, Row],
    chosen: Mapping[Choice, Sequence[Chosen]],
    extras: dict,
) -> Study:
    """The study at fixed contexts, with its rows and what they are of."""
    made = AT_CONTEXT[name].study(rows, chosen, extras)
    places = [trial.place for trial in rows]
    about = {
        "model": ", ".join(dict.fromkeys(place.model for place in places)),
        "text": f"{', '.join(dict.fromkeys(place.texts for place in places))} texts",
    }
    data = {
        "trials": [
            dataclasses.asdict(trial) | {"row": row.as_json()} for trial, row in rows.items()
        ],
        "choices": [
            dataclasses.asdict(choice) | {"chosen": [dataclasses.asdict(one) for one in found]}
            for choice, found in chosen.items()
        ],
        "extras": extras,
    }
    return dataclasses.replace(made, about=about, data=data)


def _read_rows(name: str, content: dict, path: Path) -> Study:
    """The study at fixed contexts made again of its JSON, which was read from `path`."""
    rows = {
        Trial(of["policy"], Place(**of["place"])): Row.from_json(of["row"])
        for of in content.get("trials", ())
    }
    chosen = {
        Choice(of["policy"], tuple(of["allowed"]), Place(**of["place"])): [
            Chosen(**one) for one in of["chosen"]
        ]
        for of in content.get("choices", ())
    }
    wanted: list[Choice | Trial] = [of for of in AT_CONTEXT[name].choices() if of not in chosen]
    wanted += [trial for trial in AT_CONTEXT[name].trials(chosen) if trial not in rows]
    if wanted:
        policy, place = wanted[0].policy, wanted[0].place
        raise InputError(
            f"{path}: it has no run of {policy}, {place.model}, {place.context} tokens"
        )
    return _with_rows(name, rows, chosen, content["extras"])


def study_of(name: str, tokens: int, results: Results, extras: dict, about: dict) -> Study:
    """The study, with its measurements and what they are of."""
    runs = [dataclasses.asdict(run) | m.as_json() for run, m in results.items()]
    made = EXPERIMENTS[name].study(tokens, results, extras)
    return dataclasses.replace(made, about=about, data={"runs": runs, "extras": extras})


def read_kept(output: Path, name: str, tokens: int) -> Study:
    """The study made again of the data in a folder.

    :raises InputError: if the file lacks a run.
    """
    content = json.loads((output / f"{name}.json").read_text())
    if name in AT_CONTEXT:
        return _read_rows(name, content, output / f"{name}.json")
    fields = [field.name for field in dataclasses.fields(Run)]
    kept = {Run(*(run[field] for field in fields)): run for run in content["runs"]}
    missing = [run.policy for run in EXPERIMENTS[name].runs(tokens) if run not in kept]
    if missing:
        raise InputError(f"{output / name}.json: it has no run of {missing[0]}, {tokens} tokens")
    results = {run: Measurement.from_json(kept[run]) for run in EXPERIMENTS[name].runs(tokens)}
    about = {key: content[key] for key in ABOUT}
    return study_of(name, tokens, results, content["extras"], about)


ABOUT = ("model", "model_sha256", "text")
"""What a file of results says of its input."""
LEAST_TOKENS = 600
"""A prompt of 512 tokens and something to predict."""


def open_all(source: Path | str | None, text: Path | str | None, tokens: int, needed: int) -> None:
    """Open the text and the model, by `source` as ``open_model`` has it, for :func:`run`."""
    global _opened
    words, described = read_text(text)
    model, tokenizer, about = open_model(source)
    numbers = first_tokens(tokenizer, words, needed, described)
    evaluated = tokenizer.decode(numbers) + "\n" + shipped_prose()
    samples = calibration_samples(tokenizer, evaluated=evaluated)
    tuning = tuning_samples(tokenizer, evaluated=evaluated)
    about |= {"text": described}
    _opened = Opened(model, tokenizer, about, numbers[:tokens], numbers, samples, tuning)


def _input() -> Opened:
    assert _opened is not None, "open_all comes first"
    return _opened


def run(task: Run | str | Task) -> Any:
    """Perform one run or task, or compute the extras of an experiment, given by name."""
    if isinstance(task, Task):
        return run_task(task)
    if isinstance(task, str):
        if task in AT_CONTEXT:
            return AT_CONTEXT[task].extras()
        return EXPERIMENTS[task].extras(_input())
    policy, opened = parse(task.policy, prompt=task.prompt), _input()
    return measure(
        policy,
        opened.model,
        opened.all_tokens[: task.tokens],
        prompt=task.prompt,
        context=task.context,
        samples=opened.samples,
        tuning=opened.tuning,
    )


def _write_index(output: Path) -> None:
    """The index of all experiments whose data are in the folder."""
    parts = ["# The papers' main results, repeated", INTRODUCTION]
    for name in EXPERIMENTS:
        path = output / f"{name}.json"
        if path.exists():
            content = json.loads(path.read_text())
            claims = [Claim(**claim) for claim in content["claims"]]
            parts.append(f"## [{content['title']}]({name}.md)")
            parts.append(f"{content['model']}, {content['text']}.")
            parts += ["\n".join(map(_line, claims))]
    with replacing(output / "README.md") as file:
        file.write(("\n\n".join(parts) + "\n").encode())
    print(f"wrote {output / 'README.md'}")


def _line(claim: Claim) -> str:
    whose = "" if claim.whose == PAPER else " (this project's own)"
    return f"- **{claim.verdict}**{whose}: {claim.paper}. Here: {claim.ours}."


INTRODUCTION = (
    "`make eval` writes this folder; `python -m golden results --kept -o` and the folder write its"
    " pages from its data again. The papers measured models of 1 to 70 billion parameters on"
    " contexts of 1024 to 4096 tokens. Here they are of 135 and 494 million, which any machine can"
    " run: VEDA, ToPick and LAD at the papers' contexts, in ten windows of held-out texts, so that"
    " a verdict on a loss or a saving is what the 95 % interval says; UniCAIM and KLLM on some"
    " hundred tokens of two texts. Where a figure differs from the paper's, the page states the"
    " likely cause."
)
