"""`python -m sim synth`: `python -m hw synth` as a long job that resumes."""

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path

from hw.catalogue import find
from hw.parameters import Parameters
from sim.core.jobs import executor
from sim.core.tools import ToolError
from sim.synth import SynthesisError, command, liberty

SOURCES = ("hw",)


def measure(
    name: str, preset: str, parameters: Parameters, library: str | None, sha256: str, options: tuple
) -> list[tuple]:
    """One task: map a design; see :func:`sim.synth.command.measure`.

    library
        Path of a Liberty file whose content has the hash `sha256`; None for an FPGA.
    options
        The command's arguments, as pairs of name and value.
    """
    try:
        cells = None if library is None else liberty.read(Path(library))
        arguments = argparse.Namespace(**dict(options))
        return command.measure(find(name), preset, parameters, cells, arguments)
    except SynthesisError as error:
        raise ToolError(f"{name} {preset}: {error}") from None


def synth_command(arguments) -> int:
    if arguments.netlist and arguments.scheduler:
        raise ToolError("--netlist and --scheduler do not go together: other machines write it")

    def measure_all(jobs: list, library, _) -> Iterator[tuple]:
        path = None if library is None else str(library.path)
        sha256 = "" if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()
        names = ("ecp5", "mode", "clock", "pieces", "netlist")
        options = tuple((name, getattr(arguments, name)) for name in names)
        tasks = [
            executor.Task(
                f"{block.name} {preset}",
                measure,
                (block.name, preset, parameters, path, sha256, options),
            )
            for block, preset, parameters in jobs
        ]
        found = {}
        where = executor.options(arguments)
        where["fresh"] |= arguments.netlist is not None  # a kept result writes no file
        quiet = arguments.json or len(tasks) == 1
        for outcome in executor.execute(tasks, sources=SOURCES, quiet=quiet, **where):
            found[outcome.task] = outcome.result()
        for task in tasks:
            yield from found[task]

    try:
        command.synth(arguments, measure_all)
    except SynthesisError as error:
        raise ToolError(str(error)) from None
    return 0


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command.register(commands)
    parser = commands.choices["synth"]
    executor.add_options(parser)
    parser.set_defaults(run=synth_command)
