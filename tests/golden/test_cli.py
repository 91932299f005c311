"""The command line as a user meets it, on a tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from golden import __main__ as cli
from golden.evaluation import commands as evaluation
from golden.files import json_text
from golden.lm import commands
from golden.studies import results
from golden.trace import load
from tests.support.lm.tiny_llama import SIZES, write_gguf

PROSE = "The theory of the thing is that the other thinks, and then the rest follows. "


@pytest.fixture
def run(tmp_path, tiny, monkeypatch, call):
    """Runs a command in a folder with ``text.txt``; gives status, stdout, stderr, new files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(PROSE * 3)
    before = set(os.listdir())

    def run(command):
        done = call(cli.main, command.replace("TINY", str(tiny)))
        return *done, sorted(set(os.listdir()) - before)

    return run


def test_trace(run):
    options = "--layers 0,2 --tokens 30 --activations 8 --columns 4"
    status, out, _, made = run(f"trace --text text.txt --gguf TINY {options} -o t.npz")
    assert status == 0 and made == ["t.npz"]
    assert out.startswith("wrote t.npz (0.0") and out.count("\n") == 1
    assert "layers 0, 2 of tiny.gguf, 6 query heads over 2 kv heads of 8 elements" in out
    trace = load("t.npz")
    assert trace.q.shape == (2, SIZES["heads"], 30, SIZES["d"])
    assert trace.k.shape == trace.v.shape == (2, SIZES["kv_heads"], 30, SIZES["d"])
    assert {name: array.shape for name, array in trace.x.items()} == {
        "layer0.attn": (8, 48),
        "layer0.down": (8, 40),
        "layer2.attn": (8, 48),
        "layer2.down": (8, 40),
    }
    assert trace.w["layer0.attn"].shape == (48, 4)
    assert trace.meta["layers"] == [0, 2] and trace.meta["tokens"] == 30
    assert trace.meta["text"] == "text.txt" and len(trace.meta["model_sha256"]) == 64


def test_trace_picks_layers_by_itself(run):
    status, _, _, _ = run("trace --text text.txt --gguf TINY --tokens 9 --activations 0 -o t.npz")
    assert status == 0
    trace = load("t.npz")
    assert trace.meta["layers"] == [0, 1, 2]
    assert trace.x == trace.w == {}


def test_the_default_text_is_prose(run):
    status, out, _, _ = run("perplexity --gguf TINY --tokens 40")
    assert status == 0 and "40 tokens of prose of Python 3.11's language reference" in out


def test_perplexity_for_people_and_programs(run):
    command = "perplexity --text text.txt --gguf TINY --tokens 50"
    status, out, _, made = run(command)
    assert status == 0 and made == []
    assert out.startswith("perplexity ") and " of tiny.gguf on 50 tokens of text.txt (" in out
    status, out, _, _ = run(f"{command} --json")
    result = json.loads(out)
    assert status == 0 and (result["tokens"], result["model"]) == (50, "tiny.gguf")
    assert result["wall_s"] >= 0 and 1 < result["perplexity"] < 1e6


def test_a_text_by_its_name(run):
    status, out, _, _ = run("perplexity --text cranes --gguf TINY --tokens 40")
    assert status == 0 and " on 40 tokens of cranes (" in out


FAULTS = {
    "no layer": ("trace --gguf TINY --layers 1,3 -o t.npz", "the model has layers 0 to 2"),
    "layer text": ("trace --gguf TINY --layers one -o t.npz", "give layer numbers separated by"),
    "layer sign": ("trace --gguf TINY --layers=-1 -o t.npz", "give layer numbers separated by"),
    "layer size": (f"trace --gguf TINY --layers {'9' * 5000} -o t.npz", "give layer numbers"),
    "layer blank": ("trace --gguf TINY --layers= -o t.npz", "give layer numbers separated by"),
    "layer order": ("trace --gguf TINY --layers 2,0 -o t.npz", "in rising order, not 2,0"),
    "layer twice": ("trace --gguf TINY --layers 1,1 -o t.npz", "give each layer once"),
    "long": ("trace --gguf TINY --tokens 65 -o t.npz", "the model sees at most 64 tokens"),
    "no folder": ("trace --gguf TINY -o no/t.npz", "the folder no does not exist"),
    "a folder": ("trace --gguf TINY -o .", "it is a folder"),
    "no text": ("trace --text no.txt --gguf TINY -o t.npz", "text no.txt: there is no such file"),
    "role": ("trace --text held-out --gguf TINY -o t.npz", "it is 12 texts; give one of them"),
    "text folder": ("trace --text . --gguf TINY -o t.npz", ".: Is a directory"),
    "empty text": ("trace --text empty.txt --gguf TINY -o t.npz", "text empty.txt: it is empty"),
    "binary": ("trace --text binary --gguf TINY -o t.npz", "text binary: byte 2 is not UTF-8"),
    "short": (
        "trace --text short.txt --gguf TINY --tokens 60 -o t.npz",
        "text short.txt: it has 5 tokens, fewer than 60",
    ),
    "no model": ("trace --gguf no.gguf -o t.npz", "model no.gguf: there is no such file"),
    "bad model": ("trace --gguf text.txt -o t.npz", "model text.txt: it is not a whole GGUF file"),
    "one token": ("perplexity --gguf TINY --tokens 1", "a perplexity needs 2 tokens at least"),
    "perplexity short": (
        "perplexity --text short.txt --gguf TINY",
        "text short.txt: it has 5 tokens, fewer than 2000",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(run, fault, tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "short.txt").write_text("hello")
    (tmp_path / "binary").write_bytes(b"ab\xff\xfe")
    command, sentence = FAULTS[fault]
    status, out, err, made = run(command)
    assert status == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert sentence in err
    assert made == ["binary", "empty.txt", "short.txt"]


def test_help(run):
    status, out, _, _ = run("--help")
    assert status == 0 and "trace" in out and "perplexity" in out
    for command in ("trace", "perplexity"):
        status, out, _, _ = run(f"{command} --help")
        assert status == 0 and "--gguf" in out


def test_a_full_disk_leaves_the_old_trace(run, monkeypatch, tmp_path):
    (tmp_path / "t.npz").write_bytes(b"old")

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    status, out, err, made = run("trace --text text.txt --gguf TINY --tokens 9 -o t.npz")
    assert status == 1 and out == "" and made == ["t.npz"]
    assert err.endswith("error: t.npz: No space left on device\n")
    assert (tmp_path / "t.npz").read_bytes() == b"old"


@pytest.mark.parametrize("command", ["perplexity", "eval --policy dense --policy h2o:capacity=9"])
@pytest.mark.parametrize("form", ["", " --json"])
def test_values_that_overflow_are_one_sentence(run, command, form, tensors, tmp_path):
    # Norms bring all others back to size.
    large = {
        n: t * np.float32(1e38 if n == "output_norm.weight" else 1) for n, t in tensors.items()
    }
    write_gguf(tmp_path / "large.gguf", large)
    status, out, err, _ = run(f"{command} --text text.txt --gguf large.gguf --tokens 20{form}")
    assert status == 1 and out == ""
    assert err.splitlines()[-1].endswith("overflow") and " not finite: " in err.splitlines()[-1]
    assert "Warning" not in err


def test_json_has_no_nan():
    value = {"a": [1.5, float("nan"), (float("inf"), 2)], "b": None, "c": "NaN"}
    text = json_text(value)
    assert json.loads(text) == {"a": [1.5, None, [None, 2]], "b": None, "c": "NaN"}


@pytest.mark.parametrize(
    "command",
    [
        "trace --text text.txt --gguf TINY --tokens 9 -o kept/t.npz",
        "eval --text text.txt --gguf TINY --tokens 9 --plot kept/p.svg",
        "results veda -o kept/new/folder",
    ],
)
def test_outputs_that_cannot_be_written_are_found_first(run, command, monkeypatch, tmp_path):
    """Before the model is opened, which may be minutes before they are written."""
    (tmp_path / "kept").mkdir(mode=0o555)
    access = os.access
    # The administrator may write anywhere.
    monkeypatch.setattr(
        "golden.files.os.access", lambda p, mode: access(p, mode) and Path(p).name != "kept"
    )
    for module, name in ((commands, "open_model"), (evaluation, "open_model"), (results, "run")):
        monkeypatch.setattr(module, name, None)
    status, out, err, _ = run(command)
    assert (status, out) == (2, "") and os.listdir("kept") == []
    assert err == "error: kept: Permission denied\n"


def test_an_interrupt_leaves_nothing(run, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "capture", interrupted)
    status, _, err, made = run("trace --text text.txt --gguf TINY --tokens 9 -o t.npz")
    assert status == 130 and err == "error: interrupted\n" and made == []


def test_no_network_is_one_sentence(run, monkeypatch, tmp_path):
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    status, _, err, made = run("trace --text text.txt -o t.npz")
    assert status == 1 and made == ["cache"] and os.listdir("cache") == []
    assert "the model could not be downloaded" in err.splitlines()[-1]


def test_a_cache_that_is_a_file(run, monkeypatch):
    monkeypatch.setenv("SENBAZURU_CACHE", "text.txt")
    status, _, err, made = run("perplexity --text text.txt --tokens 9")
    sentence = "the cache folder text.txt cannot be written (File exists); set SENBAZURU_CACHE to"
    assert status == 2 and made == [] and err == f"error: {sentence} another\n"


def test_as_a_program(tiny, tmp_path):
    """The exit status reaches the shell."""
    command = [sys.executable, "-m", "golden", "trace", "--gguf", str(tiny)]
    bad = subprocess.run(
        [*command, "--layers", "9", "-o", str(tmp_path / "t.npz")], capture_output=True, text=True
    )
    assert bad.returncode == 2 and bad.stdout == "" and "layers 0 to 2" in bad.stderr
    assert os.listdir(tmp_path) == []
