"""A mistake on the command line of any command: one sentence and status 2; failed work: 1."""

import errno
import os

import pytest

from golden import FailedError
from golden import __main__ as cli
from golden.mistakes import Parser

KINDS = {
    "unknown option": ("--fold 3", "unrecognized arguments: --fold"),
    "no value": ("--tokens", "argument --tokens: expected one argument"),
    "not a number": (
        "--tokens many",
        "argument --tokens: it must be a whole number from 1",
    ),
    "too little": ("--tokens 0", "argument --tokens: it must be a whole number from 1, not 0"),
    "missing file": ("--text no.txt --gguf no.gguf", "text no.txt: there is no such file"),
    "no model": ("--text a.txt --gguf no.gguf", "model no.gguf: there is no such file"),
    "unknown model": ("--model gpt", "argument --model: invalid choice: 'gpt' (choose from "),
    "two models": (
        "--model smollm2 --gguf no.gguf",
        "argument --gguf: not allowed with argument --model",
    ),
    "no text": ("--text empty.txt --gguf no.gguf", "text empty.txt: it is empty"),
}
"""Kinds of mistakes by the arguments and what is said."""
MODEL = ("missing file", "no model", "unknown model", "two models", "no text")
COMMANDS = {
    "trace -o t.npz": tuple(KINDS),
    "perplexity": tuple(KINDS),
    "eval --policy dense": tuple(KINDS),
    "results -o out": ("unknown option",),
    "kllm-cost": tuple(kind for kind in KINDS if kind not in MODEL),
    "unicaim-cost": ("unknown option",),
    "unicaim-circuit": ("unknown option",),
    "texts": ("unknown option",),
}
"""A right beginning of each command, and the kinds of mistakes that it can see."""
OWN = {
    "": "the following arguments are required: COMMAND",
    "fold": "argument COMMAND: invalid choice: 'fold'",
    "trace": "the following arguments are required: -o/--output",
    "trace -o no/t.npz": "output no/t.npz: the folder no does not exist",
    "trace -o .": "output .: it is a folder",
    "trace -o t.npz --columns -1": "argument --columns: ",
    "eval --policy votin": "policy votin: there is no 'votin'; did you mean voting?",
    "eval --policy kllm:norms=both": "policy kllm:norms=both: norms must be 'float' or 'fused'",
    "eval --policy rtn:weight_bits=1": "policy rtn:weight_bits=1: bits must be between 2 and 8",
    "eval --trace no.npz": "trace no.npz: there is no such file",
    "eval --trace a.txt": "trace a.txt: it is not an .npz file",
    "results vedo -o out": "there is no page vedo; known: veda,",
    "results -o a.txt/out": "a.txt: Not a directory",
    "kllm-cost --lanes 99999999999": "argument --lanes: it must be below 10^9, not 99999999999",
    "perplexity --gguf .": "model .: it is not a file",
    "kllm-cost --bandwidth nan": "--bandwidth: it must be 1 to 1e6 GB/s, not nan",
    "kllm-cost -o a.txt": "a.txt: File exists",
    "unicaim-cost --kept 0": "--kept: it must be 1 to 100 percent, not 0",
    "unicaim-cost --counts no.json": "no.json: No such file or directory",
    "unicaim-cost --counts a.txt": "a.txt: it is not JSON",
    "unicaim-cost --counts digits.json": "digits.json: it is not JSON",
    "unicaim-cost --counts deep.json": "deep.json: it is not JSON",
    "unicaim-cost --set adc=5": "--set: there is no constant adc; known: ",
    "unicaim-circuit --set vth=5": "--set: there is no constant vth; known: vdd, v_ref,",
    "unicaim-circuit --set vdd": "--set: give NAME=VALUE, not vdd",
    "unicaim-circuit --set vdd=x": "--set: vdd must be a number, not x",
    "unicaim-circuit --set v_ref=1": "--set: v_ref must be above 0 and below vdd, not 1",
    "unicaim-circuit --set vdd=6": "this circuit does not work: v_read must be above 0 and at most",
    "unicaim-circuit --spread-mv 0": "--spread-mv: it must be above 0 and at most 1000, not 0",
    "unicaim-circuit --detector-mv nan": "--detector-mv: it must be 0 to 1000, not nan",
    "unicaim-circuit -o a.txt": "a.txt: File exists",
}


@pytest.fixture
def run(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("The theory of the thing.")
    (tmp_path / "empty.txt").write_text(" ")
    (tmp_path / "digits.json").write_text("[" + "9" * 5000 + "]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    before = sorted(os.listdir())
    yield lambda line: call(cli.main, line)
    assert sorted(os.listdir()) == before


def test_every_command_is_in_the_table():
    subparsers = Parser().add_subparsers()
    for register in cli.REGISTER:
        register(subparsers)
    assert set(subparsers.choices) == {line.split()[0] for line in COMMANDS}


CASES = [
    *((f"{line} {KINDS[kind][0]}", KINDS[kind][1]) for line in COMMANDS for kind in COMMANDS[line]),
    *OWN.items(),
]


@pytest.mark.parametrize(("line", "sentence"), CASES, ids=[line for line, _ in CASES])
def test_a_mistake_is_one_sentence_and_status_2(run, line, sentence):
    status, out, err = run(line)
    first, *rest = err.splitlines()
    assert status == 2 and out == "" and first.startswith(f"error: {sentence}")
    known = "" if line in ("", "fold") else f" {line.split()[0]}"
    assert rest in ([], [f"see python -m golden{known} --help"])


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (FailedError("the sum overflows"), 1, "the sum overflows"),
        (OSError(errno.ENOSPC, "No space left on device", "t.npz"), 1, "t.npz: No space left"),
        (OSError(errno.ENOENT, "No such file", "a"), 2, "a: No such file"),
        (MemoryError(), 1, "out of memory: try fewer tokens"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_failed_work_has_another_status(run, monkeypatch, error, status, sentence):
    def raising(arguments):
        raise error

    def register(commands):
        commands.add_parser("work").set_defaults(run=raising)

    monkeypatch.setattr(cli, "REGISTER", [register])
    found, out, err = run("work")
    assert (found, out) == (status, "") and err.startswith(f"error: {sentence}")
    assert err.count("\n") == 1
