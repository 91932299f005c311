"""`python -m sim demo` on a tiny model and two small blocks."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from hw import __main__ as hw_main
from sim import __main__ as sim_main
from sim.commands import demo, tables
from sim.commands.demo import COSTLY
from sim.core.tools import ROOT
from tests.sim.generate.test_generate import PROMPT, ROWS, SETTINGS, model  # noqa: F401

BLOCKS = ("stream.skid_buffer", "arith.float_max")


@pytest.fixture
def command(monkeypatch, model, tmp_path):  # noqa: F811
    monkeypatch.setattr(
        tables, "OVERVIEW", [*(tables.Row(name, "", "") for name in (*BLOCKS, *COSTLY))]
    )
    return (
        f"demo --gguf {model} --prompt '{PROMPT}' --tokens 9 --capacity {ROWS} {SETTINGS}"
        f" -o {tmp_path / 'out'}"
    )


def test_it_tells_shows_and_writes(run, command, tmp_path):
    status, out, err = run(command)
    assert status == 0 and out.startswith(PROMPT)
    assert "output bits of the RTL equal the bit-exact model's, 0 differ." in out
    for name in BLOCKS:
        (line,) = (line for line in out.splitlines() if f"│ {name} " in line)
        assert "pass" in line
    for name in COSTLY:
        assert f"{name} " in out and f".venv/bin/python -m sim report {name}" in out
    assert out.endswith(f"The page of this run: {tmp_path / 'out' / 'index.html'}\n")
    assert "block 2 of 2" in err and "\033" not in err
    assert os.listdir(tmp_path / "out") == ["index.html"]
    page = (tmp_path / "out" / "index.html").read_text()
    assert re.search(r'verdict pass">RTL = model: [\d,]+ bits, 0 differ<', page)
    pieces = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])["pieces"]
    assert page.count('<span class="token') == len(pieces) > 9
    assert all(f'id="run-{name}-' in page for name in BLOCKS)


def test_commands_and_targets_that_it_names_are_there(call, run):
    targets = re.findall(r"^  make (\w+)", demo.WHERE_NEXT, re.M)
    makefile = (ROOT / "Makefile").read_text()
    assert len(targets) == 2 and all(f"\n{target}: " in makefile for target in targets)
    named = re.findall(r"python -m (sim|hw) (\w+)", demo.WHERE_NEXT)
    assert len(named) == 3
    for package, name in named:
        main = {"sim": sim_main.main, "hw": hw_main.main}[package]
        status, out, _ = call(main, f"{name} --help")
        assert status == 0 and out.startswith(f"usage: python -m {package} {name}")


def test_a_folder_that_cannot_be_written_is_one_sentence(run, tmp_path):
    (tmp_path / "file").write_text("")
    status, out, err = run(f"demo -o {tmp_path / 'file' / 'out'}")
    assert status == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.campaign
def test_ctrl_c_leaves_nothing_half_made(model, tmp_path):  # noqa: F811
    """In a process of its own, with an empty cache, so that both sides compile."""
    build = tmp_path / "build"
    process = subprocess.Popen(
        [sys.executable, "-m", "sim", "demo", "--gguf", str(model), "--prompt", PROMPT],
        cwd=ROOT,
        env={**os.environ, "SENBAZURU_BUILD": str(build)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err.endswith("error: interrupted\n")
    assert "Traceback" not in err
    assert not list(build.rglob("index.html")) and not list(build.rglob("*.part"))
    left = subprocess.run(["pgrep", "-f", str(build)], capture_output=True, text=True).stdout
    assert left == ""
