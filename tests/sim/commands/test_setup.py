"""Set-up: packages it needs, messages, pins; and runs without Python's shared library."""

import ctypes
import importlib.metadata
import re
from types import SimpleNamespace

import find_libpython
import pytest
from packaging.requirements import Requirement

from hw.catalogue import find
from sim.commands import report, setup
from sim.core import tools
from sim.core.design import generate
from sim.drivers.cocotb.runner import SIMULATORS, CocotbSimulation
from sim.drivers.run import load_trace
from tests import conftest

BLOCK = find("stream.skid_buffer")
PINNED = setup.REQUIREMENTS.read_text()
LEFT_OUT = {"requests", "scapy", "huggingface-hub", "markdown-it-py", "systemc", "tzdata"}


@pytest.fixture
def no_libpython(monkeypatch):
    """As on a plain Debian, where Python is one program without a library."""

    load = ctypes.CDLL

    def missing(path, *arguments, **options):
        if "libpython" in str(path):
            raise OSError(f"{path}: cannot open shared object file")
        return load(path, *arguments, **options)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    tools.has_cocotb.cache_clear()
    yield
    monkeypatch.undo()
    tools.has_cocotb.cache_clear()


def test_the_search_agrees_with_cocotb():
    assert tools.has_cocotb() == (find_libpython.find_libpython() is not None)


def test_a_run_by_cocotb_is_refused_in_one_sentence(run, no_libpython):
    status, out, err = run(f"run {BLOCK.name} --preset small --json")
    assert (status, out) == (1, "")
    lacking = f"cocotb needs Python's shared library {tools.LIBPYTHON}"
    assert err == f"error: {lacking}; {tools.COCOTB_ADVICE}\n"


def test_a_report_drives_verilator_by_the_harness(no_libpython):
    rows = [report.run_row(BLOCK, "small", tool, load_trace(None), 5) for tool in SIMULATORS]
    verdicts = {row.simulator: row.verdict for row in rows}
    assert verdicts == {"verilator": "pass", "icarus": "SKIPPED"}
    assert rows[0].vectors > 0
    if tools.has_icarus():
        assert all(f"cocotb lacks {tools.LIBPYTHON}" in row.reason for row in rows)


def test_tests_that_need_cocotb_are_skipped_unless_in_ci(monkeypatch, no_libpython):
    design = generate(BLOCK, BLOCK.parameters_class.preset("small"))
    monkeypatch.setattr(conftest, "MAY_SKIP", False)
    conftest.skip_without_cocotb(monkeypatch)
    with pytest.raises(tools.ToolError, match="cocotb needs Python's shared library"):
        CocotbSimulation(design, "verilator")
    monkeypatch.setattr(conftest, "MAY_SKIP", True)
    conftest.skip_without_cocotb(monkeypatch)
    with pytest.raises(pytest.skip.Exception, match=f"cocotb lacks {tools.LIBPYTHON}"):
        CocotbSimulation(design, "verilator")


@pytest.mark.parametrize(
    ("icarus", "cocotb", "reason"),
    [
        (True, True, None),
        (False, True, "Icarus Verilog is not inst"),
        (True, False, "cocotb lacks"),
    ],
)
def test_tests_in_icarus_are_skipped_without_it(monkeypatch, icarus, cocotb, reason):
    monkeypatch.setattr(conftest, "MAY_SKIP", True)
    monkeypatch.setattr(tools, "has_icarus", lambda: icarus)
    monkeypatch.setattr(tools, "has_cocotb", lambda: cocotb)
    added = []
    item = SimpleNamespace(
        callspec=SimpleNamespace(params={"simulator": "icarus"}),
        add_marker=added.append,
        get_closest_marker=lambda name: name in [mark.name for mark in added],
    )
    conftest.pytest_collection_modifyitems([item])
    skips = [mark.kwargs["reason"] for mark in added if mark.name == "skip"]
    assert len(skips) == (reason is not None)
    assert all(said.startswith(reason) for said in skips)


@pytest.fixture
def machine(monkeypatch):
    """A machine that is set up, but where nothing may be installed."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(setup, "ready", lambda: True)
    monkeypatch.setattr(setup, "ENVIRONMENT", setup.sys.prefix)
    monkeypatch.setattr(setup, "may_install", lambda: None)
    monkeypatch.setattr(setup, "needed", lambda: [])
    monkeypatch.setattr(setup, "has_icarus", lambda: True)
    monkeypatch.setattr(setup, "has_cocotb", lambda: True)
    return monkeypatch


def test_a_complete_machine_needs_no_word(machine, capsys):
    assert setup.main() == 0
    assert capsys.readouterr() == ("", "")


def test_what_is_needed_is_named_in_one_sentence(machine, capsys):
    machine.setattr(setup, "needed", lambda: ["g++", "perl"])
    assert setup.main() == 1
    assert capsys.readouterr().err == "error: nothing works without: apt-get install g++ perl\n"


@pytest.mark.parametrize(
    ("library", "package", "skipped"),
    [
        ("has_icarus", "iverilog", "Icarus Verilog is not installed: its runs will be SKIPPED"),
        ("has_cocotb", tools.LIBPYTHON, "which cocotb needs: its runs will be SKIPPED"),
    ],
)
def test_what_is_wanted_is_told_loudly_and_fails_in_ci(machine, capsys, library, package, skipped):
    machine.setattr(setup, library, lambda: False)
    assert list(setup.wanted()) == [package]
    assert setup.main() == 0
    said = capsys.readouterr().err
    assert said.startswith("\n***") and said.count(skipped) == 1
    machine.setenv("CI", "true")
    assert setup.main() == 1


def test_an_environment_behind_a_link_is_left_alone(machine, capsys, tmp_path):
    """`venv --clear` would follow the link and empty another checkout's environment."""
    other, link = tmp_path / "other", tmp_path / ".venv"
    other.mkdir()
    (other / "kept").touch()
    link.symlink_to(other)
    machine.setattr(setup, "ready", lambda: False)
    machine.setattr(setup, "ENVIRONMENT", link)
    machine.setattr(setup, "STAMP", link / ".ready")

    def refused(*arguments):
        raise tools.ToolError("no package is installed here")

    machine.setattr(setup, "_pip", refused)
    assert setup.main() == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        "error: .venv is a symbolic link, and set-up would empty the folder that it points to: "
        "remove the link first"
    )
    assert [path.name for path in other.iterdir()] == ["kept"]


IGNORED = "WARNING: Location 'file:///nothing' is ignored: it is a non-existing path."
PIP = f"""echo "{IGNORED}"
echo "WARNING: Retrying"
echo "Collecting numpy==2"
sleep 0.2
echo "Installing collected packages: numpy"
"""


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Stands in for the environment's pip; `exit` is its status."""
    monkeypatch.setattr(setup, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(setup, "TICK_S", 0.02)

    def make(exit: int):
        python = tmp_path / "bin" / "python"
        python.parent.mkdir()
        python.write_text(f"#!/bin/sh\n{PIP}exit {exit}\n")
        python.chmod(0o755)
        return lambda: setup._pip(setup.Step("packages"), ["numpy==2", "rich==1"])

    return make


def test_a_step_is_a_line_in_a_log_and_another_each_minute(pip, capsys, monkeypatch):
    """Warnings are passed on, but for the one about indexes that are not there."""
    pip(0)()
    assert capsys.readouterr().err.splitlines() == ["packages …", "WARNING: Retrying"]
    monkeypatch.setattr(setup, "SILENT_S", 0.1)
    step = setup.Step("slow")
    step.follow(setup._start(["sh", "-c", "echo Collecting a; sleep 0.3"]), lambda line: line)
    assert capsys.readouterr().err.splitlines()[:2] == ["slow …", "  0 s Collecting a"]


def test_all_that_a_failed_step_said_is_shown(pip, capsys):
    with pytest.raises(tools.ToolError, match="could not install the pinned packages: see above"):
        pip(1)()
    assert IGNORED in capsys.readouterr().err


def test_a_step_on_a_terminal_is_one_line_that_lives(pip, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(setup.sys.stderr, "isatty", lambda: True)
    pip(0)()
    shown = capsys.readouterr().err
    assert shown.count("\n") == 2 and "\x1b[Kpackages … 0:00 1 of 2: numpy==2" in shown
    assert shown.endswith("\x1b[Kpackages: 0 s\n") and "ignored" not in shown


@pytest.mark.parametrize("waits", ["", "sleep 0.1; "])
def test_the_last_complaint_of_apt_get_is_passed_on(capfd, waits):
    process = setup.subprocess.Popen(
        ["sh", "-c", f"{waits}echo first >&2; echo no space left >&2; exit 1"],
        stderr=setup.subprocess.PIPE,
    )
    if not waits:
        process.wait()
    setup.finish_install(process)
    assert capfd.readouterr().err.splitlines()[-1] == "apt-get: no space left"


def test_set_up_runs_on_the_standard_library_alone():
    command = [setup.sys.executable, "-S", "-c", "import sim.commands.setup"]
    assert setup.subprocess.run(command, cwd=setup.ROOT).returncode == 0


def test_packages_of_a_foreign_python_are_not_asked_of_debian(monkeypatch):
    packages = [tools.LIBPYTHON, "python3-venv", "iverilog"]
    monkeypatch.setattr(setup.sys, "base_prefix", "/usr")
    assert setup.installable(packages) == packages
    monkeypatch.setattr(setup.sys, "base_prefix", "/opt/python")
    assert setup.installable(packages) == ["iverilog"]


def test_the_readme_names_what_set_up_looks_for():
    lines = re.findall(
        r"^apt-get install (.*?) +# Debian (\d+)$",
        setup.ROOT.joinpath("README.md").read_text(),
        re.M,
    )
    assert {release for _, release in lines} == {"12", "13"}
    for packages, release in lines:
        minor = {"12": 11, "13": 13}[release]
        needed = {"g++", "make", "perl", "python3-venv", f"libpython3.{minor}", "iverilog"}
        assert set(packages.split()) == needed | {"git"}


def test_pins_are_complete():
    """Each pinned package's requirements are pinned, but for those the file says are left out."""
    lines = [line for line in PINNED.splitlines() if not line.startswith("#")]
    pinned = {Requirement(line).name.lower().replace("_", "-") for line in lines}
    left_out = set()
    for line in filter(lambda line: Requirement(line).marker is None, lines):
        for text in importlib.metadata.requires(Requirement(line).name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left_out |= {requirement.name.lower().replace("_", "-")} - pinned
    comment = " ".join(line for line in PINNED.splitlines() if line.startswith("#")).lower()
    assert left_out == LEFT_OUT
    assert all(name in comment for name in left_out)


def test_yosys_is_installed_first_with_all_it_needs():
    first, rest = setup.split_requirements(PINNED)
    assert {line.partition("==")[0] for line in first} == set(setup.YOSYS)
    assert sorted(first + rest) == sorted(
        line for line in PINNED.splitlines() if not line.startswith("#")
    )
    for name in setup.YOSYS:
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert requirement.name in setup.YOSYS, f"{name} needs {text}"
