"""The wheel: everything is below ``senbazuru``, so that no general name is installed.

A checkout has the packages ``hw``, ``golden`` and ``sim`` at the top. In the wheel they are
``senbazuru.hw`` and so on: imports are written anew while it is built, and so are the commands that
messages name. Everything else is in pyproject.toml.
"""

import ast
import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

PACKAGES = ("hw", "golden", "sim")
COMMAND = re.compile(rf"(?:\.venv/bin/)?python -m ({'|'.join(PACKAGES)})\b")

EXAMPLE = re.compile(rf"(>>> from )(?=(?:{'|'.join(PACKAGES)})[ .])")


class BuildPy(build_py):
    """Copies the packages, then changes the copies."""

    def run(self):
        if self.editable_mode:
            raise SystemExit("error: an editable install cannot work: use make setup in a checkout")
        super().run()
        for package in PACKAGES:
            for path in Path(self.build_lib, "senbazuru", package).rglob("*.py"):
                text = path.read_text(encoding="utf-8")
                path.write_text(namespaced(text, str(path)), encoding="utf-8")


def namespaced(text: str, name: str = "<text>") -> str:
    """Python text that imports the packages from ``senbazuru`` and names its command."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text, name)):
        if isinstance(node, ast.ImportFrom) and not node.level and of_packages(node.module):
            change(lines, node, rf"\bfrom (?={node.module}\b)", "from senbazuru.")
        elif isinstance(node, ast.Import):
            for alias in filter(lambda alias: of_packages(alias.name), node.names):
                if alias.asname is None:
                    raise SyntaxError(f"{name}:{node.lineno}: import {alias.name} needs a name")
                change(lines, node, rf"\b(?={alias.name} as\b)", "senbazuru.")
    text = EXAMPLE.sub(r"\1senbazuru.", "".join(lines))
    return COMMAND.sub(r"senbazuru \1", text)


def of_packages(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in PACKAGES


def change(lines: list[str], node: ast.stmt, pattern: str, new: str) -> None:
    """Replace a pattern once in the first line of a statement."""
    at = node.lineno - 1
    lines[at], count = re.subn(pattern, new, lines[at], count=1)
    assert count == 1, f"{pattern} in {lines[at]}"


if __name__ == "__main__":
    found = find_packages(include=[pattern for name in PACKAGES for pattern in (name, f"{name}.*")])
    packages = ["senbazuru", *(f"senbazuru.{name}" for name in found)]
    setup(packages=packages, cmdclass={"build_py": BuildPy})
