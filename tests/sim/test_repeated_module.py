"""A module of a design as a library that its instances call: the design stays the same."""

import dataclasses
import re

import pytest

from hw.catalogue import find
from hw.parameters import ParameterError
from sim.core.design import generate
from sim.core.stalls import PATTERNS
from sim.core.tools import SIMULATORS
from sim.drivers.harness import verilated
from sim.drivers.run import Simulation, stimuli_of

ARRAY, TREE = "unicaim.cell_array", "arith.adder_tree"


def small(name: str):
    block = find(name)
    return generate(block, block.parameters_class.preset("first"))


@pytest.mark.parametrize(
    ("name", "module", "times"), [(ARRAY, "cell_row", 8), (TREE, "float_add", 4)]
)
def test_it_is_the_module_of_which_most_copies_are(monkeypatch, name, module, times):
    design = small(name)
    assert verilated.repeated_module(design) is None  # not of a design that fits
    monkeypatch.setattr(verilated, "ENORMOUS", design.instances)
    found = verilated.repeated_module(design)
    assert found == f"{design.module.removesuffix('_streamed')}__{module}"
    assert design.below(design.module)[found] == times
    rest = dataclasses.replace(design, verilog=verilated.without_module(design.verilog, found))
    assert set(design.modules) - set(rest.modules) == {found}


def test_instances_below_instances_count():
    text = "module {}\n  {} a (\n  );\n  {} b (\n  );\nendmodule\n"
    verilog = text.format("top", "middle", "middle") + text.format("middle", "leaf", "leaf")
    verilog += "module leaf\nendmodule\n"
    design = dataclasses.replace(small(TREE), module="top", verilog=verilog)
    assert design.instances == 6
    assert design.below("top") == {"middle": 2, "leaf": 4}
    assert design.below("leaf") == {}


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_cocotb_does_not_begin_to_build_what_will_not_fit(monkeypatch, simulator):
    monkeypatch.setattr(f"{Simulation.__module__}.ENORMOUS", 4)
    with pytest.raises(ParameterError, match=f"has 5 module .*{simulator}.*; use --driver harness"):
        Simulation(small(TREE), simulator)


def results(design, trace):
    """Outcomes and mismatches of real and random data, under every stall pattern."""
    stimuli = stimuli_of(design.block, design.parameters, trace, 40, seed=1)
    runs = [(stimulus, stall) for stall in PATTERNS for stimulus in stimuli]
    return Simulation(design, "verilator", "harness").run(runs, seed=1)


@pytest.mark.campaign
@pytest.mark.parametrize("systemverilog", [True, False])
@pytest.mark.parametrize("name", [ARRAY, TREE])
def test_with_a_library_it_is_the_same_design(monkeypatch, shipped_trace, name, systemverilog):
    """The library of one has a clock, of the other none; a user's own file is Verilog-2005."""
    design = dataclasses.replace(small(name), systemverilog=systemverilog)
    expected = results(design, shipped_trace)
    monkeypatch.setattr(verilated, "ENORMOUS", 1)
    found = results(design, shipped_trace)
    for (outcome, mismatches), (without, _) in zip(found, expected, strict=True):
        assert outcome.failure is None and not mismatches
        assert outcome.cycles == without.cycles


@pytest.mark.campaign
def test_a_fault_in_the_library_is_found(monkeypatch, shipped_trace):
    monkeypatch.setattr(verilated, "ENORMOUS", 1)
    design = small(TREE)
    name = verilated.repeated_module(design)
    body = design.bodies[name]
    faulty = re.sub(r"(assign o = )(.*);", r"\1~(\2);", body, count=1)
    assert faulty != body
    design = dataclasses.replace(design, verilog=design.verilog.replace(body, faulty))
    assert any(mismatches for _, mismatches in results(design, shipped_trace))
