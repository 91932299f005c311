"""Speed of LAD's tile: what is measured, what follows from it, the page in the docs."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from golden.studies.study import Verdict
from hw.catalogue import find
from hw.lad.tile_parameters import LadTileParameters
from sim.__main__ import parser
from sim.core.design import generate
from sim.drivers.harness.runner import Harness
from sim.studies.lad import measured as measuring
from sim.studies.lad import tile
from sim.studies.lad.machine import GROUPS, MODELS
from sim.studies.lad.measured import Measured, measure
from sim.studies.lad.page import (
    by_positions,
    claims,
    growth,
    kept_rows,
    latency,
    moved,
    read,
    share,
    terms,
)

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def rows():
    return kept_rows()


def test_models_of_the_paper():
    """A token multiplies by every weight once, but for the embedding; LLaMA2 7B has 6.6 G."""
    sizes = {name: model.products for name, model in MODELS.items()}
    assert sizes["LLaMA2 7B"] == pytest.approx(6.607e9, rel=1e-3)
    assert sizes["LLaMA2 13B"] == pytest.approx(12.85e9, rel=1e-2)
    assert sizes["OPT 2.7B"] == pytest.approx(2.65e9, rel=1e-2)
    # At 4096 positions K and V of LLaMA2 7B are 2.1 GB, 1.4 ms at 1.536 TB/s.
    products, attention = MODELS["LLaMA2 7B"].ideal(4096)
    assert products == pytest.approx(6.607e9 / 5.376e12, rel=1e-3)
    assert attention == pytest.approx(2 * 4096 * 32 * 32 * 128 * 2 / 1.536e12)


def test_shares_of_rows(rows):
    """At a counted length its own rows, between two their mean; caches grow with d."""
    some = rows["centres"]
    assert [row.n for row in some] == [512, 1024, 2048, 4096]
    assert moved(some[0]) == pytest.approx(some[0].moved)
    assert moved(some[0], 128) == pytest.approx(some[0].moved + 256)
    assert moved(some[0], 64, 0.5) == pytest.approx(some[0].moved - some[0].active / 2)
    ends = [share(some, n, 64) for n in (1024, 2048)]
    assert ends[0] == pytest.approx(moved(some[1]) / 2048)
    assert share(some, 1536, 64) == pytest.approx(np.mean(ends))
    # All rows as dense attention reads them take the ideal accelerator's time.
    dense = [
        dataclasses.replace(row, **dict.fromkeys(PARTS, 0.0), active=2 * row.n) for row in some
    ]
    fixed = [dataclasses.replace(row, caches=2 * 128 + 7) for row in dense]
    assert share(fixed, 2048, 128) == pytest.approx(1 + (2 * 128 + 7) / 4096)
    assert latency(dense, GROUPS[1]) > latency(dense, GROUPS[1], 0.5) > 0.7
    assert growth(some, 1.0) < growth(some)


PARTS = "g", "identification", "exact", "counters", "written", "large_share"


def test_terms_of_equation_7(rows):
    """By hand, of 100 centres, 2 % large modes, 300 active positions and 4 changed modes."""
    row = dataclasses.replace(
        rows["centres"][2], identification=100 + 3 * 2048 / 64, large_share=0.02, active=600
    )
    expected = (200 + 16 + 40.96) / 2, 2048 / 12, 150, (64 + 300 + 256 + 12) / 3
    assert terms(row, 4) == pytest.approx(expected)


def test_what_the_measurements_show(rows):
    """The port is busy, so that cycles are rows; dense attention is slower from 500 positions."""
    means = by_positions(read(RESULTS / "lad_speed.json"))
    assert [one.positions for one in means] == [64, 125, 250, 500, 1000]
    assert all(one.port > 0.94 * one.cycles for one in means)
    assert [one.positions for one in means if one.cycles < 2 * one.positions] == [500, 1000]
    assert all(one.cycles > 2 * one.positions / 3 for one in means)
    # The algorithm's count on other texts, on both sides of 1000 positions.
    codes = rows["codes, 6 bits, slack 2e-4"]
    assert means[-1].port == pytest.approx(moved(codes[1]), rel=0.1)
    said = claims(means, rows)
    assert said[0].verdict is Verdict.PARTLY and said[-1].ours.startswith("RTL: from 500")


def test_the_tile_that_is_measured():
    assert tile(3, heads=2, kv_heads=1) == LadTileParameters(positions=8, heads=2, kv_heads=1)
    assert tile(500, 9, 3) == LadTileParameters(positions=512)


@pytest.fixture(scope="module")
def small():
    p = LadTileParameters.preset("small")
    design = generate(find("lad.lad_tile"), p)
    return p, design, Harness(design)


def layer(p: LadTileParameters, tokens: int):
    rng = np.random.default_rng(3)
    shapes = ((p.heads, tokens, p.d), (p.kv_heads, tokens, p.d), (p.kv_heads, tokens, p.d))
    return tuple(rng.standard_normal(shape).astype(np.float16) for shape in shapes)


def test_measurements_of_a_small_tile(small):
    """Longer contexts move more rows; where the port is busy, a row is a cycle."""
    p, design, harness = small
    first, last = measure(harness, p, design, layer(p, 48), (20, 40))
    assert isinstance(first, Measured) and (first.positions, last.positions) == (20, 40)
    assert first.port < last.port and first.port <= first.cycles
    assert last.cycles < 2 * last.port


def test_a_wrong_output_is_refused(small, monkeypatch):
    p, design, harness = small
    monkeypatch.setattr(measuring, "compare", lambda *_: ["o differs"])
    with pytest.raises(measuring.ToolError, match=r"20 positions: .*o differs"):
        list(measure(harness, p, design, layer(p, 24), (20,)))


def test_the_command_writes_a_page(tmp_path, capsys):
    """Positions of the shipped trace, in RTL."""
    words = ["locality", "--positions", "20", "--json", "-o", str(tmp_path)]
    arguments = parser().parse_args(words)
    assert arguments.run(arguments) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        (tmp_path / "lad_speed.json").read_text()
    )
    assert (tmp_path / "lad_speed.md").read_text().startswith("# LAD: speed")
    assert (tmp_path / "lad_speed.svg").exists()
