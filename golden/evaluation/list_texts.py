"""The command ``texts`` of ``python -m golden``."""

import argparse
import sys

from rich import box
from rich.console import Console
from rich.table import Table

from golden.files import json_text
from golden.lm.texts import TEXTS


def register(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "texts",
        help="the texts that a --text may name",
        description="List the texts that a --text may name: those on which choices are made, and"
        " held-out ones, on which verdicts are reached. A text that does not come with the package"
        " is fetched into the cache when it is first used.",
    )
    command.add_argument("--fetch", action="store_true", help="fetch and check all of them first")
    command.add_argument("--json", action="store_true", help="print one JSON list, with hashes")
    command.set_defaults(run=run_texts)


def run_texts(arguments: argparse.Namespace) -> None:
    """Print a table or JSON. Raises ``InputError`` as :meth:`golden.lm.texts.Text.load`."""
    if arguments.fetch:
        for text in TEXTS.values():
            text.load()
    if arguments.json:
        names = ("name", "role", "kind", "about", "licence", "size", "sha256")
        print(json_text([{name: getattr(text, name) for name in names} for text in TEXTS.values()]))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("name", "role", "kind", "kB", "licence", "SHA-256", "about"):
        table.add_column(name, justify="right" if name == "kB" else "left", no_wrap=name != "about")
    for text in TEXTS.values():
        cells = (text.kind, f"{text.size / 1000:.0f}", text.licence, text.sha256[:12], text.about)
        table.add_row(text.name, text.role, *cells)
    # A file or a pipe has no width.
    Console(width=None if sys.stdout.isatty() else 160).print(table)
