"""The words of this project: ``python -m tests.support.words`` names phrases to write otherwise.

The field's terms are on the right. CHANGELOG.md keeps old names, and this file lists them.
"""

import re
import subprocess
import sys
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
PATTERN = re.compile("|".join(f"(?P<w{n}>\\b(?:{word}))" for n, word in enumerate(WORDS)), re.I)


def findings(path: Path, name: str) -> list[str]:
    """``file:line: "phrase": write ...`` for each phrase to write otherwise in a text file."""
    found = []
    for number, line in enumerate(path.read_text().split("\n"), 1):
        for match in PATTERN.finditer(line):
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


def main() -> int:
    found = [finding for name in texts() for finding in findings(ROOT / name, name)]
    print("\n".join([*found, f"{len(found)} phrases to write otherwise"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
