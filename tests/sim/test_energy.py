"""Testbenches on mapped netlists, and what their toggles cost."""

import dataclasses
import json

import pytest

from hw.catalogue import find
from hw.emit.export import to_rtlil
from sim.checks.gate_run import RESET, GateRun
from sim.core.design import generate
from sim.core.tools import ToolError
from sim.drivers.run import load_testbench, load_trace
from sim.synth import libraries
from sim.synth.flow import Mapper
from sim.synth.netlist import Netlist
from sim.synth.power import Energies
from tests.support.sim.commands import one_sentence

BLOCK = find("stream.sequential_reader")
PARAMETERS = BLOCK.parameters_class.preset("first")


@pytest.fixture(scope="module")
def netlist(tmp_path_factory) -> Netlist:
    rtlil = to_rtlil(BLOCK.create(PARAMETERS), "unit")
    library = libraries.find(None)
    return Mapper(rtlil, "unit", library, tmp_path_factory.mktemp("unit")).map("area").netlist


def ran(netlist: Netlist, *seeds: int, toggle: float = 1.0):
    nets = {net for cell in netlist.cells for net in cell.connections.values() if net is not None}
    costs = Energies(dict.fromkeys(nets, toggle), 3.0, 0.5)
    testbench, trace = load_testbench(BLOCK), load_trace(None)
    stimuli = [testbench.stimulus(PARAMETERS, trace, 4, seed) for seed in seeds]
    design = generate(BLOCK, PARAMETERS)
    return GateRun(design, netlist, libraries.find(None), costs).run(stimuli), stimuli


def test_a_netlist_does_what_the_model_does(netlist):
    """With a memory; in the cycles of the formula."""
    found, stimuli = ran(netlist, 0, 1, 2)
    assert found.cycles == max(stimulus.cycles for stimulus in stimuli)
    words = [len(stimulus.outputs["o"]) for stimulus in stimuli]
    assert found.answers == {"response": sum(words) / 3}
    assert found.settled > found.cycles and (found.clock, found.leakage) == (3.0, 0.5)
    twice, _ = ran(netlist, 0, 1, 2, toggle=2.0)
    assert twice.settled == pytest.approx(2 * found.settled)


def test_runs_side_by_side_are_those_alone(netlist):
    """A run that has ended toggles nothing but what its last beat leaves behind."""
    first, second, both = (ran(netlist, *seeds)[0].settled for seeds in ((0,), (1,), (0, 1)))
    assert first != second and both == pytest.approx((first + second) / 2, abs=4)


def test_a_wrong_netlist_is_found(netlist):
    """A gate whose input is a constant instead, among the first six."""
    wrong = 0
    for cell in [cell for cell in netlist.cells if len(cell.connections) == 3][:6]:
        pin = next(name for name in cell.connections if name in ("A", "B"))
        pins = cell.connections | {pin: None}
        cells = [
            dataclasses.replace(of, connections=pins) if of is cell else of for of in netlist.cells
        ]
        faulty = dataclasses.replace(netlist, cells=cells)
        try:
            ran(faulty, 0)
        except ToolError as error:
            assert "stream.sequential_reader" in str(error)
            wrong += 1
    assert wrong >= 2


@pytest.mark.parametrize(
    "options, sentence",
    [
        ("unicaim.cell_array", "unicaim.cell_array is for simulation only, measure "),
        ("arith.exp", "arith.exp has no streams; "),
        ("stream.queue --runs 65", "argument --runs: "),
        ("stream.queue --vectors 0", "argument --vectors: "),
    ],
)
def test_mistakes_are_one_sentence(run, options, sentence):
    status, out, err = run(f"energy {options}")
    assert (status, out) == (2, "") and one_sentence(err.splitlines()[0]).startswith(sentence)


@pytest.mark.campaign
def test_the_command(run):
    line = "energy stream.queue --preset small --vectors 20 --runs 2"
    status, out, _ = run(line)
    assert status == 0 and "Every output of the netlist equals the model's" in out
    status, out, _ = run(f"{line} --json")
    row = json.loads(out)
    assert row["beats"] == {"i": 20.0} and row["results"] == {"o": 20.0}
    assert row["settled_fj"] > 0 and row["glitches_fj"] >= 0 and row["flipflops"] > 0
    assert row["cycles"] >= 20 and RESET == 2
