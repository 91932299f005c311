"""`python -m hw` as a user meets it."""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hw import __main__ as cli
from hw import catalogue
from hw.catalogue import blocks, find
from hw.emit.progress import Progress
from sim.core.tools import ROOT

NAMES = [block.name for block in blocks()]
EVERY_PRESET = dict.fromkeys(p for b in blocks() for p in b.parameters_class.presets())


@pytest.fixture
def run(tmp_path, monkeypatch, call):
    """Runs a command in an empty folder; gives status, stdout, stderr and all files made."""
    monkeypatch.chdir(tmp_path)

    def run(command):
        done = call(cli.main, command)
        made = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
        return *done, made

    return run


def test_list_for_people(run):
    status, out, err, made = run("list")
    assert status == 0 and err == "" and made == []
    lines = out.splitlines()
    for block in blocks():
        at = next(i for i, line in enumerate(lines) if line.split()[:1] == [block.name])
        assert block.summary in lines[at] and f"({block.source})" in lines[at]
        for line, (name, preset) in zip(
            lines[at + 1 :], block.parameters_class.presets().items(), strict=False
        ):
            assert line.split() == [name, preset.slug()]


def test_list_for_programs(run):
    status, out, _, made = run("list --json")
    assert status == 0 and made == []
    entries = json.loads(out)
    assert [entry["block"] for entry in entries] == NAMES
    for entry, block in zip(entries, blocks(), strict=True):
        assert set(entry) == {"block", "presets", "summary", "source"}
        assert list(entry["presets"]) == list(block.parameters_class.presets())
    status, out, _, _ = run("list --names")
    assert status == 0 and out.split("\n") == [*NAMES, ""]


def test_verilog_of_one_block(run):
    status, out, err, made = run("verilog stream.skid_buffer --set width=0x21 -o out")
    name = "stream_skid_buffer_bbbb85c9"
    assert status == 0 and err == ""
    assert out.split() == [f"out/{name}.v", f"out/{name}.json"] and made == sorted(out.split())
    sidecar = json.loads(Path(f"out/{name}.json").read_text())
    assert sidecar["parameters"] == {"width": 33}
    assert Path(f"out/{name}.v").read_text().count(f"\nmodule {name}(") == 1


def test_verilog_of_all_presets(run):
    status, out, _, made = run("verilog stream.arbiter --preset all")
    presets = find("stream.arbiter").parameters_class.presets()
    assert status == 0 and len(made) == 2 * len(presets)
    assert made == sorted(out.split())
    for preset in presets:
        assert f"build/verilog/stream_arbiter_{preset}.v" in made


def test_verilog_of_all_blocks(run, monkeypatch):
    few = [find(f"stream.{name}") for name in ("queue", "skid_buffer")]
    listed = (*few, find("kllm.orizuru"))
    monkeypatch.setattr(catalogue, "blocks", lambda: listed)
    status, out, _, made = run("verilog all --preset small -o out")
    assert status == 0 and made == sorted(out.split())
    having = sorted(b.name for b in catalogue.blocks() if "small" in b.parameters_class.presets())
    written = [json.loads(Path(f).read_text())["block"] for f in made if f.endswith("json")]
    assert sorted(written) == having and len(made) == 2 * len(having) > 0


def test_verilog_of_a_given_name(run):
    status, out, _, made = run("verilog stream.queue --preset small --name mine -o out")
    assert status == 0 and made == ["out/mine.json", "out/mine.v"] == sorted(out.split())
    assert "\nmodule mine(" in Path("out/mine.v").read_text()


def test_settings_add_up(run):
    status, _, _, made = run("verilog stream.queue --preset small --set depth=2 --set width=3")
    assert status == 0 and "build/verilog/stream_queue_90f6dddf.v" in made


FAULTS = {
    "verilog stream.heap": "block must be one of those that `python -m hw list` names, not"
    " 'stream.heap'; did you mean stream.queue or stream.arbiter?",
    "verilog stream.queue --preset huge": "preset must be one of small, default, large, not 'huge'",
    "verilog all --preset huge": (f"preset must be one of {', '.join(EVERY_PRESET)}, not 'huge'"),
    "verilog stream.queue --name reg": "a module's name must be letters, digits and _, begin with"
    " a letter and be no keyword, not 'reg'",
    "verilog stream.queue --preset all --name q": "--name needs a single configuration, not 3",
    "verilog stream.queue --set depth": "a setting must have the form name=value, not 'depth'",
    "verilog stream.queue --set rows=3": "parameter name must be one of width, depth, not 'rows'",
    "verilog stream.queue --set depth=few": "depth must be an integer, not 'few'",
    # What would take minutes, or what Amaranth cannot build.
    "verilog stream.queue --set width=1000000": "width must be at most 32768, not 1000000",
    "verilog arith.dot_product --set n=100000": "n must be at most 4096, not 100000",
    "verilog stream.queue --set depth=0": "depth must be at least 1, not 0",
    # The first preset alone would do, the last would not: nothing at all is written.
    "verilog kllm.orizuru --preset all --set k=16": "k must be between 0 and n = 8, not 16",
    "verilog all --set depth=4": "parameter name must be one of width, inputs, not 'depth'",
}


@pytest.mark.parametrize("command", FAULTS)
def test_faults(run, command):
    status, out, err, made = run(f"{command} -o out")
    assert (status, out, err) == (2, "", f"error: {FAULTS[command]}\n")
    assert made == [] and not os.path.exists("out")


def test_a_design_too_large_for_amaranth_is_one_sentence(run, monkeypatch):
    """Signals of Amaranth have at most 65536 bits."""
    limit = find("stream.skid_buffer").parameters_class
    monkeypatch.setattr(limit, "__post_init__", lambda self: None)
    status, out, err, made = run("verilog stream.skid_buffer --set width=100000 -o out")
    assert status == 1 and out == "" and made == []
    assert err.startswith("error: ") and err.endswith("Amaranth can handle (65536 bits)\n")


def test_outputs_are_checked_before_the_work(run, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "export", None)
    (tmp_path / "kept").mkdir()
    access = os.access
    # The administrator may write anywhere.
    monkeypatch.setattr(
        "hw.emit.export.os.access", lambda p, mode: access(p, mode) and Path(p).name != "kept"
    )
    fault = run("verilog stream.queue -o kept/new/folder")
    assert fault == (2, "", "error: kept: Permission denied\n", [])
    assert os.listdir("kept") == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(2) as progress:
        progress.step("veda.veda_core: elaborating")
        time.sleep(2.2)
        progress.done()
    shown = sys.stderr.getvalue().split("\r")
    # The clock goes on while nothing else does.
    assert len({line for line in shown if "veda.veda_core: elaborating:   0%" in line}) >= 3
    assert "1/2" in "".join(shown) and shown[-1] == "" and shown[-2].isspace()


def test_no_progress_elsewhere(monkeypatch, capsys):
    with Progress(2) as progress:
        progress.step("elaborating")
        progress.print("a line")
        progress.done()
    assert capsys.readouterr() == ("a line\n", "")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(2, quiet=True) as progress:
        progress.step("elaborating")
        progress.done()
    assert sys.stderr.getvalue() == ""


def test_the_steps_are_named(run, monkeypatch):
    steps = []
    monkeypatch.setattr(Progress, "step", lambda self, text: steps.append(text))
    run("verilog stream.skid_buffer")
    assert steps == ["stream.skid_buffer: elaborating", "stream.skid_buffer: writing Verilog"]


def test_an_output_that_is_no_folder(run, tmp_path):
    (tmp_path / "file").write_text("mine")
    for target in ("file", "file/below"):
        status, out, err, made = run(f"verilog stream.skid_buffer -o {target}")
        assert status == 2 and out == "" and made == ["file"]
        assert err.startswith("error: ") and err.count("\n") == 1 and "file" in err


def test_an_interrupt_leaves_nothing(run, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "export", interrupted)
    assert run("verilog stream.queue") == (130, "", "error: interrupted\n", [])


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ("", ""),
        ("fold", ""),
        ("list --colour", " list"),
        ("verilog", " verilog"),
        ("show stream.queue --json --markdown", " show"),
        ("synth stream.queue --jobs x", " synth"),
        ("fpga stream.queue --seed x", " fpga"),
    ],
)
def test_a_mistake_is_a_sentence_and_where_to_read_more(run, command, where):
    status, out, err, made = run(command)
    sentence, see = err.splitlines()
    assert (status, out, made) == (2, "", []) and sentence.startswith("error: ")
    assert see == f"see python -m hw{where} --help"


def test_help_is_enough_to_begin(run):
    status, out, _, _ = run("--help")
    assert status == 0 and "usage: python -m hw" in out
    assert "list " in out and "verilog " in out and "presets" in out
    status, out, _, _ = run("verilog --help")
    assert status == 0
    for needed in ("--preset", "--set NAME=VALUE", "-o DIR", "build/verilog", "python -m hw list"):
        assert needed in out
    status, out, _, _ = run("list --help")
    assert status == 0 and "--json" in out and "--names" in out


def test_as_a_program(tmp_path):
    """The exit status reaches the shell."""
    run = subprocess.run(
        [sys.executable, "-m", "hw", "verilog", "stream.heap", "-o", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2 and run.stdout == "" and run.stderr.startswith("error: block must")
    assert os.listdir(tmp_path) == []


def test_a_package_beside_the_verilog(run):
    status, out, _, made = run("verilog kllm.orizuru --name top4 --systemverilog -o made")
    assert status == 0 and made == ["made/top4.json", "made/top4.v", "made/top4_pkg.sv"]
    assert out.split() == ["made/top4.v", "made/top4.json", "made/top4_pkg.sv"]
    assert "package top4_pkg;" in Path("made/top4_pkg.sv").read_text()
