"""The wheel: everything below ``senbazuru``, and its commands in an empty folder."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from hw import HOME
from hw import __main__ as hw_main
from sim.core.tools import PACKAGES, ROOT

FOLDERS = ("hw", "golden", "sim")
BLOCK = "kllm.orizuru"


@pytest.fixture(scope="module")
def setup():
    """The file that builds the wheel, as a module."""
    spec = importlib.util.spec_from_file_location("wheel_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_imports_and_commands_are_of_the_namespace(setup):
    text = '''"""Docs of `python -m hw list`.

>>> from hw.ports import Ports
"""
from golden import InputError, sim
from hw.ports import (
    hw,
)
if True:
    from sim.core import tools  # from sim.core
from simple import hw
import golden.files as files
from . import near
words = "from hw.ports import x", f"python -m golden {files}", "python -m hwx", "hw.kllm"
'''
    assert (
        setup.namespaced(text)
        == '''"""Docs of `senbazuru hw list`.

>>> from senbazuru.hw.ports import Ports
"""
from senbazuru.golden import InputError, sim
from senbazuru.hw.ports import (
    hw,
)
if True:
    from senbazuru.sim.core import tools  # from sim.core
from simple import hw
import senbazuru.golden.files as files
from . import near
words = "from hw.ports import x", f"senbazuru golden {files}", "python -m hwx", "hw.kllm"
'''
    )


def test_an_import_that_binds_a_top_level_name_is_refused(setup):
    with pytest.raises(SyntaxError, match="m.py:2: import hw.ports needs a name"):
        setup.namespaced("x = 1\nimport hw.ports\n", "m.py")


def test_no_source_imports_by_a_top_level_name():
    """Which only a checkout has; names of modules are made of ``__package__`` or ``HOME``."""
    some = "|".join(FOLDERS)
    text = rf"^\s*import (?:{some})\b(?!.* as )|import_module\(f?\"(?:{some})\."
    found = [
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if re.search(text, path.read_text(), re.M)
    ]
    assert found == []


def test_a_checkout_has_no_namespace():
    assert HOME == "" and PACKAGES == ROOT


def test_lines_of_commands_that_are_not_chosen_are_those_of_the_commands():
    """In the list of `hw --help`, for which nothing is imported."""
    whole, short = hw_main.parser().format_help(), hw_main.parser("").format_help()
    assert whole == short


def test_extras_hold_what_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    names = {re.match(r"[\w-]+", line)[0].lower().replace("_", "-") for line in wanted}
    pinned = re.findall(
        r"^([\w-]+)(?:\[[^\]]*\])?==", (ROOT / "requirements.txt").read_text(), re.M
    )
    missing = names - {name.lower().replace("_", "-") for name in pinned} - {"senbazuru"}
    assert not missing


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    subprocess.run([*build, str(ROOT)], cwd=folder, check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.campaign
def test_nothing_but_the_namespace_is_installed(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        texts = {name: file.read(name).decode() for name in names if name.endswith(".py")}
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"senbazuru"}
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text, name)):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {module.partition(".")[0] for module in modules} & {*FOLDERS}, name


class Installed:
    """A wheel in a virtual environment, called in an empty folder."""

    def __init__(self, wheel: Path, folder: Path, extra: str = ""):
        self.folder = folder / "empty"
        self.folder.mkdir()
        self._environment = os.environ | {"SENBAZURU_CACHE": str(folder / "cache")}
        self._environment.pop("PYTHONPATH", None)
        python = str(folder / "venv" / "bin" / "python")
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        install = [python, "-m", "pip", "install", "--quiet", f"{wheel}{extra}"]
        subprocess.run(install, check=True)
        self._program = str(folder / "venv" / "bin" / "senbazuru")

    def __call__(self, line: str) -> subprocess.CompletedProcess:
        command = [self._program, *line.split()]
        options = {"cwd": self.folder, "env": self._environment, "text": True}
        return subprocess.run(command, capture_output=True, **options)


@pytest.mark.campaign
def test_verilog_without_extras(wheel, tmp_path, call):
    installed = Installed(wheel, tmp_path)
    done = installed(f"hw verilog {BLOCK}")
    assert done.returncode == 0, done.stderr
    status, out, _ = call(hw_main.main, f"verilog {BLOCK} -o {tmp_path / 'here'}")
    assert status == 0
    for path in map(Path, out.split()):
        assert (
            installed.folder / "build" / "verilog" / path.name
        ).read_bytes() == path.read_bytes()
    assert os.listdir(installed.folder) == ["build"]
    refused = installed(f"sim run {BLOCK}")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: ") and refused.stderr.endswith("'senbazuru[sim]'\n")
    assert installed("foo").returncode == 2 and installed("--help").returncode == 0


@pytest.mark.campaign
def test_models_with_the_extra(wheel, tmp_path):
    installed = Installed(wheel, tmp_path, "[golden]")
    for line in ("golden texts", "golden eval --help", "golden results --help", "hw list"):
        done = installed(line)
        assert done.returncode == 0, done.stderr
    assert installed("golden eval --trace none.npz --prompt 2").returncode == 2


@pytest.mark.campaign
def test_simulations_with_the_extra(wheel, tmp_path):
    installed = Installed(wheel, tmp_path, "[sim]")
    for driver in ("harness", "cocotb --simulator icarus"):
        done = installed(f"sim run {BLOCK} --preset small --vectors 20 --driver {driver}")
        assert done.returncode == 0, done.stderr
        assert "0 mismatches" in done.stdout
    assert installed("golden texts").returncode == 0
    for command in ("tables", "campaign"):
        refused = installed(f"sim {command}")
        assert refused.returncode != 0
        assert refused.stderr == f"error: sim {command} needs a checkout of the project\n"
    # Everything is written into the cache, nothing beside the package.
    assert os.listdir(installed.folder) == [] and (tmp_path / "cache" / "build").is_dir()


@pytest.mark.campaign
@pytest.mark.icarus
def test_a_block_in_a_user_s_design(wheel, tmp_path):
    """The commands and files of docs/your_design.md, as they stand there, in an empty folder."""
    page = (ROOT / "docs" / "your_design.md").read_text()
    commands = "".join(re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S))
    files = re.findall(r"^```\w+\n(?:#|//) ([\w.]+).*\n((?:.*\n)+?)```$", page, re.M)
    names = ["largest.v", "test_largest.py", "Makefile", "test_device.py", "device.mk"]
    assert [name for name, _ in files] == names
    for name, text in files:
        (tmp_path / name).write_text(text)
    (tmp_path / wheel.name).write_bytes(wheel.read_bytes())
    assert wheel.name in commands and len(commands.splitlines()) <= 10
    dropped = ("MAKE", "MFLAGS", "PYTHON", "VIRTUAL_ENV", "COCOTB")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    done = subprocess.run(
        ["bash", "-e"],
        input=commands,
        cwd=tmp_path,
        env=environment | {"SENBAZURU_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASS=1 FAIL=0") == 2
    for field in ("[7:0] max.index", "[23:8] max.value", "[50] last", "Latency: 4 cycles"):
        assert field in done.stdout
