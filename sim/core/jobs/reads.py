"""Which of the project's files a program reads, and whether they are still the same.

A Python program notes each file that it opens, modules among them, and so does every Python program
that it starts, such as a simulator with cocotb in it. Compilers and `make` note nothing, so that
each program counts as a reader of all files for them as well.
"""

import functools
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from sim.core.tools import ROOT

HOOK = Path(__file__).parent / "hook"

PACKAGES = ("hw", "golden", "sim")
_FOLDERS = (*PACKAGES, "tests", "docs", "examples")
_COMPILED = (".cpp", ".c", ".h", ".S", ".ld", ".lib", ".v", ".mk", "Makefile")
RECORD = "docs/results/campaign.json"
"""A file that is of these reads, and no part of them."""
_NO_PART = (RECORD, "tests/dear.txt", "tests/support/costs.py", "pyproject.toml")
# Settings of pytest, and what tests cost, decide nothing; versions of packages count as tools.
EVERYTHING = "*"
"""A program was started that notes nothing: whatever there is in packages counts as read."""


def environment(folder: Path) -> dict[str, str]:
    """The environment of a program whose reads are noted in a folder."""
    others = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HOOK), *([others] if others else [])]),
        "SENBAZURU_READS": str(folder),
        "SENBAZURU_READS_ROOT": f"{ROOT}/",
    }


def noted(folder: Path) -> frozenset[str]:
    """Names of the files that were read, and EVERYTHING, as :func:`digest` takes them."""
    found: set[str] = set()
    for note in folder.iterdir():
        for line in note.read_text().splitlines():
            path = Path(line)
            if line == EVERYTHING:
                found.add(EVERYTHING)
            elif path.is_relative_to(ROOT):
                found.update(_names(path.relative_to(ROOT)))
    return frozenset(found)


def _names(path: Path) -> Iterable[str]:
    if path.parent.name == "__pycache__":  # a module's compiled form
        path = path.parent.parent / f"{path.name.partition('.')[0]}.py"
    if not (ROOT / path).is_file() or str(path) in _NO_PART:
        return []
    return [str(path)] if len(path.parts) == 1 or path.parts[0] in _FOLDERS else []


@functools.cache
def content() -> Mapping[str, str]:
    """Hash of each file that may be read, by its path; computed once in a process."""
    hashes = {}
    for path in (*(ROOT / name for name in _FOLDERS), ROOT):
        files = path.iterdir() if path == ROOT else path.rglob("*")
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                name = str(file.relative_to(ROOT))
                hashes[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return hashes


def digest(reads: Iterable[str], hashes: Mapping[str, str], tools: str) -> str:
    """Hash of the files that were read, of all files for compilers and `make`, and of the tools."""
    reads = set(reads)
    wanted = sorted(
        name
        for name in hashes
        if name in reads
        or (name.endswith(_COMPILED) and name.startswith((*PACKAGES, "examples")))
        or (EVERYTHING in reads and name.startswith(tuple(f"{p}/" for p in PACKAGES)))
    )
    listed = [(name, hashes[name]) for name in wanted]
    gone = sorted(name for name in reads if name != EVERYTHING and name not in hashes)
    return hashlib.sha256(repr((tools, listed, gone)).encode()).hexdigest()[:16]
