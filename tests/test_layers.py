"""Who may import whom: hardware, golden models and simulation stay apart."""

import ast
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {"hw": {"amaranth", "hw"}, "golden": {"ml_dtypes", "numpy", "golden"}}
# The language model reads weight files and shows progress while it does.
LANGUAGE_MODEL = {"gguf", "jinja2", "tokenizers", "tqdm"}
# Evaluation and studies print tables, draw and show progress.
EVALUATION = {"matplotlib", "rich", "tqdm"}


def imports(path: Path) -> set[str]:
    """Every module a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(package: str) -> list:
    paths = sorted((ROOT / package).rglob("*.py"))
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]


@pytest.mark.parametrize("path", files("hw"))
def test_hw_has_no_postponed_annotations(path):
    """They silently turn every data.Struct into an empty layout."""
    assert "__future__.annotations" not in imports(path)


@pytest.mark.parametrize("path", [*files("hw"), *files("golden")])
def test_hardware_and_golden_models_import_only_their_own(path):
    package, *below = path.relative_to(ROOT).parts
    allowed = ALLOWED[package] | sys.stdlib_module_names
    if package == "golden" and below[0] == "lm":
        allowed = allowed | LANGUAGE_MODEL
    if package == "golden" and below[0] in ("evaluation", "studies"):
        allowed = allowed | EVALUATION
    if package == "hw" and below == ["__main__.py"]:
        allowed = allowed | {"golden", "sim"}  # its signals, and `python -m hw synth`
    if package == "hw" and below[0] == "boards":
        allowed = allowed | {"amaranth_boards"}
    if package == "hw" and below == ["emit", "progress.py"]:
        allowed = allowed | {"tqdm"}
    assert {name.split(".")[0] for name in imports(path)} <= allowed


def lint(folder: Path) -> subprocess.CompletedProcess:
    command = "from importlinter.cli import lint_imports_command as c; c()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"], cwd=folder, capture_output=True, text=True
    )


def test_import_linter_passes():
    run = lint(ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert f"Contracts: {len(contracts['contracts'])} kept, 0 broken" in run.stdout


def test_import_linter_would_notice(tmp_path):
    """Contracts that cannot be broken would guard nothing."""
    for package in ("hw", "golden", "sim"):
        shutil.copytree(
            ROOT / package,
            tmp_path / package,
            ignore=shutil.ignore_patterns("*.npz", "__pycache__"),
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with open(tmp_path / "hw" / "stream" / "queue.py", "a") as queue:
        queue.write("\n\ndef late():\n    import golden.trace  # noqa\n")
    additions = {
        "golden/trace.py": "import sim.core.payload",
        "hw/veda/row_map.py": "import hw.kllm.pe_lane",
        "golden/kllm/pe_lane.py": "import golden.lm.model",
        "golden/lm/text.py": "import golden.evaluation.plots",
        "sim/core/stalls.py": "import sim.drivers.run",
    }
    for name, line in additions.items():
        with open(tmp_path / name, "a") as file:
            file.write(f"\n{line}\n")
    run = lint(tmp_path)
    assert run.returncode == 1
    assert f"0 kept, {len(additions) + 1} broken" in run.stdout
    assert "hw.stream.queue" in run.stdout
    for name, line in additions.items():
        module = name.removesuffix(".py").replace("/", ".")
        assert f"{module} -> {line.removeprefix('import ')}" in run.stdout
