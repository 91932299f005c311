"""Mistakes in calls of every command of ``python -m sim``: one sentence, exit status 2."""

import pytest

from golden.download import NetworkError
from golden.mistakes import FAILED, MISTAKEN, status_of
from hw.parameters import ParameterError
from sim.__main__ import COMMANDS, sentence
from sim.commands.engines.difference import Difference
from sim.core.tools import ToolError

BLOCK = "block must be one of"
# Those that take a block, a file or a number that argparse alone cannot refuse.
REFUSED = {
    "run foo": BLOCK,
    "run stream.queue --preset huge": "preset must be one of",
    "run stream.queue --set depth=0": "depth must be at least 1",
    "run stream.queue --set deep=1": "parameter name must be one of",
    "run stream.queue --verilog none.v": "none.v: No such file",
    "run stream.queue --trace none.npz": "trace none.npz: there is no such file",
    "run stream.queue --memory latency=0": "latency must be",
    "run stream.queue --waves none/w.fst --driver harness": "the compiled harness writes no waves",
    "run stream.queue --waves /proc/w.fst": "/proc/w.fst cannot be written",
    "run stream.queue --simulator icarus --driver harness": "the compiled harness needs Verilator",
    "run stream.queue --baud 9600": "--baud needs --board",
    "generate --attention foo": "attention must be one of",
    "generate --linear topick.topick_core": "linear must be one of",
    "generate --memory latency=0": "latency must be",
    "generate --trace-out none/x.npz": "output none/x.npz: the folder none does not exist",
    "generate --gguf none.gguf": "model none.gguf: there is no such file",
    "demo --attention foo": "attention must be one of",
    "demo -o /proc/none": "/proc/none cannot be written",
    "report foo": BLOCK,
    "report stream.queue --presets huge": "preset must be one of",
    "report stream.queue --trace none.npz": "trace none.npz: there is no such file",
    "mutate foo": BLOCK,
    "mutate all --set depth=2": "--set needs one block",
    "exhaustive foo": "block must be all or one of",
    "exhaustive --first 70000": "--first must be below",
    "synth foo": BLOCK,
    "synth stream.queue --liberty none.lib": "none.lib: No such file",
    "synth stream.queue --ecp5 --mode area": "--ecp5 and --mode do not go together",
    "results foo -o out": "there is no page foo",
    "lint foo": BLOCK,
    "pruning --trace none.npz": "trace none.npz: there is no such file",
    "counting --trace none.npz": "trace none.npz: there is no such file",
    "counting --liberty none.lib": "none.lib: No such file",
    "tables --add none.json": "none.json: No such file",
    "compare --design foo": "design must be one of",
    "compare --d 20": "d must be a power of two from 8 to 128",
    "compare --heads 9 --kv-heads 2": "kv-heads must divide 9 (heads)",
    "compare --n 5000": "n must be from 24 to 4096",
    "compare --memory hbm3": "a memory's standard must be one of",
    "compare --memory hbm2,clock=500": "--memory: give the clock by --clock",
    "compare --clock x": "clock must be a number of MHz above 0",
    "compare --set kept=3": "a setting must have the form DESIGN.NAME=VALUE",
    "compare --set veda.veda_core.kept=600": "kept of veda.veda_core must be from 2 to 510",
    "compare --set veda.veda_core.foo=1": "parameter name must be one of",
    "compare --set topick.topick_core.lanes=2": "lanes of topick.topick_core must be a power of",
    "compare --set topick.topick_core.threshold=2": "threshold of topick.topick_core must be from",
    "compare --trace none.npz": "trace none.npz: there is no such file",
    "compare --quality 0.5": "quality must be one of 0.003, 0.018, 0.06",
    "compare --kept none": "none/equal_terms.json: there is no such file",
    "compare --missing": "--missing needs --page and takes no --trace",
    "compare -o none/x.json": "output none/x.json: the folder none does not exist",
    "dram --standard hbm3 --pattern random": "a memory's standard must be one of",
    "dram --standard hbm2 --addresses none": "none: No such file",
}
# What argparse refuses, a line for each command.
PARSED = {
    "": "the following arguments are required: COMMAND",
    "ron": "argument COMMAND: invalid choice: 'ron'",
    "run": "the following arguments are required: block",
    "run stream.queue --vectors x": "argument --vectors: must be a whole number, not x",
    "generate --tokens 0": "argument --tokens: must be at least 1, not 0",
    "generate --chat a --prompt b": "argument --prompt: not allowed with argument --chat",
    "demo --tokens x": "argument --tokens: must be a whole number, not x",
    "report --jobs 0": "argument --jobs: must be at least 1, not 0",
    "mutate stream.queue --within (": "argument --within: must be a regular expression",
    "exhaustive --format fp8": "argument --format: invalid choice: 'fp8'",
    "synth stream.queue --clock -1": "argument --clock: must be a number of ps above 0, not -1",
    "energy stream.queue --runs 65": "argument --runs: must be at most 64, not 65",
    "layout stream.queue --utilisation 2": "argument --utilisation: must be a share",
    "results": "the following arguments are required: -o/--output",
    "campaign --jobs x": "argument --jobs: must be a whole number, not x",
    "compare --n 0": "argument --n: must be at least 1, not 0",
    "timeline stream.queue --cycles 5": "argument --cycles: must be FIRST:END with FIRST below",
    "lint": "the following arguments are required: block",
    "bench --limit x": "argument --limit: must be a whole number, not x",
    "ablation --longest 3": "argument --longest: must be at least 129, not 3",
    "pruning --threshold 2": "argument --threshold: must be above 0 and below 1, not 2",
    "locality --positions 0": "argument --positions: must be at least 1, not 0",
    "counting --counters 0": "argument --counters: must be at least 1, not 0",
    "areas": "the following arguments are required: -o/--output",
    "tables --chek": "unrecognized arguments: --chek",
    "clean --days x": "argument --days: must be a whole number, not x",
}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", REFUSED)
def test_a_mistake_is_one_sentence(run, line, elsewhere):
    status, out, err = run(line)
    *progress, last = err.splitlines()
    assert (status, out) == (MISTAKEN, "") and last.startswith(f"error: {REFUSED[line]}")
    assert all(said.endswith("…") for said in progress)


@pytest.mark.parametrize("line", PARSED)
def test_a_call_that_cannot_be_read_is_two_lines(run, line):
    status, out, err = run(line)
    said, more = err.splitlines()
    assert (status, out) == (MISTAKEN, "") and said.startswith(f"error: {PARSED[line]}")
    command = line.partition(" ")[0]
    known = f" {command}" * (command in COMMANDS)
    assert more == f"see python -m sim{known} --help"


def test_every_command_is_in_a_table():
    named = {line.partition(" ")[0] for line in [*PARSED, *REFUSED]}
    assert named >= COMMANDS.keys()


def test_work_that_fails_has_another_status():
    mistakes = (ParameterError,)
    assert status_of(ParameterError("no"), mistakes) == MISTAKEN
    assert status_of(PermissionError(13, "no"), mistakes) == MISTAKEN
    full = OSError(28, "No space left on device", "x")
    for failure in (ToolError("no"), NetworkError("no"), Difference("a.b", 0, 0, "no"), full):
        assert sentence(failure)[1] == FAILED
    assert sentence(MemoryError())[1] == FAILED and sentence(AssertionError()) is None
