"""Faults that leave the tile at work but not as it should be: its idea off, cycles wasted.

One file of Verilog has all of them; another file selects one as a simulation begins.
"""

import dataclasses
import re

import pytest

from golden.lm.commands import open_model
from hw.catalogue import Block, find
from hw.lad.tile_parameters import LadTileParameters
from hw.parameters import Parameters
from sim import __main__ as cli
from sim.commands.engines.lad.lad_tile import engine
from sim.core.design import Design, generate
from sim.core.stimulus import Stimulus
from sim.drivers.run import Simulation, load_testbench, load_trace, stimuli_of
from tests.support.sim.generated import attention_command, write_llama

BLOCK = find("lad.lad_tile")
SMALL = LadTileParameters.preset("small")

FAULTS = {
    "nothing is active but the window": (r"(?P<name>within_\d+) = (?P<value>.*)", "1'h1"),
    "everything is active": (r"(?P<name>within_\d+) = (?P<value>.*)", "1'h0"),
    "no mode changes": (r"(?P<name>changed) = (?P<value>.*)", "1'h0"),
    "a code that ends its row writes the next": (
        r"(?P<name>straddles) = (?P<value>(?P<end>\w+) > 5'h10)",
        r"\g<end> > 5'hf",
    ),
}
"""The assignment that is at fault, and its wrong value."""

SELECTION = "fault.hex"
HEADER = f'  reg [3:0] selection [0:0];\n  initial $readmemh("{SELECTION}", selection);\n'


def with_faults(verilog: str) -> str:
    """The Verilog with all faults, of which the file `SELECTION` switches on one by its number."""
    found = []
    for module in re.split(r"(?m)^(?=module )", verilog):
        text = module
        for number, (line, wrong) in enumerate(FAULTS.values(), 1):
            fault = rf"assign \g<name> = selection[0] == {number} ? {wrong} : (\g<value>);"
            text = re.sub(rf"assign {line};", fault, text)
        if text != module:
            text = re.sub(r"^(module [^;]*;\n)", rf"\g<1>{HEADER}", text)
        found.append(text)
    return "".join(found)


@pytest.fixture
def select(monkeypatch, tmp_path):
    """Run in a folder of its own, and select a fault there."""
    monkeypatch.chdir(tmp_path)

    def select(number: int) -> None:
        (tmp_path / SELECTION).write_text(f"{number:x}\n")

    return select


def faulty(block: Block, parameters: Parameters) -> Design:
    design = generate(block, parameters)
    return dataclasses.replace(design, verilog=with_faults(design.verilog))


def complaint(simulation: Simulation, stimulus: Stimulus) -> str | None:
    """What is wrong with a run in which nothing stalls."""
    ((outcome, found),) = simulation.run([(stimulus, "none")], 1)
    if outcome.failure is not None:
        return outcome.failure
    return str(found[0]) if found else stimulus.wrong_cycles(outcome)


WASTES_CYCLES = len(FAULTS)
"""The fault that changes nothing but what is written over later, and the cycles."""


def test_identification(select):
    """The identification of active positions alone, which has the first two faults."""
    block = find("lad.apid")
    parameters = block.parameters_class.preset("single")
    design = faulty(block, parameters)
    stimulus = load_testbench(block).stimulus(parameters, None, 12, 1)
    for number in range(3):
        select(number)
        found = complaint(Simulation(design, "verilator", "harness"), stimulus)
        assert (found is None) == (number == 0), found


@pytest.mark.campaign
@pytest.mark.parametrize("preset", ["small", "default"])
def test_as_sim_run_does(select, preset):
    """Real and random jobs, as many as by default."""
    parameters = LadTileParameters.preset(preset)
    vectors = load_testbench(BLOCK).default_vectors(parameters)
    stimuli = stimuli_of(BLOCK, parameters, load_trace(None), vectors, 1)
    design = faulty(BLOCK, parameters)
    for number in range(len(FAULTS) + 1):
        select(number)
        simulation = Simulation(design, "verilator", "harness")
        found = [complaint(simulation, stimulus) for stimulus in stimuli]
        print(number, found)
        assert (found == [None] * len(stimuli)) == (number == 0), (number, found)


@pytest.mark.campaign
def test_cycles_alone_tell(select):
    """Where what is written too much is written over later."""
    select(WASTES_CYCLES)
    stimulus = load_testbench(BLOCK).stimulus(SMALL, None, 60, 1)
    simulation = Simulation(faulty(BLOCK, SMALL), "verilator", "harness")
    found = complaint(simulation, stimulus)
    assert re.fullmatch(r"took \d+ cycles where the formula says \d+", found or "nothing"), found


@pytest.mark.campaign
def test_as_sim_generate_does(select, call, tmp_path):
    model = write_llama(tmp_path)
    parameters = engine.parameters(open_model(model)[0].config, 64)
    (tmp_path / "faults.v").write_text(faulty(BLOCK, parameters).verilog)
    for number in range(len(FAULTS) + 1):
        select(number)
        options = f"--tokens 24 --verilog {BLOCK.name}=faults.v --trust"
        status, _, err = call(cli.main, attention_command(model, BLOCK.name, options))
        print(number, err)
        assert status == (number > 0), (number, err)
        assert re.match(r"error: lad.lad_tile, layer \d, token \d+: ", err) or number == 0
