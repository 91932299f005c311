"""Options of the commands of analytical models, whose studies are computed at once."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from golden import InputError
from golden.files import json_text
from golden.lm.commands import at_least
from golden.studies.study import Study, Table


def add_output(command: argparse.ArgumentParser, name: str) -> None:
    """Options that choose what is printed and written."""
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help=f"write {name}.md, {name}.json and pictures there",
    )


Numbers = Mapping[str, tuple[int, int, str]]
"""Options of whole numbers: least value, default and meaning."""


def add_numbers(command: argparse.ArgumentParser, numbers: Numbers) -> None:
    """An option for each of `numbers`."""
    for name, (least, default, text) in numbers.items():
        command.add_argument(
            f"--{name}",
            type=at_least(least),
            default=default,
            metavar="N",
            help=f"{text} (default: %(default)s)",
        )


def check_numbers(arguments: argparse.Namespace, numbers: Numbers, most: int) -> None:
    """Raise ``InputError`` if one of `numbers` is above `most`."""
    for name in numbers:
        if getattr(arguments, name.replace("-", "_")) > most:
            raise InputError(f"--{name}: it must be at most {most}")


def show(study: Study, arguments: argparse.Namespace, heading: str) -> None:
    """Write the files that `arguments` name; print JSON, or two tables and the verdicts.

    Takes the options of :func:`add_output`. Raises ``OSError``.
    """
    written = None if arguments.output is None else study.write(arguments.output)
    if arguments.json:
        print(json_text(study.content()))
        return
    for table in study.tables[:2]:
        table.show()
    found = study.verdicts(heading)
    short = slice(None, -1)  # a terminal has no room for the reasons
    Table(found.title, found.columns[short], [row[short] for row in found.rows]).show(right=False)
    if written is not None:
        print(written)
