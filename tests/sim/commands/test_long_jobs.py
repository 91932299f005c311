"""Commands of many tasks: each block once, in order, and results are kept."""

import argparse
import json

import pytest

from golden.studies import results
from golden.studies.trials import Place, WindowTask
from hw import catalogue
from sim.checks.formal.equivalence import Verdict
from sim.checks.mutation.mutants import Mutant
from sim.checks.mutation.mutation import Report, Survivor
from sim.commands import mutate, synth
from sim.core.tools import ToolError
from sim.studies import results as evaluation
from sim.synth import SynthesisError

NAMES = ("stream.queue", "stream.arbiter", "arith.exp", "unicaim.cell_array")
BLOCKS = tuple(map(catalogue.find, NAMES))


@pytest.fixture(autouse=True)
def few(tmp_path, monkeypatch):
    """A build folder of the test's own, and a small catalogue."""
    monkeypatch.setenv("SENBAZURU_BUILD", str(tmp_path / "build"))
    monkeypatch.setattr(catalogue, "blocks", lambda: BLOCKS)


@pytest.fixture
def mapped(monkeypatch):
    """Names of the blocks that a substitute of the mapper was called for."""
    names = []

    def measure(name, preset, parameters, target):
        names.append(name)
        if name == "stream.arbiter" and names.count(name) == 1:
            raise SynthesisError("the mapper\nbroke")
        return [({"block": name, "preset": preset, "part": n}, "") for n in range(2)]

    monkeypatch.setattr(synth, "measure", measure)
    return names


def test_synthesis_resumes_and_keeps_the_order(run, mapped):
    blocks = [block.name for block in BLOCKS if not block.synthesizable_as]
    at = blocks.index("stream.arbiter") + 1
    options = "--preset first --ecp5 --json --jobs 1"
    status, out, err = run(f"synth all {options}")
    assert (status, out, mapped) == (1, "", blocks[:at])
    assert err.startswith("error: stream.arbiter small: the mapper")
    status, out, err = run(f"synth all {options}")
    assert (status, mapped[at:]) == (0, blocks[at - 1 :])
    assert [entry["block"] for entry in json.loads(out)[::2]] == blocks
    assert [entry["part"] for entry in json.loads(out)] == [0, 1] * len(blocks)
    known = len(mapped)
    assert run(f"synth stream.queue {options}")[0] == 0 and len(mapped) == known
    assert run(f"synth stream.queue {options} --fresh")[0] == 0 and len(mapped) == known + 1
    assert run(f"synth stream.queue {options.replace('--ecp5', '')}")[0] == 0  # another task
    assert len(mapped) == known + 2


def test_netlists_are_written_again(run, mapped, tmp_path):
    for count in (1, 2):
        assert run(f"synth stream.queue --json --jobs 1 -o {tmp_path}")[0] == 0
        assert len(mapped) == count
    status, _, err = run(f"synth stream.queue -o {tmp_path} --scheduler tcp://nowhere:1")
    assert status == 2 and err.startswith("error: --netlist and --scheduler do not go together")


def test_results_resume(monkeypatch):
    tasks = ["veda", WindowTask(Place("m", 9, 2, 3, "held-out"), 0, 1, ("dense",))]
    asked, answers = [], []

    def run_task(task):
        asked.append(task)
        return str(task)

    monkeypatch.setattr(results, "run", run_task)
    monkeypatch.setattr(
        results, "run_results", lambda given, run_all: answers.append(run_all(tasks, given))
    )
    arguments = argparse.Namespace(jobs=1, scheduler=None, fresh=False)
    for _ in range(2):
        assert evaluation.results_command(arguments) == 0
        assert asked == tasks
        assert answers.pop() == {task: str(task) for task in tasks}


MUTANT = Mutant(1, "inv", "$x", "Y", 0, None, ("hw/x.py:1",))


@pytest.mark.parametrize("fate", ["killed", "survives", "breaks"])
def test_mutation_of_all_blocks(run, monkeypatch, fate):
    asked = []

    def measure(block, preset, parameters, **settings):
        asked.append((block.name, preset))
        assert settings["count"] == 7 and settings["seconds"] == 60
        report = Report(block.name, preset, settings["seed"], 1)
        if block.name == "arith.exp" and fate == "breaks":
            raise ToolError("no compiler")
        if block.name == "arith.exp" and fate == "survives":
            report.survivors.append(Survivor(MUTANT, Verdict("differs", "in cycle 3")))
        else:
            report.killed.append(MUTANT)
        return report

    monkeypatch.setattr(mutate, "mutate", measure)
    status, out, err = run("mutate all --preset first --count 7 --jobs 1")
    names = [(b.name, b.parameters_class.preset_name("first")) for b in BLOCKS]
    assert asked == names
    assert status == (fate != "killed")
    assert out.count("seed 1: 1 mutants") == len(BLOCKS) - (fate == "breaks")
    assert (err == f"error: 1 of {len(BLOCKS)} blocks: arith.exp fp16: no compiler\n") == (
        fate == "breaks"
    )
    run("mutate all --preset first --count 7 --jobs 1")
    assert len(asked) == len(names) + (fate == "breaks")
