"""`python -m sim report` on one small block."""

import base64
import json
import os
import re
import xml.etree.ElementTree as xml

import pytest

from golden import trace as traces
from hw.catalogue import BLOCKS, find
from sim import report, tools
from sim.cocotb_runner import SIMULATORS
from sim.stall import PATTERNS

BLOCK = find("stream.skid_buffer")
VECTORS = 5
COMMAND = f"report {BLOCK.name} --presets small --vectors {VECTORS} --jobs 1 -o"


@pytest.fixture(scope="module")
def trace():
    return traces.load(traces.shipped()[0])


def test_everything_passes(run, tmp_path):
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
        assert row["verdict"] == "pass" and row["reason"] == "" and row["wall_s"] > 0
    assert os.listdir(tmp_path) == ["index.html"]
    check_page((tmp_path / "index.html").read_text(), rows)


def check_page(page: str, rows: list[dict]):
    """Self-contained: nothing in it is fetched from anywhere."""
    sources = re.findall(r'(?:src|href)\s*=\s*"([^"]*)"', page)
    assert len(sources) == 1 and all(s.startswith("data:image/") for s in sources)
    assert not re.search(r"<script|<link|@import|url\(", page)
    assert "http" not in page.replace("http-equiv", "")
    cells = [re.findall(r"<td[^>]*>([^<]*)", line) for line in page.split("<tr>")[2:]]
    for row, shown in zip(rows, cells, strict=True):
        numbers = [str(row[k]) for k in ("vectors", "mismatches", "cycles", "predicted", "wall_s")]
        assert shown[:3] == [row["block"], row["preset"], row["simulator"]]
        assert shown[3:8] == numbers and shown[8].startswith(row["verdict"])
    kind, image = sources[0].split(",", 1)
    assert kind == "data:image/svg+xml;base64"
    picture = xml.fromstring(base64.b64decode(image))
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}path"))) > 10
    assert BLOCK.summary in page and BLOCK.source in page


def test_several_at_a_time(run, tmp_path):
    """The same rows in the same order."""
    command = (
        f"report {BLOCK.name} --presets small,default --vectors {VECTORS} --json -o {tmp_path}"
    )
    (status, one, _), (also, other, _) = (run(f"{command} --jobs {n}") for n in (1, 2))
    assert status == also == 0
    rows, others = json.loads(one), json.loads(other)
    for row in [*rows, *others]:
        row.pop("wall_s")
    assert rows == others and len(rows) == 2 * len(SIMULATORS)


@pytest.fixture
def quick(monkeypatch):
    """One simulator, one pattern."""
    monkeypatch.setattr(report, "SIMULATORS", ("verilator",))
    monkeypatch.setattr(report, "PATTERNS", {"none": PATTERNS["none"]})


@pytest.mark.parametrize("fault", ["wrong beat", "wrong formula", "nothing"])
def test_a_failing_block_fails_the_report(run, tmp_path, monkeypatch, quick, fault):
    honest = report.jobs_of

    def jobs(*arguments, **options):
        made = honest(*arguments, **options)
        if fault == "wrong beat":
            made[1].outputs["o"] = made[1].outputs["o"].copy()
            made[1].outputs["o"][3] ^= 1
        elif fault == "wrong formula":
            made[1].cycles += 1
        return [] if fault == "nothing" else made

    monkeypatch.setattr(report, "jobs_of", jobs)
    status, out, _ = run(f"{COMMAND} {tmp_path}")
    assert status == 1 and "FAIL" in out and "pass " not in out
    said = {
        "wrong beat": "stall none: transaction 3, stream o, beat 3, field payload, cycle 4: exp",
        "wrong formula": "stall none: took 6 cycles where the formula says 7",
        "nothing": "no transaction was compared",
    }[fault]
    assert f"*** {said}" in out
    page = (tmp_path / "index.html").read_text()
    assert f'<td class="FAIL">FAIL: {said}' in page


def test_table_is_never_too_narrow(run, tmp_path, monkeypatch, quick):
    monkeypatch.setenv("COLUMNS", "20")
    status, out, _ = run(f"{COMMAND} {tmp_path}")
    assert status == 0 and out.endswith(f"wrote {tmp_path / 'index.html'}\n")
    (line,) = (line for line in out.splitlines() if BLOCK.name in line)
    cells = [cell.strip() for cell in line.split("│")[1:-1]]
    assert cells == [BLOCK.name, "small", "verilator", "10", "0", "12", "12", "pass"]


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
    assert status == 1 and err.startswith("error: preset must be ") and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_bad_names_are_one_sentence(run, tmp_path):
    for command, sentence in [
        ("stream.heap", "block must be one of"),
        (f"{BLOCK.name} --trace {tmp_path}/no.npz", f"trace {tmp_path}/no.npz: there is no such"),
    ]:
        status, out, err = run(f"report {command} -o {tmp_path / 'out'}")
        assert status == 1 and out == "" and err.startswith(f"error: {sentence}")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_every_block_has_a_picture_and_says_what_it_shows(block, trace):
    image, caption = report.picture(block, trace)
    drawn = base64.b64decode(image.removeprefix("data:image/svg+xml;base64,"))
    assert xml.fromstring(drawn).tag.endswith("svg")
    assert caption.endswith(".") and len(caption) > 40
