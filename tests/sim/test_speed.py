"""Emitting equal modules once changes sizes and times, and nothing else."""

import argparse
import dataclasses
import functools
import re

import numpy as np
import pytest

from hw.catalogue import find
from hw.kllm.orizuru import OrizuruParameters
from sim.commands import bench as speed
from sim.core.design import generate
from sim.core.stalls import PATTERNS
from sim.core.tools import compiled_folder
from sim.drivers.run import Simulation, load_trace, stimuli_of

ORIZURU = find("kllm.orizuru")
SMALL = OrizuruParameters(n=16, k=4, lanes=4, radix=4)  # four leaves, one merge for each end


@functools.cache
def design(way: str, parameters: OrizuruParameters = SMALL):
    verilog = speed.emit(way, ORIZURU, parameters)
    return dataclasses.replace(generate(ORIZURU, parameters), verilog=verilog)


def leaf_modules(way: str, parameters: OrizuruParameters = SMALL) -> int:
    return sum(re.search(r"leaf(_\d+)?$", m) is not None for m in design(way, parameters).modules)


def code(verilog: str) -> list[str]:
    """Its lines but comments, of which a design has some for its users."""
    return [line for line in verilog.splitlines() if line and not line.lstrip().startswith("//")]


def test_exported_is_what_the_project_exports():
    found = code(speed.emit("exported", ORIZURU, SMALL))
    assert len(found) > 100 and found == code(generate(ORIZURU, SMALL).verilog)


@pytest.mark.parametrize("leaves", [1, 4, 7])
def test_one_module_for_equal_leaves(leaves):
    parameters = dataclasses.replace(SMALL, n=4 * leaves)
    assert leaf_modules("exported", parameters) == 1
    assert leaf_modules("unshared", parameters) == leaves


def test_all_ways_have_the_same_instances():
    exported, unshared = design("exported"), design("unshared")
    assert design("shared").modules == exported.modules
    # A leaf holds two tournaments, a merge one; the output buffer is the last.
    assert exported.instances == unshared.instances == 4 * 3 + 2 * 2 + 1
    assert len(unshared.modules) == unshared.instances + 1
    # The top, a leaf and its tournament of two, a merge and its tournament of four, the buffer.
    assert len(exported.modules) == 6


def test_all_ways_behave_the_same():
    simulations = {
        way: Simulation(design(way), "verilator", "harness") for way in ("exported", "unshared")
    }
    for stimulus in stimuli_of(ORIZURU, SMALL, load_trace(None), vectors=200, seed=7):
        for stall in PATTERNS:
            outcome = {}
            for way, simulation in simulations.items():
                [(outcome[way], found)] = simulation.run([(stimulus, stall)], seed=3)
                assert outcome[way].failure is None and not found
            exported, unshared = outcome.values()
            assert exported.cycles == unshared.cycles
            np.testing.assert_array_equal(exported.outputs["o"], unshared.outputs["o"])
            np.testing.assert_array_equal(exported.cycles_of["o"], unshared.cycles_of["o"])


def test_a_compiler_over_the_limit_is_ended(monkeypatch, tmp_path):
    monkeypatch.setenv("SENBAZURU_BUILD", str(tmp_path))
    emission = speed.measure_emission("exported", ORIZURU, SMALL, limit=0.2)
    assert emission.modules == 6 and emission.verilog_bytes > 1000
    assert emission.build_s is None and emission.cycles_per_s is None
    assert compiled_folder() == tmp_path / "compiled"
    assert not list(tmp_path.iterdir())


def test_speeds_of_the_harness():
    speeds = list(speed.measure_speeds(find("stream.queue"), "default", [], cycles=500))
    assert [s.stall for s in speeds] == list(PATTERNS)
    for s in speeds:
        assert s.cycles >= 500 and s.cycles_per_s > 0 and s.start_s > 0


def test_a_wrong_answer_has_no_speed():
    subject = design("exported")
    stimulus = speed.stimulus_of(ORIZURU, SMALL, cycles=100)
    stimulus.outputs["o"][5] ^= 1
    with pytest.raises(speed.ToolError, match="fails its check, stall none: transaction"):
        speed.best_time(Simulation(subject, "verilator", "harness"), stimulus, "none")


@pytest.mark.parametrize("as_json", [False, True])
def test_output(monkeypatch, capsys, as_json):
    made = speed.Speed("stream.queue", "default", "harness", "none", 1000, 0.0001, 2_000_000)
    emissions = {
        "exported": speed.Emission("exported", 7, 255_424, 1.6, 31.6, 40_000),
        "unshared": speed.Emission("unshared", 422, 4_980_526, 28.4),
    }
    monkeypatch.setattr(speed, "WAYS", emissions)
    monkeypatch.setattr(speed, "CONFIGURATIONS", [("stream.queue", "default")])
    monkeypatch.setattr(speed, "measure_speeds", lambda *_: [made])
    monkeypatch.setattr(speed, "measure_emission", lambda way, *_: emissions[way])
    parser = argparse.ArgumentParser()
    speed.register(parser.add_subparsers())
    arguments = parser.parse_args(["bench", "--limit", "60", *["--json"][: int(as_json)]])
    assert arguments.run(arguments) == 0
    output = capsys.readouterr().out
    if as_json:
        assert '"cycles_per_s": 2000000' in output and '"build_s": null' in output
    else:
        assert "2,000,000" in output and "> 60 (wall)" in output
