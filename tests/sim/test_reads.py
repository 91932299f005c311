"""What a program reads: modules, data, programs that it starts, and what counts as the same."""

import subprocess
import sys

import pytest

from sim.core.jobs import reads
from sim.core.jobs.reads import digest

PROGRAM = """
import os, subprocess, sys
import golden.first, golden.lm.second
open("docs/page.md").close()
subprocess.run([sys.executable, "-c", "import hw.kllm.block"], check=True)
os.listdir("sim")
"""
FILES = (
    *("golden/__init__.py", "golden/first.py", "golden/other.py", "golden/lm/second.py"),
    *("golden/lm/third.py", "hw/kllm/block.py", "sim/drivers/run.py", "sim/drivers/a.cpp"),
    *("tests/kllm/test_a.py", "tests/kllm/conftest.py", "docs/page.md", "README.md", "Makefile"),
    *("examples/soc/top.v", "examples/soc/Makefile", "examples/soc/run.py"),
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setattr(reads, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def noted(project, program):
    (project / "notes").mkdir(exist_ok=True)
    environment = reads.environment(project / "notes")
    environment["PYTHONPATH"] += f":{project}"
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    return reads.noted(project / "notes")


def test_modules_data_and_programs_that_were_started(project):
    modules = {"golden/__init__.py", "golden/first.py", "golden/lm/second.py", "hw/kllm/block.py"}
    expected = {*modules, "docs/page.md"}
    assert noted(project, PROGRAM) == expected
    # Once more, when modules are read in their compiled form.
    assert noted(project, PROGRAM) == expected


@pytest.mark.parametrize("how", ["", "env={}", "env={**os.environ, 'PYTHONPATH': ''}"])
def test_a_program_that_notes_nothing_reads_everything(project, how):
    """Also where the environment of all programs has been changed."""
    program = "import os, subprocess, sys; "
    program += "" if how else "os.environ['PYTHONPATH'] = os.getcwd(); "
    assert noted(project, program + f"subprocess.run([sys.executable, '-c', ''], {how})") == {"*"}


HASHES = dict.fromkeys(FILES, "0")


@pytest.mark.parametrize(
    ("read", "counts"),
    [
        ({"golden/first.py"}, {"golden/first.py"}),
        ({"tests/kllm/test_a.py"}, {"tests/kllm/test_a.py"}),
        ({"*"}, {name for name in FILES if name.startswith(("golden", "hw", "sim"))}),
    ],
    ids=["a file", "a test", "everything"],
)
def test_what_a_change_of_a_file_changes(read, counts):
    """A program is a reader of files for compilers and make too, as these note nothing."""
    before = digest(read, HASHES, "tools")
    changing = {name for name in FILES if digest(read, HASHES | {name: "1"}, "tools") != before}
    assert changing == counts | {"sim/drivers/a.cpp", "examples/soc/top.v", "examples/soc/Makefile"}
    assert digest(read, HASHES, "others") != before
    new = {"golden/lm/fourth.py": "0"}
    assert (digest(read, HASHES | new, "tools") != before) == ("*" in read)


def test_a_file_that_is_gone():
    assert digest({"README.md"}, HASHES, "") != digest(
        {"README.md"}, {name: x for name, x in HASHES.items() if name != "README.md"}, ""
    )


def test_content_is_that_of_the_files(project, monkeypatch):
    monkeypatch.setattr(reads, "content", reads.content.__wrapped__)
    before = reads.content()
    assert set(before) == set(FILES)
    (project / "docs/page.md").write_text("x")
    changed = {name for name, found in reads.content().items() if found != before[name]}
    assert changed == {"docs/page.md"}
