"""The tables of README.md and docs are what the catalogue and the kept measurements say."""

import dataclasses
import json
import re
import shutil

import pytest

from golden.markdown import table_text
from golden.studies.study import GROUPS, OURS, PAPER, Verdict
from hw.catalogue import blocks, find
from sim.commands import tables

LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
OWN_PAGES = [
    *tables.PAGES,
    "CONTRIBUTING.md",
    "docs/glossary.md",
    *sorted(str(p.relative_to(tables.ROOT)) for p in (tables.ROOT / "examples").rglob("*.md")),
]


@pytest.mark.parametrize("name", tables.PAGES)
def test_page_is_up_to_date(name):
    """Otherwise: make docs."""
    text = (tables.ROOT / name).read_text()
    assert tables.MARK.search(text)
    assert tables.filled(text) == text


def test_claims_of_the_papers_alone_are_counted():
    every = [
        claim
        for pages in tables.PAPERS.values()
        for page in pages.values()
        for claim in json.loads((tables.RESULTS / f"{page}.json").read_text())["claims"]
    ]
    own = [claim["paper"] for claim in every if claim["whose"] == OURS]
    assert "rotated and centred" in " ".join(own)
    total = re.findall(r"\d+", tables.claims()[-1])
    assert sum(map(int, total)) == len(every) - len(own)


def test_every_page_with_claims_of_a_paper_is_counted():
    """And every verdict is in one group."""
    contents = {path.stem: json.loads(path.read_text()) for path in tables.RESULTS.glob("*.json")}
    pages = {
        name
        for name, of in contents.items()
        if "claims" in of and any(claim["whose"] == PAPER for claim in of["claims"])
    }
    assert pages == {page for pages in tables.PAPERS.values() for page in pages.values()}
    assert sorted(v for some in GROUPS.values() for v in some) == sorted(Verdict)


def test_a_bar_in_a_cell_is_no_border():
    assert table_text(["a", "b"], [["|J|", "c"]]).splitlines()[-1] == r"| \|J\| | c |"


def test_every_block_is_listed():
    text = (tables.ROOT / "docs/blocks.md").read_text()
    assert all(f"| `{block.name}` |" in text for block in blocks())
    assert set(json.loads(tables.VERIFICATION.read_text())) == {block.name for block in blocks()}


def test_measured_parameters_are_the_presets():
    """A configuration that has changed since must be measured again."""
    for row in json.loads(tables.SYNTHESIS.read_text()):
        preset = find(row["block"], parts=True).parameters_class.preset(row["preset"])
        assert row["parameters"] == dataclasses.asdict(preset), (row["block"], row["preset"])
        mode = "area, by hierarchy" if row.get("parts") else "speed"
        assert row["mode"] == mode and row["library"] == "NangateOpenCellLibrary"


def anchors(text: str) -> set[str]:
    """The fragments that a page's headings have where it is shown."""
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", OWN_PAGES)
def test_links_lead_somewhere(name):
    page = tables.ROOT / name
    for path, fragment in LINK.findall(page.read_text()):
        if path.startswith("http"):
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{name} links {path}"
        if fragment:
            assert fragment[1:] in anchors(target.read_text()), f"{name} links {path}{fragment}"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of what the command reads and writes."""
    for name in (*tables.PAGES, "docs/results"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (tables.ROOT / name).is_dir() else shutil.copy
        copy(tables.ROOT / name, target)
    # That of all blocks takes longer.
    monkeypatch.setattr(tables, "PAGES", ("README.md", "docs/boards.md", "docs/measured.md"))
    for name in ("SYNTHESIS", "VERIFICATION", "FPGA", "LAYOUT", "RESULTS"):
        path = tmp_path / getattr(tables, name).relative_to(tables.ROOT)
        monkeypatch.setattr(tables, name, path)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    return tmp_path


def test_new_measurements_are_kept_and_shown(run, checkout):
    rows = json.loads(tables.SYNTHESIS.read_text())
    row = next(row for row in rows if row["block"] == "kllm.orizuru")
    new = checkout / "new.json"
    new.write_text(json.dumps([row | {"area_um2": 1234.5, "delay_ps": 500.0}]))
    assert run("tables --check")[0] == 0
    assert run(f"tables --check --add {new}") == (
        1,
        "docs/measured.md: out of date, run make docs\n",
        "",
    )
    assert run("tables") == (0, "docs/measured.md: written\n", "")
    assert "1,234 µm², 2000 MHz" in (checkout / "docs/measured.md").read_text()
    assert len(json.loads(tables.SYNTHESIS.read_text())) == len(rows)
    assert run("tables") == (0, "", "")


def test_an_area_by_hierarchy_has_no_clock(run, checkout):
    rows = json.loads(tables.SYNTHESIS.read_text())
    row = next(row for row in rows if row["block"] == "kllm.orizuru")
    row |= {"block": "lad.lad_tile", "mode": "area, by hierarchy", "area_um2": 4321.0}
    new = checkout / "new.json"
    new.write_text(json.dumps([row | {"memory_bits": 8192, "parts": [{"module": "(top)"}]}]))
    assert run(f"tables --add {new}") == (0, "docs/measured.md: written\n", "")
    page = (checkout / "docs/measured.md").read_text()
    assert "| 4,321 µm² and 8,192 bits, area, by hierarchy |" in page


def test_designs_for_boards_are_kept_and_shown(run, checkout):
    used = {"lut4": 8364, "flipflops": 1234, "dsp": 39, "bram": 0}
    row = {"block": "veda.pe", "configuration": "small", "board": "ulx3s_85f", "used": used}
    row |= {"clock_mhz": 25.0, "fmax_mhz": 51.23, "build": "00", "bitstream": "/some/where"}
    new = checkout / "new.json"
    new.write_text(json.dumps([row]))
    rows = json.loads(tables.FPGA.read_text())
    assert run(f"tables --add {new}") == (0, "docs/boards.md: written\n", "")
    shown = (
        "| ulx3s_85f | `veda.pe` small | 8,364 (10 %) | 1,234 (1 %) | 39 (25 %) | 0 (0 %) | 51.2"
    )
    assert shown in (checkout / "docs/boards.md").read_text()
    kept = json.loads(tables.FPGA.read_text())
    assert len(kept) == len(rows) + 1 and "some" not in tables.FPGA.read_text()


def test_rows_of_layouts_are_kept(run, checkout):
    row = json.loads(tables.LAYOUT.read_text())[0] | {"preset": "fp12", "width_um": 34.56}
    new = checkout / "new.json"
    new.write_text(json.dumps([row]))
    before = len(json.loads(tables.LAYOUT.read_text()))
    assert run(f"tables --add {new}") == (0, "docs/measured.md: written\n", "")
    assert f"`{row['block']}` fp12, {row['mode']}" in (checkout / "docs/measured.md").read_text()
    assert len(json.loads(tables.LAYOUT.read_text())) == before + 1


def test_errors_are_one_sentence(run, checkout):
    wrong = checkout / "wrong.json"
    wrong.write_text('{"area": 1}')
    status, _, error = run(f"tables --add {wrong}")
    assert status == 2
    assert "must hold what `--json` of `python -m sim synth`, `sim layout` or" in error
    readme = checkout / "README.md"
    readme.write_text(readme.read_text().replace("table claims:", "table plans:"))
    status, _, error = run("tables")
    assert status == 1 and error.startswith("error: a table must be one of cores, overview,")
