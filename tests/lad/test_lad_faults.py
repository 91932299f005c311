"""Faults that leave the tile at work: its idea off, cycles wasted.

`tests/sim/test_ideas.py` has them in the default tile and in a language model.
"""

import dataclasses
import re

import pytest

from hw.catalogue import Block, find
from hw.parameters import Parameters
from sim.core.design import generate
from sim.core.stimulus import Stimulus
from sim.drivers.run import Simulation, load_testbench, load_trace, stimuli_of
from tests.support.ideas import IDEAS, CoreWithoutIdea, Idea

BLOCK = find("lad.lad_tile")
SMALL = BLOCK.parameters_class.preset("small")
FAULTS = IDEAS[BLOCK.name]
WASTES_CYCLES = FAULTS[-1]
"""What it writes too much is written over later, and takes cycles."""


class Faulty:
    """A design of which one fault at a time is switched on."""

    def __init__(self, folder, block: Block, parameters: Parameters, faults: list[Idea]):
        design = generate(block, parameters)
        self._core = CoreWithoutIdea(folder, design, faults)
        self._design = dataclasses.replace(design, verilog=self._core.path.read_text())

    def complaint(self, fault: Idea | None, stimulus: Stimulus) -> str | None:
        """What is wrong with a run in which nothing stalls."""
        self._core.select(fault)
        simulation = Simulation(self._design, "verilator", "harness")
        ((outcome, found),) = simulation.run([(stimulus, "none")], 1)
        if outcome.failure is not None:
            return outcome.failure
        return str(found[0]) if found else stimulus.wrong_cycles(outcome)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The present folder, in which simulations read which fault is on."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_identification(folder):
    """The identification of active positions alone, which has the first two faults."""
    block = find("lad.apid")
    parameters = block.parameters_class.preset("single")
    module = generate(block, parameters).module
    faults = [dataclasses.replace(x, module=module) for x in FAULTS if x.module == "apid"]
    faulty = Faulty(folder, block, parameters, faults)
    stimulus = load_testbench(block).stimulus(parameters, None, 12, 1)
    found = [faulty.complaint(fault, stimulus) for fault in (None, *faults)]
    assert len(found) == 3 and found[0] is None and None not in found[1:], found


@pytest.mark.campaign
def test_as_sim_run_does(folder):
    """Real and random jobs of the small tile, as many as by default."""
    faulty = Faulty(folder, BLOCK, SMALL, FAULTS)
    vectors = load_testbench(BLOCK).default_vectors(SMALL)
    stimuli = stimuli_of(BLOCK, SMALL, load_trace(None), vectors, 1)
    for fault in (None, *FAULTS):
        found = [faulty.complaint(fault, stimulus) for stimulus in stimuli]
        assert (found == [None] * len(stimuli)) == (fault is None), (fault, found)


@pytest.mark.campaign
def test_cycles_alone_tell(folder):
    """Where what is written too much is written over later."""
    stimulus = load_testbench(BLOCK).stimulus(SMALL, None, 60, 1)
    found = Faulty(folder, BLOCK, SMALL, FAULTS).complaint(WASTES_CYCLES, stimulus)
    assert re.fullmatch(r"took \d+ cycles where the formula says \d+", found or "nothing"), found
