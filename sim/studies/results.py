"""``python -m sim results``: ``python -m golden results`` in parallel, resuming."""

import os

from golden.studies import results
from sim.commands.arguments import add_execution, execution
from sim.core.jobs import executor

SOURCES = ("golden",)


def results_command(arguments) -> int:
    # One thread of linear algebra for each process: the processes already use every core.
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

    def run_all(wanted: list, _) -> dict:
        tasks = [executor.Task(str(what), results.run, (what,)) for what in wanted]
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
