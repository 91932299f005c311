"""Command-line arguments that several commands share."""

import argparse
import os
import re
from pathlib import Path

from hw.catalogue import Block, find
from hw.emit.arguments import add_set
from hw.parameters import Parameters


def count(text: str) -> int:
    """A whole number from 1, as an argparse type."""
    return _whole(text, 1)


VECTORS = 10_000_000


def vectors(text: str) -> int:
    """A number of transactions, as an argparse type: what no memory can hold is refused."""
    number = count(text)
    if number > VECTORS:
        raise argparse.ArgumentTypeError(f"must be at most {VECTORS}, not {text}")
    return number


def whole(text: str) -> int:
    """A whole number from 0, as an argparse type."""
    return _whole(text, 0)


def pattern(text: str) -> str:
    """A regular expression, as an argparse type."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"must be a regular expression: {error}") from None
    return text


def _whole(text: str, least: int) -> int:
    if not text.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text}")
    if int(text) < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, not {text}")
    return int(text)


def add_configuration(
    command: argparse.ArgumentParser, preset: str = "default", everything: bool = False
) -> None:
    """The arguments that choose a block and its configuration; `everything` if it may be all."""
    or_all = ", or all: every block that has the preset" if everything else ""
    command.add_argument("block", help=f"block name as in `python -m hw list`{or_all}")
    command.add_argument(
        "--preset",
        default=preset,
        help="preset name; first is the smallest, default has the default values"
        " (default: %(default)s)",
    )
    add_set(command)
    command.add_argument(
        "--seed", type=whole, default=1, help="of all random data (default: %(default)s)"
    )
    command.add_argument("--json", action="store_true", help="print JSON on standard output")


def add_verilog(command: argparse.ArgumentParser) -> None:
    """The arguments that put a user's Verilog in place of the generated one."""
    command.add_argument(
        "--verilog",
        type=Path,
        metavar="FILE.v",
        help="simulate this file in place of the generated Verilog; it must have the same ports",
    )
    add_trust(command)


def add_trust(command: argparse.ArgumentParser) -> None:
    """The argument that accepts a user's Verilog whatever it does."""
    command.add_argument(
        "--trust",
        action="store_true",
        help=(
            "read the --verilog file as SystemVerilog and whatever it does ($system, $fopen, DPI, "
            "`include and the like, which simulators run with your rights); without this option it "
            "is read as Verilog-2005 and its text is checked, which is no sandbox"
        ),
    )


def configuration(arguments) -> tuple[Block, Parameters]:
    """The block and parameters the arguments ask for.

    :raises ParameterError: if there is no such block, preset or parameter.
    """
    block = find(arguments.block)
    preset = block.parameters_class.preset(arguments.preset)
    return block, preset.replace_from_text(arguments.set)


def add_execution(command: argparse.ArgumentParser) -> None:
    """The arguments of a command whose tasks run in parallel, for :func:`execution`."""
    command.add_argument(
        "--jobs",
        type=count,
        default=os.cpu_count(),
        metavar="N",
        help="tasks at a time on this machine (default: %(default)s, its processors)",
    )
    command.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="run on the Dask cluster with this scheduler, such as tcp://host:8786",
    )
    command.add_argument(
        "--fresh", action="store_true", help="run every task again, even if its result is kept"
    )


def execution(arguments) -> dict:
    """Keyword arguments for :func:`sim.core.jobs.executor.execute`."""
    return {name: getattr(arguments, name) for name in ("jobs", "scheduler", "fresh")}
