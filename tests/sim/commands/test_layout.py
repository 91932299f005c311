"""``python -m sim layout`` as a user meets it, and ``python -m sim energy --wires``."""

import json
import sys
from pathlib import Path

import pytest

from sim.commands.layout import submodule
from tests.support.hw import tiny
from tests.support.sim.commands import one_sentence

needs_coloquinte = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="PyPI has coloquinte for Python 3.11 and 3.12 only"
)
SITE = "--site unit=0.5x2"


@pytest.fixture
def tiny_library(tmp_path) -> Path:
    path = tmp_path / "tiny.lib"
    path.write_text(tiny.library().replace("area : 1.5", "area : 2"))
    return path


@needs_coloquinte
def test_what_is_measured(run, tiny_library, tmp_path):
    line = f"layout stream.queue --preset small --liberty {tiny_library} {SITE} --wires 0 0.5"
    place, picture = tmp_path / "queue.def", tmp_path / "queue.svg"
    status, out, _ = run(f"{line} --json --def {place} --picture {picture}")
    assert status == 0
    [row] = json.loads(out)
    assert row["cells"] == place.read_text().count(" + PLACED (") - place.read_text().count("\n  +")
    assert (row["block"], row["preset"], row["mode"]) == ("stream.queue", "small", "speed")
    assert row["width_um"] * row["height_um"] >= row["area_um2"] / 0.7 * 0.97
    none, half = row["with_wires"]
    # Without capacitance, wires cost nothing; with some, they add their length times it.
    assert none["wires_pf"] == 0 and none["delay_ps"] == row["delay_ps"] < half["delay_ps"]
    length = row["wires_mm"] + row["clock_mm"]
    assert half["wires_pf"] == pytest.approx(0.5 * length, rel=0.01) and row["clock_mm"] > 0
    assert "<svg" in picture.read_text()
    status, out, _ = run(line)
    assert status == 0 and f"{row['cells']} cells" in out and "Core of " in out


@needs_coloquinte
@pytest.mark.campaign
def test_energy_with_wires(run):
    """More than without, and more with more; the netlist's function is the same."""
    line = "energy stream.queue --preset small --vectors 20 --runs 2 --json"
    found = []
    for wires in ("", "--wires 0", "--wires 0.1", "--wires 0.2 --utilisation 0.4"):
        status, out, _ = run(f"{line} {wires}")
        assert status == 0
        found.append(json.loads(out))
    plain, none, some, more = found
    assert [row["wires_ff_per_um"] for row in found] == [None, 0, 0.1, 0.2]
    for name in ("settled_fj", "clock_fj", "glitches_fj", "cycles"):
        assert plain[name] == none[name]
    assert none["settled_fj"] < some["settled_fj"] < more["settled_fj"]
    assert none["clock_fj"] < some["clock_fj"] < more["clock_fj"]
    status, out, _ = run(f"{line.removesuffix(' --json')} --wires 0.1")
    assert status == 0 and "With wires of 0.1 fF/um" in out


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("layout unicaim.cell_array", "unicaim.cell_array is for simulation only, place "),
        ("layout stream.queue --picture a.gif", "--picture must end in one of png, svg, pdf"),
        ("layout stream.queue --def /", "/ is a folder, and a file is to be written"),
        ("layout stream.queue --liberty my.lib", "--liberty my.lib needs --site: "),
        ("layout stream.queue --liberty my.lib --site a=1x2", "my.lib: No such file"),
        ("layout stream.queue --site 1x2", "argument --site: must be a name and um"),
        ("layout stream.queue --site a=1", "argument --site: must be a name and um"),
        ("layout stream.queue --site a=1x0", "argument --site: must be a name and um"),
        ("layout stream.queue --utilisation 1", "argument --utilisation: must be a share"),
        ("layout stream.queue --wires -1", "argument --wires: must be fF per um"),
        ("layout stream.queue --wires nan", "argument --wires: must be fF per um"),
        ("layout stream.queue --pieces 0", "argument --pieces: "),
        ("energy stream.queue --wires much", "argument --wires: must be fF per um"),
        ("energy stream.queue --wires 1 --liberty my.lib", "--liberty my.lib needs --site"),
    ],
)
def test_mistakes_are_one_sentence(run, tmp_path, monkeypatch, line, sentence):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(line)
    assert status and out == "" and sentence in one_sentence(err.splitlines()[0])
    assert list(tmp_path.iterdir()) == []


def test_submodules_of_cells():
    """As Yosys names what it flattens; of what was mapped as one, nothing is known."""
    assert submodule("$flatten\\tree.\\unit_0_0.$auto$ff.cc:337:slice$956") == "tree"
    assert submodule("$flatten\\multiply_1.$abc$12$auto$blifparse.cc:557$1") == "multiply_1"
    assert submodule("multiply_1.$abc$12") == "multiply_1"
    assert submodule("$abc$4157$blif$4157$100") == submodule("$auto$ff.cc:337:slice$9") == ""
