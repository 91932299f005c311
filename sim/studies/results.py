"""``python -m sim results``: ``python -m golden results`` in parallel, resuming."""

import functools
import os
from pathlib import Path

from golden.files import file_sha256
from golden.studies import results
from golden.studies.runs import Run
from sim.commands.arguments import add_execution, execution
from sim.core.jobs import executor

SOURCES = ("golden",)

_open = functools.cache(results.open_all)
"""Once in each worker."""


def run(opening: tuple, hashes: tuple, task):
    """One task: see :func:`golden.studies.results.run`.

    opening
        Arguments of :func:`golden.studies.results.open_all`.
    hashes
        Hashes of the contents of the files among them.
    """
    if isinstance(task, Run) or (isinstance(task, str) and task not in results.AT_CONTEXT):
        _open(*opening)
    return results.run(task)


def results_command(arguments) -> int:
    # One thread of linear algebra for each process: the processes already use every core.
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

    def run_all(wanted: list, _, needed: int) -> dict:
        opening = (arguments.model, arguments.text, arguments.tokens, needed)
        hashes = tuple(file_sha256(file) for file in opening if isinstance(file, Path))
        tasks = [executor.Task(str(what), run, (opening, hashes, what)) for what in wanted]
        done = executor.execute(tasks, sources=SOURCES, **execution(arguments))
        return {outcome.task.arguments[-1]: outcome.result() for outcome in done}

    results.run_results(arguments, run_all)
    return 0


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    results.register(commands)
    parser = commands.choices["results"]
    parser.set_defaults(run=results_command)
    add_execution(parser)
