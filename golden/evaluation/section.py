"""An experiment's page: claims of a paper beside our figures, tables and pictures."""

import dataclasses
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from golden.evaluation.measure import Measurement
from golden.lm.model import Llama
from golden.lm.perplexity import CONTEXT
from golden.lm.tokenizer import Tokenizer
from golden.markdown import table_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Verdict(StrEnum):
    """Whether a paper's figure was reproduced."""

    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT = "not reproduced"

    @classmethod
    def of(cls, *holds: bool) -> "Verdict":
        """All of the conditions, some, or none."""
        if all(holds):
            return cls.REPRODUCED
        return cls.PARTLY if any(holds) else cls.NOT


@dataclasses.dataclass(frozen=True)
class Opened:
    """A model and tokens of a text, opened for the experiments.

    about
        Name and SHA-256 of the model and name of the text, for the pages.
    tokens, all_tokens
        Tokens that experiments run on, and the tokens of the experiment that needs most.
    samples, tuning
        Token sequences to calibrate with, and to tune scales on.
    """

    model: Llama
    tokenizer: Tokenizer
    about: dict
    tokens: Sequence[int]
    all_tokens: Sequence[int]
    samples: Sequence[Sequence[int]]
    tuning: Sequence[Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Run:
    """One policy on the first `tokens` tokens of the text, in windows of `context`.

    The first `prompt` tokens of each window are given, the others are predicted.
    """

    policy: str
    tokens: int
    prompt: int = 1
    context: int = CONTEXT


PAPER, OURS = "paper", "project"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A figure of the paper, ours, the verdict, and the reason for it.

    whose
        PAPER, or OURS of what the paper does not claim: a target or an improvement of this
        project's, whose figure is in `paper`.
    """

    paper: str
    ours: str
    verdict: Verdict
    why: str = ""
    whose: str = PAPER


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text under a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Section:
    """An experiment's page.

    pictures
        File name without its ending, caption, figure.
    """

    title: str
    setting: str
    claims: Sequence[Claim]
    tables: Sequence[Table] = ()
    pictures: Sequence[tuple[str, str, "Figure"]] = ()

    def markdown(self) -> str:
        """The section in Markdown; pictures are files beside the page."""
        parts = [f"# {self.title}", self.setting]
        for whose, name in ((PAPER, "paper"), (OURS, "this project's own")):
            rows = [[c.paper, c.ours, c.verdict, c.why] for c in self.claims if c.whose == whose]
            if rows:
                parts.append(table_text([name, "here", "verdict", "why"], rows))
        parts += [f"![{caption}]({name}.svg)" for name, caption, _ in self.pictures]
        for table in self.tables:
            parts += [f"{table.title}:", table_text(table.columns, table.rows)]
        return "\n\n".join(parts) + "\n"


Results = dict[Run, Measurement]
