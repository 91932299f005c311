"""Command-line arguments that several commands share."""

import argparse
import re

from hw.catalogue import Block, find
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


seed = whole


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
        help="its name; first: the smallest, default: of the default values (default: %(default)s)",
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change one parameter of the preset; may be repeated",
    )
    command.add_argument("--seed", type=whole, default=1, help="of everything random (%(default)s)")
    command.add_argument("--json", action="store_true", help="print JSON on standard output")


def configuration(arguments) -> tuple[Block, Parameters]:
    """The block and parameters the arguments ask for.

    :raises ParameterError: if there is no such block, preset or parameter.
    """
    block = find(arguments.block)
    preset = block.parameters_class.preset(arguments.preset)
    return block, preset.replace_from_text(arguments.set)
