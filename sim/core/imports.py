"""What a module of the generators imports, directly or through others."""

import functools
import re
from pathlib import Path

from hw import HOME
from sim.core.tools import ROOT

# By a pattern, as each process that simulates looks: parsing takes half a second. A line of a
# docstring that looks like an import does no harm.
_HW = re.escape(HOME) + r"hw[\w.]*"
_IMPORT = re.compile(
    rf"^[ \t]*(?:from ({_HW}) import (\([^)]*\)|[^\n]*)|import ({_HW}))", re.MULTILINE
)


def closure(*modules: str) -> list[Path]:
    """Files of modules of `hw` and of all modules of `hw` that they import, in order.

    Imports by name at run time are not found; only the catalogue has such.
    """
    found: set[Path] = set()
    waiting = [file for module in modules for file in _files(module)]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += _imported(file)
    return sorted(found)


@functools.cache
def _imported(file: Path) -> tuple[Path, ...]:
    names: set[str] = set()
    for module, some, plain in _IMPORT.findall(file.read_text()):
        # An imported name may be a module too.
        names.update([module or plain, *(f"{module}.{name}" for name in re.findall(r"\w+", some))])
    return tuple(file for name in sorted(names) for file in _files(name))


def _files(module: str) -> list[Path]:
    """The module's file and those of the packages that it is in; none if it is not of `hw`."""
    parts = module.removeprefix(HOME).split(".")
    if parts[0] != "hw":
        return []
    folders = [ROOT.joinpath(*parts[:number], "__init__.py") for number in range(1, len(parts) + 1)]
    return [file for file in (*folders, ROOT.joinpath(*parts).with_suffix(".py")) if file.exists()]
