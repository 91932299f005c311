# amaranth: UnusedElaboratable=no
# (components are created only to compare their ports)
"""The cell array: marked as for simulation only; its errors are those of the devices' spread."""

import sys

import numpy as np
import pytest

from golden.algorithms.unicaim.spread import spread_in_levels
from golden.unicaim.cell_array import FRACTION, cell_errors, line_scores
from golden.unicaim.cells import query_planes, row_scores
from hw.__main__ import main
from hw.catalogue import blocks, find
from hw.emit.export import export
from hw.unicaim.array import UnicaimArray
from hw.unicaim.cell_array import CellArray, CellArrayParameters
from hw.unicaim.digital_array import DigitalArray
from sim.testbenches.unicaim.cell_array import testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("unicaim.cell_array")
ODD = CellArrayParameters(rows=5, d=6, key_bits=2, query_bits=2, spread_mv=150, seed=9, contexts=2)


def test_it_is_marked_as_for_simulation_only(monkeypatch, capsys):
    assert [b.name for b in blocks() if b.synthesizable_as] == [BLOCK.name]
    assert CellArray.__doc__.startswith("FOR SIMULATION ONLY")
    assert "for simulation only" in BLOCK.summary
    digital = find(BLOCK.synthesizable_as)
    for block, marked in ((BLOCK, True), (digital, False)):
        sidecar = export(block, block.parameters_class.preset("small")).sidecar
        assert sidecar["simulation_only"] is marked
    monkeypatch.setattr(sys, "argv", ["hw", "synth", BLOCK.name])
    assert main() == 2
    assert capsys.readouterr().err == (
        "error: unicaim.cell_array is for simulation only,"
        " synthesize unicaim.digital_array instead\n"
    )


def test_of_all_blocks_it_is_not_synthesized(monkeypatch, capsys):
    from sim.commands import synth

    names = []
    monkeypatch.setattr(synth, "measure", lambda name, *_: names.append(name) or [])
    options = "--preset small --json --jobs 1 --fresh"
    monkeypatch.setattr(sys, "argv", ["hw", "synth", "all", *options.split()])
    assert main() == 0
    assert "unicaim.digital_array" in names and BLOCK.name not in names


def test_both_arrays_have_the_same_ports():
    small = [
        find(f"unicaim.{kind}_array").parameters_class(rows=4, d=3) for kind in ("cell", "digital")
    ]
    cell, digital = CellArray(small[0]), DigitalArray(small[1])
    assert isinstance(cell, UnicaimArray) and cell.signature == digital.signature


def test_errors_are_drawn_with_the_papers_deviation():
    errors = cell_errors(100, 100, 3, spread_mv=54, seed=1)
    spread = spread_in_levels(0.054) * 2**FRACTION
    assert abs(errors.mean()) < 0.2
    assert errors.std() == pytest.approx(spread, rel=0.02)
    assert np.abs(errors).max() > 3.5 * spread
    assert not np.array_equal(errors, cell_errors(100, 100, 3, spread_mv=54, seed=2))
    p = CellArrayParameters(rows=20, d=10, spread_mv=54)
    assert np.array_equal(np.array(p.errors), cell_errors(20, 10, 3, 54, 1))


def test_line_scores_without_errors_are_the_scores():
    rng = np.random.default_rng(2)
    keys, queries = rng.integers(-4, 5, (9, 16)), rng.integers(-3, 4, (20, 16))
    none = np.zeros((9, 16, 2), np.int64)
    for query, scores in zip(queries, row_scores(keys, queries), strict=True):
        assert np.array_equal(line_scores(keys, query_planes(query, 2), none, 192), scores)


def test_noise_of_a_row():
    """As golden.algorithms.unicaim.spread has it: sqrt(d) spreads for digits of one sign."""
    errors = cell_errors(400, 128, 3, spread_mv=54, seed=3)
    for digit in (1, -1):
        planes = np.full((1, 128), digit)
        noise = line_scores(np.zeros((400, 128), int), planes, errors, 512)
        want = spread_in_levels() * 128**0.5
        assert noise.std() == pytest.approx((want**2 + 1 / 12) ** 0.5, rel=0.1)
    zeros = line_scores(np.zeros((400, 128), int), np.zeros((1, 128), int), errors, 512)
    assert zeros.std() == pytest.approx(spread_in_levels() * 64**0.5, rel=0.12)


def test_an_odd_size_with_spread_under_stalls(shipped_trace):
    compiled = Compiled(BLOCK, ODD)
    for trace in (None, shipped_trace):
        stimulus = testbench.stimulus(ODD, trace, 100, seed=5)
        compiled.check_all(stimulus)


@pytest.mark.campaign
@pytest.mark.parametrize("preset", ["default", "spread", "paper"])
def test_large_presets(preset, shipped_trace):
    p = CellArrayParameters.preset(preset)
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        compiled.check(testbench.stimulus(p, trace, 12, seed=6), "none")
