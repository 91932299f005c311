"""``python -m sim timeline``: streams' beats in a run, as a table, JSON or a picture."""

import json
import re

import numpy as np
import pytest

from hw.catalogue import blocks, find
from sim.commands.timeline import MOST, first_run, kept_picture, runs
from sim.core.design import generate
from sim.core.memory import FASTEST
from sim.core.tools import ROOT
from sim.drivers.cocotb.runner import CocotbSimulation
from sim.drivers.run import load_testbench, load_trace
from sim.drivers.timeline.watch import INPUT, INSIDE, OUTPUT, TimelineSimulation, streams_of
from tests.support.pictures import same_drawing
from tests.support.sim.commands import one_sentence

READER = find("stream.sequential_reader")


def smallest(block):
    return block.parameters_class.preset("first")


def test_streams_of_sub_blocks():
    design = generate(READER, smallest(READER))
    found = streams_of(design, depth=0)
    assert found == {"command": INPUT, "response": INPUT, "request": OUTPUT, "o": OUTPUT}
    deeper = streams_of(design, depth=1)
    inside = [name for name, kind in deeper.items() if kind == INSIDE]
    assert inside and all("." in name for name in inside)
    assert {name: kind for name, kind in deeper.items() if kind != INSIDE} == found
    core = find("veda.veda_core")
    nested = streams_of(generate(core, smallest(core)), depth=2)
    assert nested["attention.pe_array.s"] == INSIDE and "attention.o" in nested


@pytest.mark.icarus
@pytest.mark.parametrize("stall", ["none", "bursts"])
def test_beats_are_those_that_the_testbench_sees(stall):
    """In the cycles in which its sinks and its memory see them."""
    p = smallest(READER)
    design = generate(READER, p)
    stimulus = load_testbench(READER).stimulus(p, load_trace(None), 5, 3)
    found = {
        stream.name: stream
        for stream in TimelineSimulation(design).watch(stimulus, stall, 3, streams_of(design))
    }
    (outcome,) = CocotbSimulation(design, "icarus").run([(stimulus, stall)], 3, None, FASTEST)
    assert outcome.failure is None
    np.testing.assert_array_equal(found["o"].beats, outcome.cycles_of["o"])
    np.testing.assert_array_equal(found["request"].beats, outcome.memories["memory"].accepted)
    assert len(found["command"].beats) == 5
    assert bool(len(found["o"].waits)) == (stall != "none")
    for stream in found.values():
        assert not set(stream.beats) & set(stream.waits)


@pytest.mark.icarus
def test_table_json_and_picture_agree(run, tmp_path):
    what = "timeline stream.sequential_reader --vectors 3 --streams command request o"
    status, out, err = run(what)
    assert (status, err) == (0, "") and "request" in out and "response" not in out
    picture = tmp_path / "t.svg"
    options = f"--cycles 2:12 --json -o {picture} --mark request:1=second"
    status, out, err = run(f"{what} {options}")
    found = json.loads(out)
    assert status == 0 and found["cycles"] == [2, 12]
    assert [stream["stream"] for stream in found["streams"]] == ["command", "request", "o"]
    assert all(2 <= cycle < 12 for stream in found["streams"] for cycle in stream["beats"])
    drawn = picture.read_text()
    assert "sequential_reader, small, real data" in re.sub(r"<!-- (.*) -->", r"\1", drawn)
    assert "second" in drawn
    run(f"{what} {options}")
    assert picture.read_text() == drawn


def test_runs_of_cycles():
    assert runs(np.array([], np.int64)) == []
    assert runs(np.array([3, 4, 5, 8, 10, 11])) == [(3, 3), (8, 1), (10, 2)]


@pytest.mark.parametrize(
    "options, sentence",
    [
        ("--streams o p", "--streams: there is no p; known: command, response, "),
        ("--mark p=late", "--mark: p is no stream that is shown"),
        ("--streams o --mark command=first", "--mark: command is no stream that is shown"),
        ("--mark o", "argument --mark: must be STREAM[:BEAT]=TEXT, not o"),
        ("--cycles 5:5", "argument --cycles: must be FIRST:END with FIRST below END, not 5:5"),
        ("-o t.txt", "-o must end in .svg, .png, .pdf, not t.txt"),
        ("--memory latency=0", "latency must be "),
        ("--trace none.npz", "trace none.npz: "),
    ],
)
def test_mistakes_are_one_sentence(run, tmp_path, monkeypatch, options, sentence):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(f"timeline stream.sequential_reader {options}")
    assert (status, out) == (2, "")
    assert err.splitlines()[0].removeprefix("error: ").startswith(sentence)
    assert not list(tmp_path.iterdir())


@pytest.mark.icarus
def test_a_mark_behind_the_last_beat(run, tmp_path):
    picture = tmp_path / "t.svg"
    what = f"timeline stream.sequential_reader --vectors 1 --mark command:1=more -o {picture}"
    status, _, err = run(what)
    assert status == 2 and one_sentence(err) == "--mark: command has 1 beats in these cycles"
    assert not picture.exists()


KEPT = json.loads((ROOT / "docs" / "results" / "timelines.json").read_text())


def test_every_block_has_a_kept_run():
    """With its streams of today; a picture of it is as wide as its cycles."""
    assert [*KEPT] == [block.name for block in blocks()]
    for run in KEPT.values():
        last = max(first + length for s in run["streams"] for first, length in s["beats"])
        assert last == run["cycles"] or last <= MOST < run["cycles"]
    block = find("stream.sequential_reader")
    kinds = streams_of(generate(block, smallest(block)), depth=0)
    assert {s["stream"]: s["kind"] for s in KEPT[block.name]["streams"]} == kinds
    assert "stream.sequential_reader, small, real data" in re.sub(
        r"<!-- (.*) -->", r"\1", kept_picture(block.name, KEPT[block.name])
    )


@pytest.mark.campaign
@pytest.mark.icarus
@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_kept_runs_are_those_of_the_rtl(block):
    assert json.loads(json.dumps(first_run(block, 1))) == KEPT[block.name]


@pytest.mark.parametrize("options", ["all", "all -o t.svg", "all -o t.json --cycles 0:5"])
def test_all_blocks_go_into_a_file(run, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(f"timeline {options}")
    assert (status, out) == (2, "") and one_sentence(err).startswith("all needs -o FILE.json")


DRAWN = [
    line
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for line in page.read_text().splitlines()
    if "-m sim timeline" in line and "docs/images" in line
]


@pytest.mark.campaign
@pytest.mark.icarus
@pytest.mark.parametrize("command", DRAWN, ids=lambda line: line.rpartition("/")[2])
def test_pictures_of_the_pages(run, tmp_path, command):
    """Are what the command beside them draws."""
    call, _, kept = command.partition("-m sim ")[2].rpartition("-o ")
    assert run(f"{call}-o {tmp_path / 'new.svg'}") == (0, "", "")
    assert same_drawing(tmp_path / "new.svg", ROOT / kept)
