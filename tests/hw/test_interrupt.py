"""Ctrl-C and SIGTERM at any time: one sentence at most, and nothing written afterwards."""

import os
import signal
import subprocess
import sys

import pytest

from golden import interrupt
from sim.core.tools import ROOT

SCRIPT = """
import runpy, signal, sys
program, module, how, number = sys.argv[1:5]

class Dropped:
    def __del__(self):  # exceptions in here are reported, and go no further
        signal.raise_signal(int(number))

class Finder:
    def find_spec(self, name, path, target=None):
        if name == module:
            Dropped() if how == "dropped" else signal.raise_signal(int(number))

sys.meta_path.insert(0, Finder())
sys.argv = [program, *sys.argv[5:]]
runpy.run_module(program, run_name="__main__", alter_sys=True)
"""
# A module imported before the command is known, and one that the command imports.
CASES = [
    ("hw", "amaranth", "error: interrupted\n", "verilog stream.queue -o out"),
    (
        "hw",
        "hw.stream.reorder_buffer",
        "error: interrupted\n",
        "verilog stream.reorder_buffer -o out",
    ),
    ("golden", "numpy", "error: interrupted\n", "trace --text t --gguf g -o t.npz"),
]


@pytest.mark.parametrize("how", ["raised", "dropped"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("program", "module", "sentence", "command"), CASES)
def test_during_imports(program, module, sentence, command, how, number, tmp_path):
    script = [sys.executable, "-c", SCRIPT, program, module, how, str(int(number))]
    done = subprocess.run(
        [*script, *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    late = (module, how, number) == ("hw.stream.reorder_buffer", "dropped", signal.SIGTERM)
    if number == signal.SIGINT or late:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", sentence)
    else:
        assert (done.returncode, done.stdout, done.stderr) == (143, "", "")
    assert os.listdir(tmp_path) == []


def test_an_ignored_signal_stays_ignored(monkeypatch):
    """As nohup and the background jobs of a shell set it."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = {number: signal.getsignal(number) for number in interrupt.ENDS}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        interrupt.raise_exceptions()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
        assert ended.value.code == 143
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
