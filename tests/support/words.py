"""The words of this project: ``python -m tests.support.words`` names phrases to write otherwise.

The field's terms are on the right. CHANGELOG.md keeps old names, and this file lists them. Some
phrases are right once and wrong as a habit: :data:`RATES` limits them in docstrings, comments and
Markdown of hw, golden, sim and the documentation.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXEMPT = ("CHANGELOG.md", "tests/support/words.py", "golden/traces/")
WORDS = {
    r"ranks? of registers|register ranks?": "pipeline stage",
    r"(?:behind|after|before) the (?:binary )?point": "fraction bits, integer bits",
    r"places? after the point": "fraction bits",
    r"g[ia]ves? out|given out|giving out": "output, issue",
    r"asked for|asks for|asking for": "request, need",
    r"so many": "the number, n",
    r"twins?": "bit-exact model",
    r"for all time|for ever\b": "unbounded (k-induction)",
    r"(?:is|are|was|were) (?-i:none)\b(?! of)": "the condition itself: NaN, invalid, empty",
    r"one that is none|that is no number": "NaN",
    r"no number": "NaN",
    r"what came out|what comes out": "results, outputs",
    r"mutants? (?:that (?:are|is) )?left": "surviving mutants",
    r"seeded faults?": "injected fault",
    r"\bplay(?:s|ed|ing)?\b(?! a (?:part|role))": "run, output",
    r"tells? of": "show, make observable",
    r"counted round twice": "pointers with a wrap bit",
    r"spoil(?:s|t|ed)?": "invalidate",
    r"\bbench(?:es)?\b(?= (?:of|that|plays|passes|notices|states|fails))": "testbench",
}
RATES = {
    r"\b[Tt](?:hat|hose) of\b": (10, 'write "the X of Y" out'),
    r"(?:^|[.:;(]\s+)Of (?:an?|the|its|each|every|all|this|one)\b": (2, "begin with a noun"),
    r"\b(?:stands?|lies?|stays?)\b": (14, "is, remains, keeps, waits"),
    r"\bof (?:its|their) own\b": (2, "its, a separate, per X"),
}
"""Phrase, most occurrences per 100,000 words, what to write.

A limit is twice the rate in the sources of amaranth, coreblocks, maia-hdl, tiliqua and ibex.
"""
PROSE = ("hw/", "golden/", "sim/", "docs/", "README.md", "CONTRIBUTING.md")
WORD = re.compile(r"[A-Za-z][A-Za-z'\-]*")
PATTERN = re.compile("|".join(f"(?P<w{n}>\\b(?:{word}))" for n, word in enumerate(WORDS)), re.I)


def findings(path: Path, name: str) -> list[str]:
    """``file:line: "phrase": write ...`` for each phrase to write otherwise in a text file."""
    found = []
    for number, line in enumerate(path.read_text().split("\n"), 1):
        for match in PATTERN.finditer(line):
            assert match.lastgroup is not None, "each word is a group"
            instead = list(WORDS.values())[int(match.lastgroup[1:])]
            found.append(f'{name}:{number}: "{match[0]}": write {instead}')
    return found


def texts() -> list[str]:
    """Every text that people read: Python, C++, Markdown and make files under version control."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.cpp", "*.h", "*.v", "Makefile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split() if not name.startswith(EXEMPT)]


def prose(text: str, python: bool) -> Iterator[tuple[int, str]]:
    """Number of the first line, and text: docstrings, comments, ports' meanings; or a page."""
    if not python:
        yield 1, text
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(ast.Constant(str(string))):
                yield node.lineno, "\n".join(map(str.strip, string.split("\n")))
            case ast.FunctionDef(name="ports"):
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.lineno, part.value
    # Lines of a comment are one text, as a sentence goes on in the next line.
    comment: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        number = token.start[0]
        if comment and number != last + 1:
            yield first, "\n".join(comment)
            comment = []
        if not comment:
            first = number
        comment.append(token.string.lstrip("# "))
        last = number
    if comment:
        yield first, "\n".join(comment)


def habits(sources: dict[str, str]) -> list[str]:
    """Every place of each phrase of :data:`RATES` that is above its limit in texts by file name."""
    words = 0
    places: dict[str, list[str]] = {phrase: [] for phrase in RATES}
    for name, source in sources.items():
        for first, text in prose(source, name.endswith(".py")):
            words += len(WORD.findall(text))
            for phrase in RATES:
                for match in re.finditer(phrase, text, re.M):
                    # The line where its last word is: a match may begin on the line before.
                    line = first + text.count("\n", 0, match.end())
                    found = " ".join(match[0].strip(".:;( \n").split())
                    places[phrase].append(f'{name}:{line}: "{found}"')
    listed = []
    for phrase, (limit, instead) in RATES.items():
        most = max(1, round(limit * words / 100_000))
        if len(places[phrase]) > most:
            listed += [f"{place}: {instead}" for place in places[phrase]]
            listed.append(f"{len(places[phrase])} of at most {most} in {words} words: {instead}")
    return listed


def main() -> int:
    names = texts()
    found = [finding for name in names for finding in findings(ROOT / name, name)]
    counted = [name for name in names if name.startswith(PROSE) and name.endswith((".py", ".md"))]
    found += habits({name: (ROOT / name).read_text() for name in counted})
    print("\n".join([*found, f"{len(found)} phrases to write otherwise"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
