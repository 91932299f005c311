"""A study: claims of a paper beside this project's figures, with tables and pictures.

A study is written as a page of Markdown, pictures beside it, and JSON of what the page says.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golden.evaluation.estimate import Decision, Estimate
from golden.files import check_writable, json_text, replacing
from golden.markdown import table_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLOSE = 0.1
"""Relative difference by which a figure may miss the paper's."""


class Verdict(StrEnum):
    """What a paper's figure is worth, from the best to the least that can be said.

    Measurements give REPRODUCED, PARTLY, NOT, and OPEN where their interval decides nothing.
    Arithmetic gives the others too: what follows from
    counts alone, from the paper's other figures, or from constants and assumptions.
    """

    REPRODUCED = "reproduced"
    COUNTS = "reproduced by counts alone"
    HOLDS = "holds"
    CONSTANTS = "needs the paper's constants"
    ASSUMED = "holds under an assumption"
    PARTLY = "partly"
    OPEN = "cannot tell"
    NOT = "not reproduced"
    CONTRADICTS = "contradicts the paper's other figures"
    CIRCULAR = "not reproducible from the text"
    UNKNOWN = "cannot be checked"

    @classmethod
    def of(cls, *holds: bool) -> "Verdict":
        """All of the conditions, some, or none."""
        if all(holds):
            return cls.REPRODUCED
        return cls.PARTLY if any(holds) else cls.NOT

    @classmethod
    def measured(cls, *decisions: Decision) -> "Verdict":
        """The same of conditions that a measurement's interval may leave open.

        One that does not hold refutes all; without such, open ones alone decide nothing.
        """
        if Decision.WITHIN in decisions or Decision.ABOVE in decisions:
            return cls.of(*(decision is Decision.WITHIN for decision in decisions))
        return cls.OPEN


GROUPS: dict[str, tuple[Verdict, ...]] = {
    "hold": (Verdict.REPRODUCED, Verdict.COUNTS, Verdict.HOLDS),
    "in part, or if": (Verdict.PARTLY, Verdict.CONSTANTS, Verdict.ASSUMED),
    "cannot be told": (Verdict.OPEN, Verdict.CIRCULAR, Verdict.UNKNOWN),
    "do not hold": (Verdict.NOT, Verdict.CONTRADICTS),
}
"""Verdicts for counting claims of all pages by one rule; each is in one group."""


def close(ours: float, theirs: float) -> bool:
    """Whether two figures differ by `CLOSE` at most."""
    return abs(ours / theirs - 1) <= CLOSE


def exceeds(ours: Estimate, bound: float) -> Decision:
    """Whether a figure is above a bound.

    By our 95 % interval: ``WITHIN``, what the paper says, if all of it is, and ``ABOVE`` if none.
    """
    negative = dataclasses.replace(ours, mean=-ours.mean)
    return negative.against(-bound)


def reaches(ours: Estimate, theirs: float) -> Decision:
    """Whether a figure, of which more is better, is the paper's or less than `CLOSE` below it."""
    return exceeds(ours, (1 - CLOSE) * theirs)


PAPER, OURS = "paper", "project"
TITLES = {PAPER: "paper", OURS: "this project's own"}


@dataclasses.dataclass(frozen=True)
class Claim:
    """A figure of the paper, ours, the verdict, and the reason for it.

    whose
        PAPER, or OURS of what the paper does not claim: a target or an improvement of this
        project's, whose figure is in `paper`.
    where
        Figure or table of the paper, in a study of many; else empty.
    """

    paper: str
    ours: str
    verdict: Verdict
    why: str = ""
    whose: str = PAPER
    where: str = ""

    def as_json(self) -> dict[str, str]:
        """All fields, but for an empty `where`."""
        where = {"where": self.where} if self.where else {}
        return where | {name: x for name, x in dataclasses.asdict(self).items() if name != "where"}


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text under a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of(
        cls, title: str, items: Iterable, *columns: tuple[str, str | Callable[[Any], str]]
    ) -> "Table":
        """A row for each item.

        columns
            Names, each with a function that gives an item's cell, or a format of the item, such as
            ``"{.cycles:.1f}"`` of its attribute.
        """
        names, cells = zip(*columns, strict=True)
        give = [cell.format if isinstance(cell, str) else cell for cell in cells]
        return cls(title, names, [[cell(item) for cell in give] for item in items])

    def markdown(self) -> str:
        """The table in Markdown, without its title."""
        return table_text(self.columns, self.rows)

    def show(self, *, right: bool = True) -> None:
        """Print the table; `right` aligns all columns but the first to the right."""
        from rich import box  # here, as studies that print no table need none
        from rich.console import Console
        from rich.table import Table as Shown

        # A file or a pipe has no width.
        console = Console(width=None if sys.stdout.isatty() else 110)
        made = Shown(title=self.title, box=box.SIMPLE_HEAD, show_lines=False)
        for number, column in enumerate(self.columns):
            made.add_column(
                column, justify="right" if right and number else "left", overflow="fold"
            )
        for row in self.rows:
            made.add_row(*row)
        console.print(made)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture beside the page.

    name
        Name of the file without its ending.
    """

    name: str
    caption: str
    draw: Callable[[], "Figure"]


def save(figure: "Figure", path: Path, salt: str) -> None:
    """Write a figure in the format of the name's ending; the same data give the same file.

    salt
        Seeds the names of the elements of an SVG file.
    """
    import matplotlib  # here, as its import takes a second

    svg = path.suffix == ".svg"
    with matplotlib.rc_context({"svg.hashsalt": salt}), replacing(path) as file:
        form = path.suffix.removeprefix(".") or None
        figure.savefig(file, format=form, metadata={"Date": None} if svg else None)


@dataclasses.dataclass(frozen=True)
class Study:
    """Claims with verdicts, and the tables and pictures that they follow from.

    name
        Name of the files without their endings.
    setting
        What was measured or modelled, in words: the page's first paragraphs.
    about, data
        What the JSON has before the claims and after them: what the study is of, and its figures.
    """

    name: str
    title: str
    setting: str
    claims: Sequence[Claim]
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def verdicts(self, title: str, whose: str = PAPER) -> Table:
        """The claims of the paper or of this project, a row for each."""
        claims = [claim for claim in self.claims if claim.whose == whose]
        columns: list[tuple[str, str]] = [
            *([("", "{.where}")] if any(claim.where for claim in claims) else []),
            (TITLES[whose], "{.paper}"),
            ("here", "{.ours}"),
            ("verdict", "{.verdict}"),
            ("why", "{.why}"),
        ]
        return Table.of(title, claims, *columns)

    def markdown(self) -> str:
        """The page; pictures are files beside it."""
        parts = [f"# {self.title}", self.setting]
        parts += [table.markdown() for w in TITLES if (table := self.verdicts("", w)).rows]
        parts += [f"![{picture.caption}]({picture.name}.svg)" for picture in self.pictures]
        for table in self.tables:
            parts += [f"{table.title}:", table.markdown()]
        return "\n\n".join(parts) + "\n"

    def content(self) -> dict:
        """What the page says and the pictures show, for JSON."""
        said = {"title": self.title, "claims": [claim.as_json() for claim in self.claims]}
        return {**self.about, **said, **self.data}

    def json(self) -> str:
        """Text of the file of JSON."""
        return json_text(self.content(), indent=1) + "\n"

    def write(self, folder: Path) -> str:
        """Write the page, the pictures and the JSON into a folder, and say so in a sentence.

        Raises ``OSError``.
        """
        prepare(folder)
        for picture in self.pictures:
            save(picture.draw(), folder / f"{picture.name}.svg", self.name)
        for ending, text in (("md", self.markdown()), ("json", self.json())):
            with replacing(folder / f"{self.name}.{ending}") as file:
                file.write(text.encode())
        drawn = len(self.pictures)
        return f"wrote {folder / self.name}.md, .json and {drawn} picture{'s' * (drawn != 1)}"


def tally(claims: Sequence[Claim]) -> str:
    """How many claims have each verdict, in a sentence."""
    counts = Counter(claim.verdict for claim in claims)
    listed = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in Verdict if counts[verdict])
    return f"Verdicts of {len(claims)}: {listed}."


def prepare(folder: Path) -> None:
    """Make a folder for a study's files, before long work. Raises ``OSError``."""
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / "page.md")
