"""The core with a fixed adder tree, or a separate softmax: same votes, more cycles."""

import json
from pathlib import Path

import numpy as np
import pytest

from golden.attention.pe_array import outer_product, tiled_product
from hw.catalogue import find
from hw.veda.veda_core import VedaCoreParameters
from sim.__main__ import parser
from sim.core.design import generate
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stalls import PATTERNS
from sim.core.stimulus import compare
from sim.drivers.cocotb.runner import CocotbSimulation
from sim.drivers.harness.runner import Harness
from sim.studies.veda import (
    BASE,
    PAPER,
    VARIANTS,
    averages,
    growing,
    head_cycles,
    speedup,
    tokens_per_second,
    variant,
)
from sim.testbenches.veda.veda_core import testbench

BLOCK = find("veda.veda_core")
DOCS = Path(__file__).parents[2] / "docs"
OTHERS = [options for options in VARIANTS if options != ("flexible", "element_serial")]
SIZES = {"rows": 2, "columns": 2, "arrays": 1}
RNG = np.random.default_rng
SLOW = MemoryTiming((1, 20), reorder=True, seed=3)


@pytest.mark.parametrize("accumulator", ["fp32", "fp16"])
def test_model_of_the_tree_is_close(accumulator):
    """Tiles of 16 and of 1: 2^-10 of the magnitudes, where a row alone gives 2^-11."""
    rng = RNG(1)
    rows = rng.standard_normal((3, 49, 16)).astype(np.float16)
    factors = rng.dirichlet(np.ones(49), 3).astype(np.float16)
    terms = factors[..., None].astype(float) * rows.astype(float)
    size = np.abs(terms).sum(axis=1)
    got = tiled_product(factors, rows, accumulator=accumulator)
    other = outer_product(factors, rows, accumulator=accumulator)
    error = np.abs(got - terms.sum(axis=1)) / size
    assert error.max() < 2.0 ** (-10 if accumulator == "fp32" else -8)
    assert (got != other).any()
    one = tiled_product(factors[:, :1], rows[:, :1], accumulator=accumulator)
    assert (one == factors[:, :1] * rows[:, 0]).all()


def test_formulas_and_the_paper():
    """Both together save the paper's 60 % of the base's cycles; the array almost its 25 %."""
    base = averages(variant(*BASE, 1536))
    less = {o: 100 * (1 - averages(variant(*o, 1536)) / base) for o in VARIANTS}
    assert list(PAPER.values()) == [25, 60]
    flexible = less["flexible", "separate"]
    assert flexible.min() > 21 and flexible.max() < 24.5
    both = less["flexible", "element_serial"]
    assert both.min() > 60 and both.max() < 62
    assert (less["tree", "separate"] == 0).all()
    assert 13 < less["tree_double", "separate"].min() < less["tree_double", "separate"].max() < 18


def test_the_page_of_speeds(tmp_path, capsys):
    """It is the page in the docs, and its figures follow from the formula by hand."""
    arguments = parser().parse_args(["ablation", "--speed", str(tmp_path)])
    assert arguments.run(arguments) == 0
    page = (tmp_path / "veda_speed.md").read_text()
    assert page == (DOCS / "results" / "veda_speed.md").read_text()
    paper = VedaCoreParameters.preset("paper")
    assert f"{4 * 128 * 513 / (2 * 513 + 46):.0f} to {4 * 128 * 1536 / (2 * 1536 + 46):.0f}" in page
    # A weight a cycle for each PE, and 3 cycles more for the rows of each block of 128 columns.
    assert tokens_per_second(paper)[0] == pytest.approx(128e9 / 6.607e9, rel=0.01)
    # The mean of a pair of heads over the tokens generated; a step's other cycles move it little.
    pairs = [(4 * (512 + (n + 1) / 2) + 21) / (4 * (rows + 1) + 21) for n, rows in ENDS]
    steps = [speedup(paper, n, rows / 512) for n, rows in ENDS]
    assert np.allclose(pairs, steps, rtol=0.04)
    assert all(f"{value:.2f}" in page for value in steps)


ENDS = (128, 256), (1024, 102)
"""Tokens generated and rows kept."""


def test_tree_and_softmax_apart_in_icarus(shipped_trace):
    """Random and real steps; cycles as the formula has them."""
    p = variant(*BASE, 32, **SIZES)
    stimuli = [testbench.stimulus(p, data, 8, 1) for data in (None, shipped_trace)]
    stimuli.append(growing(p, 14, 1).stimulus([]))
    design = generate(BLOCK, p)
    simulation = CocotbSimulation(design, "icarus")
    runs = [(stimuli[0], "random"), (stimuli[1], "none"), (stimuli[2], "none")]
    for (stimulus, stall), outcome in zip(runs, simulation.run(runs, 1), strict=True):
        assert outcome.failure is None
        assert compare(stimulus, outcome.outputs, design.outputs, outcome.cycles_of) == []
        assert stall != "none" or outcome.cycles == stimulus.cycles
    assert head_cycles(outcome).tolist() == [p.head_cycles(slots) for slots in range(1, 15)]


@pytest.mark.campaign
@pytest.mark.parametrize("options", OTHERS, ids="-".join)
def test_variants(options, shipped_trace):
    """Several heads, slow memories, stalls; every length, also beyond some tiles."""
    p = VedaCoreParameters(2, 2, 2, 64, 4, 2, 8, "fp32", 8, 4, *options, parallel=1)
    design = generate(BLOCK, p)
    harness = Harness(design)
    for data, steps in ((shipped_trace, 60), (None, 150)):
        stimulus = testbench.stimulus(p, data, steps, 1)
        for stall in PATTERNS:
            for timing in (FASTEST, SLOW):
                outcome = harness.run(stimulus, PATTERNS[stall], 1, timing)
                assert outcome.failure is None
                assert compare(stimulus, outcome.outputs, design.outputs, outcome.cycles_of) == []
                if (stall, timing) == ("none", FASTEST):
                    assert outcome.cycles == stimulus.cycles
    for heads in (1, 3):
        stimulus = growing(p, p.capacity, heads).stimulus([])
        outcome = harness.run(stimulus, PATTERNS["none"], 1, FASTEST)
        assert compare(stimulus, outcome.outputs, design.outputs, outcome.cycles_of) == []
        assert outcome.cycles == stimulus.cycles
        if heads == 1:
            expected = [p.head_cycles(slots) for slots in range(1, p.capacity + 1)]
            assert head_cycles(outcome).tolist() == expected


@pytest.mark.campaign
def test_command(capsys, tmp_path):
    """All variants with 128 PEs and up to 140 rows."""
    picture = tmp_path / "ablation.svg"
    arguments = parser().parse_args(["ablation", "--longest", "140", "--json", "-o", str(picture)])
    assert arguments.run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["dataflow"], row["scheduling"]) for row in found] == list(VARIANTS)
    both = found[-1]
    assert both["measured"]["140"] == 2 * 140 + 46 and both["less_percent"][1] > 60
    assert picture.read_text().startswith("<?xml")
