"""What the commands of the analytical models share: tables on a terminal, and a page of files."""

import argparse
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table as Shown

from golden.evaluation.section import Table
from golden.files import check_writable, json_text, replacing


def add_output(command: argparse.ArgumentParser, name: str) -> None:
    """Options that choose what is printed and written."""
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help=f"write {name}.md, {name}.json and three pictures there",
    )


def write_page(output: Path, name: str, figures: dict, markdown: str, content: dict) -> None:
    """Write ``name.md``, ``name.json`` and the figures, name to matplotlib's, into a folder."""
    import matplotlib

    check_writable(output)
    output.mkdir(parents=True, exist_ok=True)
    # The same data give the same file.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        for figure_name, figure in figures.items():
            with replacing(output / f"{figure_name}.svg") as file:
                figure.savefig(file, format="svg", metadata={"Date": None})
    for ending, text in (("md", markdown), ("json", json_text(content, indent=1) + "\n")):
        with replacing(output / f"{name}.{ending}") as file:
            file.write(text.encode())


def print_table(table: Table, right: bool = True) -> None:
    """A table; `right` aligns all columns but the first to the right."""
    # A file or a pipe has no width.
    console = Console(width=None if sys.stdout.isatty() else 110)
    made = Shown(title=table.title, box=box.SIMPLE_HEAD, show_lines=False)
    for number, column in enumerate(table.columns):
        made.add_column(column, justify="right" if right and number else "left", overflow="fold")
    for row in table.rows:
        made.add_row(*row)
    console.print(made)
