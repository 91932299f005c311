"""The page's five cards: a paper's tile, and what it says beside what was measured here."""

import re

from sim.commands.page.diagram import drawn
from sim.commands.page.links import Links
from sim.commands.page.tiles import PAPERS, Paper
from sim.core.tools import ROOT

SHOWN = 3
"""Claims of a card at most; the rest is a link away."""


def cards(links: Links) -> list[dict]:
    """One for each paper."""
    return [_card(paper, links) for paper in PAPERS]


def _card(paper: Paper, links: Links) -> dict:
    found = [
        {**claim, "command": command, "link": links.to(f"docs/results/{page}.md")}
        for page, command in paper.commands.items()
        for claim in claims(page)
    ]
    return {
        "name": paper.name,
        "title": paper.title,
        "figure": paper.figure,
        "status": paper.status,
        "says": paper.diagram.says,
        "diagram": drawn(paper.diagram, links.to),
        "claims": found[:SHOWN],
        "more": len(found[SHOWN:]),
        "page": links.to(f"docs/{paper.name}.md"),
        "results": links.to(f"docs/results/{paper.name}.md"),
    }


def claims(page: str) -> list[dict[str, str]]:
    """The rows ``paper``, ``here``, ``verdict``, ``why`` of a page of docs/results."""
    lines = (ROOT / "docs" / "results" / f"{page}.md").read_text().splitlines()
    first = lines.index("| paper | here | verdict | why |")
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        rows.append(dict(zip(("paper", "here", "verdict", "why"), cells, strict=True)))
    return rows
