"""The command ``results``: every experiment, run and written to a folder of pages."""

import argparse
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from golden.algorithms.kllm.model import calibration_samples
from golden.evaluation.experiments import EXPERIMENTS
from golden.evaluation.experiments.lad import DRIFT_STEPS
from golden.evaluation.measure import Measurement, measure
from golden.evaluation.policies import parse
from golden.evaluation.section import Claim, Opened, Run, Section
from golden.evaluation.workers import run_all
from golden.files import check_writable, json_text, replacing
from golden.lm import InputError
from golden.lm.commands import add_model, at_least, open_model
from golden.lm.text import first_tokens, read_text

_opened: Opened | None = None
"""Opened once in each worker process."""


def register(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "results",
        help="repeat each paper's main result and write pages with plots",
        description="Repeat each paper's main result on the language model and write, for each"
        " paper, a page that puts its figure beside ours, a picture and the data as JSON, with an"
        " index. Takes some twenty minutes on two cores.",
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
        "--jobs",
        type=at_least(1),
        default=os.cpu_count(),
        metavar="N",
        help="runs at a time, 1.5 GB of memory each (default: %(default)s, one for each core)",
    )
    command.set_defaults(run=run_results)


def run_results(arguments: argparse.Namespace, run_all: Callable | None = None) -> None:
    """Write the pages. Raises ``InputError`` or ``OSError``.

    run_all
        ``run_all(tasks, arguments, needed)`` in place of this module's processes: the outcome of
        :func:`run` for each task, after :func:`open_all` with `needed` tokens.
    """
    names = arguments.papers or list(EXPERIMENTS)
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        raise InputError(f"there is no experiment {unknown[0]}; known: {', '.join(EXPERIMENTS)}")
    tokens, output = arguments.tokens, arguments.output
    if tokens < LEAST_TOKENS:
        raise InputError(f"--tokens: the experiments need {LEAST_TOKENS} tokens, not {tokens}")
    check_writable(output)
    output.mkdir(parents=True, exist_ok=True)
    wanted = dict.fromkeys(run for name in names for run in EXPERIMENTS[name].runs(tokens))
    needed = max(DRIFT_STEPS, *(run.tokens for run in wanted))
    open_all(arguments.gguf, arguments.text, tokens, needed)
    context = _opened.model.config.context
    if tokens > context:
        raise InputError(f"--tokens: the model sees {context} tokens, not {tokens}")
    done = (run_all or _run_all)([*names, *wanted], arguments, needed)
    for name in names:
        results = {run: done[run] for run in EXPERIMENTS[name].runs(tokens)}
        section = EXPERIMENTS[name].section(tokens, results, done[name])
        _write(output, name, section, results, done[name], _opened.about)
    _write_index(output)


LEAST_TOKENS = 600
"""A prompt of 512 tokens and something to predict."""


def open_all(gguf: Path | None, text: Path | None, tokens: int, needed: int) -> None:
    """Open what this process needs for :func:`run`."""
    global _opened
    words, source = read_text(text)
    model, tokenizer, about = open_model(gguf)
    numbers = first_tokens(tokenizer, words, needed, source)
    samples = calibration_samples(tokenizer)
    about |= {"text": source}
    _opened = Opened(model, tokenizer, about, numbers[:tokens], numbers, samples)


def run(task: Run | str) -> Measurement | dict:
    """Do one run, or compute an experiment's extras."""
    if isinstance(task, str):
        return EXPERIMENTS[task].extras(_opened)
    policy = parse(task.policy, prompt=task.prompt)
    return measure(
        policy,
        _opened.model,
        _opened.all_tokens[: task.tokens],
        prompt=task.prompt,
        context=task.context,
        samples=_opened.samples,
    )


def _run_all(tasks: list[Run | str], arguments: argparse.Namespace, needed: int) -> dict:
    """Every task's outcome, one after another or in processes of their own."""
    bar = tqdm(total=len(tasks), unit="run")
    if arguments.jobs == 1:
        done = {}
        for task in tasks:
            done[task] = run(task)
            bar.update()
        return done
    # One thread of the linear algebra for each process: they share the cores already.
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    opening = (arguments.gguf, arguments.text, arguments.tokens, needed)
    return run_all(run, tasks, arguments.jobs, open_all, opening, bar.update)


def _write(output: Path, name: str, section: Section, results, extras: dict, about: dict) -> None:
    """Page, pictures and data of one experiment."""
    import matplotlib

    # The same data give the same file.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        for picture, _, figure in section.pictures:
            with replacing(output / f"{picture}.svg") as file:
                figure.savefig(file, format="svg", metadata={"Date": None})
    _write_text(output / f"{name}.md", section.markdown())
    content = about | {
        "title": section.title,
        "claims": [dataclasses.asdict(claim) for claim in section.claims],
        "runs": [dataclasses.asdict(run) | m.as_json() for run, m in results.items()],
        "extras": extras,
    }
    _write_text(output / f"{name}.json", json_text(content, indent=1) + "\n")
    print(f"wrote {output / name}.md, .json and {len(section.pictures)} pictures")


def _write_index(output: Path) -> None:
    """The index of all experiments whose data lie in the folder."""
    parts = ["# The papers' main results, repeated", INTRODUCTION]
    for name in EXPERIMENTS:
        path = output / f"{name}.json"
        if path.exists():
            content = json.loads(path.read_text())
            claims = [Claim(**claim) for claim in content["claims"]]
            parts.append(f"## [{content['title']}]({name}.md)")
            parts.append(f"{content['model']}, {content['text']}.")
            parts += ["\n".join(f"- **{c.verdict}**: {c.paper}. Here: {c.ours}." for c in claims)]
    _write_text(output / "README.md", "\n\n".join(parts) + "\n")
    print(f"wrote {output / 'README.md'}")


INTRODUCTION = (
    "`make eval` writes this folder. The papers measured models of 1 to 70 billion parameters on"
    " contexts of 1024 to 4096 tokens; here it is one of 135 million parameters on about a thousand"
    " tokens, which any machine can repeat. So a figure need not come out the same, and where it"
    " does not the page says what we think is the cause."
)


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())
