"""The shape of hardware's sources: short functions, short files, every signal with its name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    pytest.param(path, id=str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "hw").rglob("*.py"))
]


def unnamed(tree: ast.AST) -> Iterator[int]:
    """Lines that assign several signals at once, which leaves all but one without a name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
            continue
        made = [ast.unparse(call) for call in ast.walk(node.value) if isinstance(call, ast.Call)]
        signals = [text for text in made if text.startswith(("Signal(", "Signal.like("))]
        if any("name=" not in text for text in signals):
            yield node.lineno


@pytest.mark.parametrize("path", FILES)
def test_every_signal_has_the_name_of_its_variable(path):
    assert not list(unnamed(ast.parse(path.read_text())))


def test_unnamed_signals_are_seen():
    for text in ("a, b = Signal(), Signal(2)", "a, b = (Signal() for _ in range(2))"):
        assert list(unnamed(ast.parse(text))) == [1]
    named = 'a, b = (Signal(name=name) for name in "ab")\nc = Signal()\nd, e = c[0], c[1]'
    assert not list(unnamed(ast.parse(named)))


@pytest.mark.parametrize("path", FILES)
def test_files_and_functions_are_short(path):
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 80, node.name
