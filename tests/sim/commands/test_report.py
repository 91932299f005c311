"""`python -m sim report` on one small block."""

import json
import os
import re

import pytest
from matplotlib.figure import Figure

from golden import trace as traces
from hw.catalogue import blocks, find
from sim.commands import report
from sim.core import tools
from sim.core.design import generate
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Outcome, ShownRun
from sim.drivers.cocotb.runner import SIMULATORS
from sim.drivers.run import load_testbench, stimuli_of

BLOCK = find("stream.skid_buffer")
VECTORS = 5
NUMBERS = ("vectors", "mismatches", "cycles", "predicted", "wall_s")
COMMAND = f"report {BLOCK.name} --presets small --vectors {VECTORS} --jobs 1 --fresh -o"


@pytest.fixture(scope="module")
def trace():
    return traces.load(traces.shipped()[0])


def test_everything_passes(run, tmp_path):
    tools.require_cocotb()  # a skip, unless in CI
    status, out, err = run(f"{COMMAND} {tmp_path} --json")
    assert status == 0, out
    rows = json.loads(out)
    assert [row["simulator"] for row in rows] == list(SIMULATORS)
    for row in rows:
        assert (row["block"], row["preset"]) == (BLOCK.name, "small")
        if row["simulator"] == "icarus" and not tools.has_icarus():
            assert not os.environ.get("CI"), tools.ICARUS_ADVICE
            assert row["verdict"] == "SKIPPED"
            continue
        # Real and random beats under each pattern; a run takes a cycle more than its beats.
        assert row["vectors"] == 2 * VECTORS * len(PATTERNS) and row["mismatches"] == 0
        assert row["cycles"] == row["predicted"] == 2 * (VECTORS + 1)
        assert row["verdict"] == "pass" and row["reason"] == "" and row["wall_s"] >= 0
    assert os.listdir(tmp_path) == ["index.html"]
    check_page((tmp_path / "index.html").read_text(), rows)


def check_page(page: str, rows: list[dict]):
    shown = [re.findall(r"<td[^>]*>([^<]*)", line) for line in page.split('<tr class="run"')[1:]]
    order = ("block", "verdict", "preset", "simulator", "driver", *NUMBERS)
    assert shown == [[str(row[name]) for name in order] for row in rows]
    vectors = sum(row["vectors"] for row in rows)
    assert f'<h1 class="verdict pass">RTL = model: {vectors} vectors of 1 blocks, 0 differ' in page
    assert BLOCK.name in page and '<script type="application/json"' not in page


def test_rows_are_in_order_and_kept_for_the_next_run(run, tmp_path, monkeypatch, quick):
    """Each simulator has its driver; a kept row is shown as it was, and only passes are kept."""
    monkeypatch.setenv("SENBAZURU_BUILD", str(tmp_path))
    monkeypatch.setattr(report, "SIMULATORS", SIMULATORS)
    verdicts = iter(["pass", "FAIL", "pass", "pass"])
    calls = []

    def run_row(block, preset, simulator, trace, vectors, driver):
        calls.append((preset, simulator, driver))
        return report.Row(block.name, preset, simulator, driver, verdict=next(verdicts))

    monkeypatch.setattr(report, "run_row", run_row)
    command = f"report {BLOCK.name} --presets small,large --jobs 1 --json -o {tmp_path}"
    status, out, _ = run(command)
    assert status == 1
    made = [(row["preset"], row["simulator"], row["driver"]) for row in json.loads(out)]
    pairs = [("verilator", "harness"), ("icarus", "cocotb")]
    assert made == calls == [(p, *pair) for p in ("small", "large") for pair in pairs]
    verdicts = iter(["pass"])
    status, out, _ = run(command)
    again = [(row["preset"], row["simulator"], row["driver"]) for row in json.loads(out)]
    assert (status, again, calls[4:]) == (0, made, [made[1]])
    verdicts = iter(["pass"] * 2)
    assert run(f"{command} --driver cocotb")[0] == 0
    assert calls[5:] == [(preset, "verilator", "cocotb") for preset in ("small", "large")]


@pytest.fixture
def quick(monkeypatch):
    """One simulator, one pattern."""
    monkeypatch.setattr(report, "SIMULATORS", ("verilator",))
    monkeypatch.setattr(report, "PATTERNS", {"none": PATTERNS["none"]})


@pytest.mark.parametrize("fault", ["wrong beat", "wrong formula", "nothing"])
def test_a_failing_block_fails_the_report(run, tmp_path, monkeypatch, quick, fault):
    honest = report.stimuli_of

    def jobs(*arguments, **options):
        made = honest(*arguments, **options)
        if fault == "wrong beat":
            made[1].outputs["o"] = made[1].outputs["o"].copy()
            made[1].outputs["o"][3] ^= 1
        elif fault == "wrong formula":
            made[1].cycles += 1
        return [] if fault == "nothing" else made

    monkeypatch.setattr(report, "stimuli_of", jobs)
    status, out, _ = run(f"{COMMAND} {tmp_path}")
    assert status == 1 and "FAIL" in out and "pass " not in out
    said = {
        "wrong beat": "stall none: transaction 3, stream o, beat 3, field payload, cycle 4: exp",
        "wrong formula": "stall none: took 6 cycles where the formula says 7",
        "nothing": "no transaction was compared",
    }[fault]
    assert f"*** {said}" in out
    page = (tmp_path / "index.html").read_text()
    assert re.search(rf'<p class="FAIL">{BLOCK.name} small in verilator: FAIL: {said}', page)
    assert '<td class="FAIL">FAIL' in page and "<details open>" in page
    assert "RTL and model differ: 1 of 1 runs failed" in page


def test_table_is_never_too_narrow(run, tmp_path, monkeypatch, quick):
    monkeypatch.setenv("COLUMNS", "20")
    status, out, _ = run(f"{COMMAND} {tmp_path}")
    assert status == 0 and out.endswith(f"wrote {tmp_path / 'index.html'}\n")
    (line,) = (line for line in out.splitlines() if BLOCK.name in line)
    cells = [cell.strip() for cell in line.split("│")[1:-1]]
    assert cells == [BLOCK.name, "small", "verilator", "harness", "10", "0", "12", "12", "pass"]


def test_missing_icarus_is_loud_but_no_failure(run, tmp_path, monkeypatch, quick):
    monkeypatch.setattr(report, "SIMULATORS", SIMULATORS)
    monkeypatch.setattr(tools, "has_icarus", lambda: False)
    status, out, _ = run(f"{COMMAND} {tmp_path}")
    assert status == 0
    (line,) = (line for line in out.splitlines() if "icarus" in line and BLOCK.name in line)
    assert "SKIPPED" in line and "pass" not in line
    assert f"*** Icarus is not installed; {tools.ICARUS_ADVICE}" in out.splitlines()
    assert "SKIPPED: Icarus is not installed" in (tmp_path / "index.html").read_text()


def test_a_preset_that_no_block_has_is_one_sentence(run, tmp_path):
    status, _, err = run(f"report {BLOCK.name} --presets huge -o {tmp_path / 'out'}")
    assert status == 2 and err.startswith("error: preset must be ") and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


SHOWN = (
    "kllm.orizuru",
    "veda.veda_core",
    "topick.pe_lane",
    "lad.apid",
    "unicaim.digital_array",
    "unicaim.cell_array",
    "unicaim.serial_array",
)


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_blocks_with_pictures_are_the_known_ones(block):
    assert hasattr(load_testbench(block), "shown") == (block.name in SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_a_picture_shows_the_outputs_and_says_what(name, trace):
    """The model's outputs stand in for a simulator's; a picture of none fails."""
    block = find(name)
    design = generate(block, block.parameters_class.preset("first"))
    stimulus = stimuli_of(block, design.parameters, trace, 20, 1)[0]
    outcome = Outcome(stimulus.outputs, {}, 1, 1)
    figure = Figure()
    caption = load_testbench(block).shown(ShownRun.of(design, stimulus, outcome), figure)
    assert caption.endswith(".") and len(caption) > 40
    assert all(axes.has_data() for axes in figure.axes)
    empty = Outcome({name: of[:0] for name, of in stimulus.outputs.items()}, {}, 1, 1)
    with pytest.raises((IndexError, ValueError)):
        load_testbench(block).shown(ShownRun.of(design, stimulus, empty), Figure())
