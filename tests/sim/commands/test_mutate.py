"""Mutation testing: good checks leave no surviving mutant, weak checks do."""

import argparse
import dataclasses
import json
import re

import numpy as np
import pytest

from hw.catalogue import find
from hw.parameters import ParameterError
from sim.checks.formal.equivalence import Prover
from sim.checks.formal.gate_equivalence import GateProver
from sim.checks.mutation import mutation
from sim.checks.mutation.mutants import create
from sim.commands import mutate
from sim.core.memory import Memory, MemoryUse
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Outcome, Stimulus
from sim.core.tools import ToolError

COUNT = 60


@pytest.fixture(scope="module")
def skid_buffer():
    block = find("stream.skid_buffer")
    parameters = block.parameters_class.preset("small")
    mutants = create(block, parameters, COUNT, seed=1)
    checks = mutation.checks_of(block, parameters, seed=1)
    harness = mutation.harness_of(mutants, checks)
    yield mutants, checks, harness
    harness.close()


def test_mutants_are_numbered_and_name_their_lines(skid_buffer):
    mutants, _, _ = skid_buffer
    assert [mutant.number for mutant in mutants.mutants] == list(range(1, COUNT + 1))
    lines = {mutant.line.rpartition(":")[0] for mutant in mutants.mutants}
    assert "hw/stream/skid_buffer.py" in lines
    assert lines <= {"hw/stream/skid_buffer.py", "amaranth/lib/stream.py"}


def test_random_data_of_two_seeds(skid_buffer):
    """Under every stall pattern, beside real data."""
    _, checks, _ = skid_buffer
    assert [check.stall for check in checks] == [stall for stall in PATTERNS for _ in range(3)]
    inputs = [check.stimulus.inputs["i"].tobytes() for check in checks]
    assert len(set(inputs)) == 3


def test_enables_of_combinational_reads_are_left_alone():
    """Yosys refuses designs in which they are not constant."""
    block = find("topick.scoreboard")
    mutants = create(block, block.parameters_class.preset("small"), 100, seed=1).mutants
    ports = {mutant.port for mutant in mutants}
    assert len(mutants) == 100 and "RD_DATA" in ports and "RD_EN" not in ports


def test_mutants_are_the_same_for_the_same_seed(skid_buffer):
    block = find("stream.skid_buffer")
    parameters = block.parameters_class.preset("small")
    mutants, _, _ = skid_buffer
    again = create(block, parameters, COUNT, seed=1)
    assert (again.mutants, again.design.verilog) == (mutants.mutants, mutants.design.verilog)
    assert create(block, parameters, COUNT, seed=2).mutants != mutants.mutants


def test_no_mutant_is_both_noticed_and_proved_equivalent(skid_buffer):
    mutants, checks, harness = skid_buffer
    alive = mutation.surviving(mutants, checks, harness)
    design = mutants.design
    words = Prover(mutants.smt2, design.inputs, design.outputs)
    gates = GateProver(design.verilog, design.module, design.inputs)
    for mutant in mutants.mutants:
        verdict = words.judge(mutant.number, 10)
        assert verdict.equivalent == (mutant in alive), (str(mutant), str(verdict))
        assert bool(gates.prove(mutant.number, 10)) == (mutant in alive), str(mutant)


def test_weak_checks_leave_survivors_that_differ(skid_buffer):
    mutants, checks, harness = skid_buffer
    weak = [check for check in checks if check.stall == "none"]
    prover = Prover(mutants.smt2, mutants.design.inputs, mutants.design.outputs)
    alive = mutation.surviving(mutants, weak, harness)
    assert any(prover.judge(mutant.number, 10).status == "differs" for mutant in alive)


def test_rounds_are_of_other_seeds_and_kill_among_survivors(skid_buffer):
    mutants, checks, harness = skid_buffer
    block = find("stream.skid_buffer")
    parameters = block.parameters_class.preset("small")
    rounds = [*mutation.further_checks(block, parameters, 1, None, 2)]
    seeds = {check.seed for further in rounds for check in further}
    assert len(seeds) == len(rounds) == 2 and not seeds & {check.seed for check in checks}
    alive = mutation.surviving(mutants, checks, harness)
    for further in rounds:
        assert mutation.surviving(mutants, further, harness, alive) == alive
    killed = [mutant for mutant in mutants.mutants if mutant not in alive]
    assert mutation.surviving(mutants, rounds[0], harness, killed[:1]) == []


def test_a_design_that_fails_by_itself_is_refused(skid_buffer):
    mutants, checks, harness = skid_buffer
    stimulus = dataclasses.replace(checks[0].stimulus, cycles=checks[0].stimulus.cycles + 1)
    wrong = dataclasses.replace(checks[0], stimulus=stimulus)
    with pytest.raises(ToolError, match="fails its own testbench without a mutation .* formula"):
        mutation.surviving(mutants, [wrong], harness)


@pytest.mark.parametrize("left", [7, 8])
def test_what_a_run_leaves_in_memory_is_checked(skid_buffer, left):
    """A fault may write a wrong row that nothing reads again."""
    mutants, checks, _ = skid_buffer
    rows = np.array([[7]], np.uint32)
    memory = Memory(rows, "request", "response", after=rows)
    stimulus = Stimulus({}, {}, {}, 0, 0, memories={"memory": memory}, band=(0, 1 << 62))

    class LeavesRow:
        def reset(self, **constants):
            pass

        def run(self, *_):
            none = np.zeros(0, np.int64)
            use = MemoryUse(np.array([[left]], np.uint32), 32, 0, 1, none, none)
            return Outcome({}, {}, 0, 0, memories={"memory": use})

    design = dataclasses.replace(mutants.design, outputs={})
    mutants = dataclasses.replace(mutants, design=design)
    check = dataclasses.replace(checks[0], stimulus=stimulus)
    said = mutation.complaint(LeavesRow(), mutants, 1, [check])
    assert (said is None) == (left == 7)
    assert left == 7 or "row 0" in said


def test_checks_of_a_mutant_run_on_one_model(skid_buffer):
    """A fault may show only after what an earlier check left in a memory."""
    mutants, checks, harness = skid_buffer

    class FailsAgain:
        models = runs = 0

        def reset(self, **constants):
            self.models += 1
            harness.reset()

        def run(self, *given):
            self.runs += 1
            outcome = harness.run(*given)
            return outcome if self.runs < 2 else dataclasses.replace(outcome, failure="it fails")

    fails = FailsAgain()
    said = mutation.complaint(fails, mutants, 1, checks)
    assert said == f"({checks[1]}): it fails" and (fails.models, fails.runs) == (1, 2)


def parse(*words):
    parser = argparse.ArgumentParser()
    mutate.register(parser.add_subparsers())
    return parser.parse_args(["mutate", *words])


def test_command_reports_and_exits_0_when_all_is_explained(skid_buffer, capsys):
    arguments = parse("stream.skid_buffer", "--count", str(COUNT), "--json")
    assert arguments.run(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mutants"] == COUNT == report["killed"] + report["equivalent"]
    assert report["survivors"] == [] and report["preset"] == "small"
    assert set(report) == {
        *("block", "preset", "seed", "mutants", "killed", "equivalent", "survivors", "wall_s")
    }


def test_command_lists_each_survivor_and_exits_1(skid_buffer, capsys, monkeypatch):
    everything = mutation.checks_of
    monkeypatch.setattr(mutation, "checks_of", lambda *given: everything(*given)[:1])
    arguments = parse("stream.skid_buffer", "--count", str(COUNT), "--proof-seconds", "5")
    assert arguments.run(arguments) == 1
    listed = capsys.readouterr().out.splitlines()
    assert any("skid_buffer.py:" in line and "differs: in cycle" in line for line in listed)


def test_faults_in_some_lines_alone(capsys):
    block = find("stream.queue")
    parameters = block.parameters_class.preset("small")
    every, some = (
        {mutant.line for mutant in create(block, parameters, 8, 1, within).mutants}
        for within in (None, r"fifo\.py:1[56]")
    )
    assert some and all(re.search(r"fifo\.py:1[56]", line) for line in some)
    assert not every <= some
    with pytest.raises(ParameterError, match="has a source line like nothing"):
        create(block, parameters, 8, 1, "nothing")
    with pytest.raises(SystemExit):
        parse("stream.queue", "--within", "(")
    assert "must be a regular expression" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "instance", "other"), [("stream.queue", "fifo", ""), ("topick.scoreboard", "", "none")]
)
def test_faults_in_some_instances_alone(name, instance, other):
    """The queue has no cells of its own, the scoreboard no sub-block."""
    block = find(name)
    parameters = block.parameters_class.preset("small")
    mutants = create(block, parameters, 3, seed=1, instances=(other, instance)).mutants
    assert [(mutant.number, mutant.instance) for mutant in mutants] == [
        (number, instance) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("name", ["stream.queue", "arith.float_add", "kllm.orizuru"])
def test_the_usual_preset_is_one_that_every_block_has(name):
    arguments = parse(name)
    assert find(name).parameters_class.preset(arguments.preset)


def test_unknown_names_are_user_errors():
    for words in (["stream.heap"], ["stream.queue", "--preset", "huge"]):
        arguments = parse(*words)
        with pytest.raises(ParameterError):
            arguments.run(arguments)
