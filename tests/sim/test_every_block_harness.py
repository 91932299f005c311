"""Every block by the compiled harness: any trace, every stall pattern, and equal to cocotb."""

import dataclasses
import re

import numpy as np
import pytest

from golden import trace as traces
from golden.trace import Trace
from hw.catalogue import blocks, find
from sim.core.design import generate
from sim.core.result import RunResult
from sim.core.stalls import PATTERNS
from sim.core.tools import DRIVERS
from sim.drivers import run as runs
from sim.drivers.harness.verilated import HUGE
from sim.drivers.run import Simulation, load_testbench, stimuli_of
from tests.support.campaign import suite_takes


def first_preset(block):
    """The smallest configuration."""
    return block.parameters_class.preset("first")


def random_trace(kind: str, tokens: int = 6, d: int = 24) -> Trace:
    rng = np.random.default_rng(5)

    def normal(*shape, dtype=np.float32):
        return rng.normal(size=shape).astype(dtype)

    attention = {
        "q": normal(2, 4, tokens, d),
        "k": normal(2, 2, tokens, d, dtype=np.float16),
        "v": normal(2, 2, tokens, d, dtype=np.float64),
        "scale": d**-0.5,
    }
    activations = {"x": {"a.b": normal(tokens, d), "c": normal(3, 2 * d + 1, dtype=np.float64)}}
    weights = {"w": {"up": normal(2 * d, 5)}}
    return {
        "attention": lambda: Trace(**attention),
        "activations": lambda: Trace(**activations),
        "weights": lambda: Trace(**weights),
        "everything": lambda: Trace(**attention, **activations, **weights),
        "one number": lambda: Trace(x={"only": normal(1, 1)}),
        "huge": lambda: Trace(x={"huge": 1e6 * normal(tokens, d, dtype=np.float64)}),
    }[kind]()


SOME = ("everything", "one number")
STALLS = ("none", "bursts")
OTHERS = ("attention", "activations", "weights", "huge")


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(SOME, id="some"),
        pytest.param(OTHERS, id="others", marks=pytest.mark.campaign),
    ],
)
@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_any_trace_fits_any_block(block, kinds, tmp_path):
    """The trace is cut or repeated, with a note; with and without stalls."""
    parameters = first_preset(block)
    design = generate(block, parameters)
    vectors = 30 if design.instances < HUGE else 4
    simulation = Simulation(design, "verilator", "harness")
    for kind in kinds:
        path = tmp_path / f"{kind}.npz"
        traces.save(path, random_trace(kind))
        stimulus = load_testbench(block).stimulus(parameters, traces.load(path), vectors, seed=1)
        result = RunResult(block.name, "first", "verilator", "harness", 1, "all")
        pairs = [(stimulus, stall) for stall in STALLS]
        for (_, stall), outcome in zip(pairs, simulation.run(pairs, seed=1), strict=True):
            runs.add(result, stimulus, stall, *outcome)
        assert result.passed, (kind, result.first_mismatch, result.failures)
        assert result.transactions == len(STALLS) * vectors
        assert result.fewest <= result.cycles <= result.predicted
        notes = " ".join(stimulus.notes)
        assert re.search(r"\bk\b" if kind == "attention" else r"\b[kqvxw]\b", notes)
        if kind == "one number":
            assert "repeated" in notes
        else:
            assert re.search(r"cut|joined|first|repeated", notes)


# Compiling a design for cocotb's Verilator takes seconds, and the drivers are the same for all.
BOTH_DRIVERS = ("stream.queue", "arith.float_add", "kllm.orizuru")


@pytest.mark.parametrize("name", suite_takes(BOTH_DRIVERS, [block.name for block in blocks()]))
def test_both_drivers_see_the_same(name):
    """Outputs and their cycles are the same with both drivers."""
    block = find(name)
    parameters = first_preset(block)
    if name == "topick.topick_core":  # an observed logarithm means nothing before it is known
        parameters = dataclasses.replace(parameters, observe=False)
    trace = runs.load_trace(None)
    vectors = min(20, load_testbench(block).default_vectors(parameters))
    drivers = [Simulation(generate(block, parameters), "verilator", d) for d in DRIVERS]
    stimuli = stimuli_of(block, parameters, trace, vectors, seed=2)
    outcomes = [
        driver.run([(stimulus, "none") for stimulus in stimuli], seed=2) for driver in drivers
    ]
    for stimulus, (one, found), (other, also_found) in zip(stimuli, *outcomes, strict=True):
        assert found == also_found == []
        assert one.failure is None and other.failure is None
        assert one.cycles == other.cycles
        assert stimulus.wrong_cycles(one) is None
        for name in stimulus.outputs:
            assert np.array_equal(one.outputs[name], other.outputs[name])
            assert list(one.cycles_of[name]) == list(other.cycles_of[name])


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_every_block_under_every_stall(block):
    parameters = first_preset(block)
    result = runs.run(block, "first", parameters, driver="harness")
    assert result.stall == "all"
    assert result.passed, (result.first_mismatch, result.failures)
    vectors = load_testbench(block).default_vectors(parameters)
    assert result.transactions == 2 * len(PATTERNS) * vectors
