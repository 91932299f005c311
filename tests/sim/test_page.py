"""The page of `sim demo` and `sim report`: its links, its data, its diagrams."""

import dataclasses
import html
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from golden.studies.study import PAPER
from hw.catalogue import blocks, find
from sim.commands.page import write_page
from sim.commands.page.cards import claims
from sim.commands.page.diagram import OUTSIDE, drawn, route
from sim.commands.page.tiles import PAPERS
from sim.commands.report import Row
from sim.core.tools import ROOT
from tests.support.sim.story import story

META = {"model": "tiny.gguf", "text": "a text"}


def row(name: str, **fields) -> Row:
    return Row(name, "small", "verilator", "harness", vectors=60, cycles=7, predicted=7, **fields)


FORMULAS = ((7, 7), (5, 9), (None, None))
PICTURE = {"image": "data:image/svg+xml;base64,AAAA", "caption": "A run.", "parameters": "n = 4"}


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> tuple[Path, str]:
    """A page with everything on it."""
    rows = [row("lad.vpu", picture=PICTURE), row("kllm.orizuru")]
    folder = tmp_path_factory.mktemp("page") / "a folder"
    folder.mkdir()
    path = write_page(folder, rows, blocks(), META, story(), ["kllm.kllm_core is left out."])
    return path, path.read_text()


def anchors(path: Path) -> set[str]:
    """Of a Markdown page, as forges make them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", path.read_text(), re.M):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


def test_every_link_resolves(page):
    path, text = page
    links = {html.unescape(link) for link in re.findall(r'href="([^"]*)"', text)} - {"data:,"}
    inside = {link for link in links if link.startswith("#")}
    assert inside >= {"#story", "#papers", "#blocks", "#runs", "#run-lad.vpu-small-verilator"}
    assert all(f'id="{link[1:]}"' in text for link in inside)
    assert len(links - inside) > 30
    for link in links - inside:
        name, _, anchor = link.partition("#")
        file = path.parent / name
        assert file.is_file() and not os.path.isabs(name), link
        assert not anchor or anchor in anchors(file), link


def test_nothing_is_fetched(page):
    _, text = page
    sources = re.findall(r'\bsrc="([^"]*)"', text)
    assert sources == [PICTURE["image"]]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\((?!#)", text)


def test_text_is_shown_without_a_script_and_as_text(page):
    _, text = page
    spoken = story()
    shown = re.findall(r'<span class="token[^>]*>(.*?)</span>', text, re.S)
    assert [html.unescape(piece) for piece in shown] == spoken.pieces
    assert "<b>cranes" not in text and "<i>something" not in text
    assert re.search(r'<h1 class="verdict pass">RTL = model: 1,234,567 bits, 0 differ</h1>', text)


def test_data_of_the_story_is_the_record_s(page):
    _, text = page
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    spoken = story()
    record = spoken.record
    assert data["pieces"] == spoken.pieces and data["cycles"] == record.cycles.sum(0).tolist()
    for layer, cache, token in np.ndindex(record.evicted.shape):
        where = layer, cache, token
        kept, votes = (data[name][layer][cache][token] for name in ("kept", "votes"))
        slots = zip(record.positions[where], record.votes[where], strict=True)
        assert list(zip(kept, votes, strict=True)) == sorted(s for s in slots if s[0] >= 0)
        out = int(record.evicted[where])
        assert data["evicted"][layer][cache][token] == ([out] if out >= 0 else [])
        before = data["kept"][layer][cache][token - 1] if token else []
        assert set(before) | {token} == set(kept) | ({out} if out >= 0 else set())


def test_matrix_has_every_block_and_its_runs(page):
    _, text = page
    matrix = text.partition('<table class="matrix">')[2].partition("</table>")[0]
    names = re.findall(r'<th scope="row"><a [^>]*>([^<]*)', matrix)
    assert sorted(names) == sorted(block.name for block in blocks())
    rows = matrix.split('<th scope="row">')[1:]
    cells = [re.findall(r"<td data-name=\"[^\"]*\"[^>]*>(<a href|–)", cells) for cells in rows]
    assert all(len(row) == 6 for row in cells) and "see page" not in matrix
    (vpu,) = (cells for cells in rows if ">lad.vpu<" in cells)
    assert "60 vectors, 0 differ" in vpu and "4 of 200" in vpu and "1,229 MHz" in vpu
    (core,) = (cells for cells in rows if ">veda.veda_core<" in cells)
    assert "µm² (default, area, by hierarchy)" in core and "MHz" not in core


def test_a_formula_is_a_number_a_band_or_a_dash(tmp_path):
    rows = [dataclasses.replace(row("lad.vpu"), fewest=f, predicted=p) for f, p in FORMULAS]
    assert [each.formula for each in rows] == ["7", "5 to 9", "–"]
    text = write_page(tmp_path, rows, [find("lad.vpu")], META).read_text()
    assert "None" not in text and 'data-name="formula">5 to 9<' in text


def test_a_failed_run_is_the_verdict(tmp_path):
    rows = [row("lad.vpu"), dataclasses.replace(row("kllm.orizuru"), verdict="FAIL", reason="No.")]
    text = write_page(tmp_path, rows, [find("kllm.orizuru")], META, story()).read_text()
    assert '<h1 class="verdict FAIL">RTL and model differ: 1 of 2 runs failed</h1>' in text
    assert ">FAIL</a>" in text and "kllm.orizuru small in verilator: FAIL: No." in text


def test_an_interrupt_leaves_the_old_page(tmp_path, monkeypatch):
    (tmp_path / "index.html").write_text("old")
    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_page(tmp_path, [], [], META)
    assert os.listdir(tmp_path) == ["index.html"]
    assert (tmp_path / "index.html").read_text() == "old"


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_diagram_s_boxes_and_arrows_do_not_overlap(paper):
    boxes = {box.name: box for box in paper.diagram.boxes}
    assert len(boxes) == len(paper.diagram.boxes)
    for box in boxes.values():
        assert box.x >= 0 and box.y >= 0 and box.x + box.w <= 34
        lines = box.label.split("|")
        assert len(lines) * 11 <= box.h * 12 and max(map(len, lines)) * 5 <= box.w * 11, box.name
        for other in boxes.values():
            apart = box.x + box.w <= other.x or box.y + box.h <= other.y
            back = other.x + other.w <= box.x or other.y + other.h <= box.y
            assert other is box or apart or back, (box.name, other.name)
    for start, end in paper.diagram.arrows:
        points = np.array(route(boxes[start], boxes[end])) / (11, 12)
        for a, b in zip(points, points[1:], strict=False):
            between = a + np.linspace(0.02, 0.98, 50)[:, None] * (b - a)
            for box in boxes.values():
                x, y = between.T
                hit = (box.x < x) & (x < box.x + box.w) & (box.y < y) & (y < box.y + box.h)
                assert not hit.any(), (start, end, box.name)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_every_block_of_the_catalogue_is_in_a_filled_box(paper):
    shown = set(paper.whole)
    for box in paper.diagram.boxes:
        assert bool(box.built) == (box.link not in ("", OUTSIDE)), box.name
        for name in box.built:
            folders = [ROOT / "hw" / folder for folder in (paper.name, "attention")]
            assert any(list(folder.rglob(f"{name}.py")) for folder in folders), name
        shown |= {*box.built}
    assert {block.module for block in blocks() if block.folder == paper.name} <= shown
    dashed = [part for part in drawn(paper.diagram, str).split("<g ") if 'class="todo"' in part]
    assert len(dashed) == sum(not box.link for box in paper.diagram.boxes)
    files = {path.stem for path in (ROOT / "hw" / paper.name).rglob("*.py")}
    for box in paper.diagram.boxes:
        words = re.sub(r"\W+", "_", box.label.lower()).split("_")
        assert box.link or not {box.name, *words} & files, box.name


def test_claims_are_those_of_the_results():
    for paper in PAPERS:
        for name in paper.commands:
            kept = ROOT / "docs" / "results" / f"{name}.json"
            found = claims(name)
            assert found
            if kept.exists():
                every = json.loads(kept.read_text())["claims"]
                said = [c["paper"] for c in every if c.get("whose", PAPER) == PAPER]
                assert [claim["paper"] for claim in found] == said
