"""The command ``results``: every experiment, run and written to a folder of pages."""

import argparse
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from golden import InputError
from golden.evaluation.row import Row
from golden.files import check_writable, replacing
from golden.studies import blocks, equal_quality, kllm, lad, recall, topick, tsuru, unicaim, veda
from golden.studies.study import PAPER, Claim, Study
from golden.studies.trials import Choice, Chosen, Place, Task, Trial, rows_of, tasks_of
from golden.studies.trials import run as run_task

EXPERIMENTS: dict[str, Any] = {
    "veda": veda,
    "topick": topick,
    "lad": lad,
    "unicaim": unicaim,
    "kllm": kllm,
    "recall": recall,
    "equal_quality": equal_quality,
    "blocks": blocks,
    "tsuru": tsuru,
}
"""Modules whose policies are tried at fixed contexts, on texts and models that they name."""


def register(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "results",
        help="repeat each paper's main result and write pages with plots",
        description="Repeat each paper's main result on language models and write, for each paper,"
        " a page that puts its figure beside ours, a picture and the data as JSON, and pages of"
        " what all policies recall, of their settings at equal loss, of eviction by blocks and of"
        " the sixth design, with an index. The pages name their models and texts. Takes some hours;"
        " `python -m sim results` runs several tasks at a time, of up to 8 GB of memory each, and"
        " resumes.",
    )
    command.add_argument(
        "pages",
        nargs="*",
        metavar="PAGE",
        help=f"of {', '.join(EXPERIMENTS)} (default: all); the others stay as they are",
    )
    command.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write to"
    )
    old = command.add_mutually_exclusive_group()
    old.add_argument(
        "--kept",
        action="store_true",
        help="run nothing: write the pages again from the data in DIR",
    )
    old.add_argument(
        "--missing",
        action="store_true",
        help="run only what the data in DIR lack, as after a study gained a setting",
    )
    command.set_defaults(run=run_results)


def run_one_by_one(tasks: list, arguments: argparse.Namespace) -> dict:
    """The result of :func:`run` for each task."""
    return {task: run(task) for task in tqdm(tasks, unit="run")}


def run_results(arguments: argparse.Namespace, run_all: Callable = run_one_by_one) -> None:
    """Write the pages. Raises ``InputError`` or ``OSError``.

    run_all
        Called as ``run_all(tasks, arguments)``: returns the result of :func:`run` for each task.
    """
    names, output = arguments.pages or list(EXPERIMENTS), arguments.output
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        raise InputError(f"there is no page {unknown[0]}; known: {', '.join(EXPERIMENTS)}")
    check_writable(output)
    if output.exists() and not output.is_dir():
        raise InputError(f"output {output}: it is not a folder")
    for name in names:
        if arguments.kept:
            made = read_kept(output, name)
        else:
            have = kept_runs(output, name) if arguments.missing else ({}, {})
            made = _measured(name, lambda tasks: run_all(tasks, arguments), *have)
        print(made.write(output))
    _write_index(output)


def _measured(
    name: str,
    run_all: Callable[[list], dict],
    rows: Mapping[Trial, Row],
    chosen: Mapping[Choice, Sequence[Chosen]],
) -> Study:
    """The study with some rows and choices that there are and all others measured."""
    module = EXPERIMENTS[name]
    wanted = module.choices()
    found = run_all([choice for choice in wanted if choice not in chosen])
    chosen = {choice: found.get(choice) or chosen[choice] for choice in wanted}
    tried = module.trials(chosen)
    missing = [trial for trial in tried if trial not in rows]
    tasks = tasks_of(missing)
    done = run_all([name, *tasks])
    measured = rows_of(missing, {task: done[task] for task in tasks})
    rows = {trial: measured[trial] if trial in measured else rows[trial] for trial in tried}
    return _with_rows(name, rows, chosen, done[name])


def _with_rows(
    name: str,
    rows: Mapping[Trial, Row],
    chosen: Mapping[Choice, Sequence[Chosen]],
    extras: dict,
) -> Study:
    """The study with its rows and what they are of."""
    made = EXPERIMENTS[name].study(rows, chosen, extras)
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


def kept_runs(output: Path, name: str) -> tuple[dict[Trial, Row], dict[Choice, list[Chosen]]]:
    """Rows and chosen parameters of a study, of the data in a folder."""
    return _runs_of(json.loads((output / f"{name}.json").read_text()))


def _runs_of(content: dict) -> tuple[dict[Trial, Row], dict[Choice, list[Chosen]]]:
    rows = {
        Trial(of["policy"], Place(**of["place"])): Row.from_json(of["row"])
        for of in content.get("trials", ())
    }
    chosen = {
        Choice(
            of["policy"], tuple(of["allowed"]), Place(**of["place"]), of.get("nearest", False)
        ): [Chosen(**one) for one in of["chosen"]]
        for of in content.get("choices", ())
    }
    return rows, chosen


def read_kept(output: Path, name: str) -> Study:
    """The study made again of the data in a folder; ``InputError`` if they lack a run."""
    path = output / f"{name}.json"
    content = json.loads(path.read_text())
    rows, chosen = _runs_of(content)
    wanted: list[Choice | Trial] = [of for of in EXPERIMENTS[name].choices() if of not in chosen]
    wanted += [trial for trial in EXPERIMENTS[name].trials(chosen) if trial not in rows]
    if wanted:
        policy, place = wanted[0].policy, wanted[0].place
        raise InputError(
            f"{path}: it has no run of {policy}, {place.model}, {place.context} tokens"
        )
    return _with_rows(name, rows, chosen, content["extras"])


def run(task: str | Task) -> Any:
    """Perform one task, or compute the extras of an experiment, given by name."""
    return EXPERIMENTS[task].extras() if isinstance(task, str) else run_task(task)


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
    " run, in ten windows or more of held-out texts: a verdict is what the 95 % interval over the"
    " windows says. Where a figure differs from the paper's, the page states the likely cause."
    " What needs no language model has pages by other commands: [KLLM's cost](kllm_cost.md),"
    " [UniCAIM's cost](unicaim_cost.md) and [circuit](unicaim_circuit.md)."
)
