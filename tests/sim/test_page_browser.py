"""The page in a real browser: no console message, nothing cut off, tokens can be chosen."""

import re
from pathlib import Path

import pytest

from hw.catalogue import blocks
from sim.commands.page import write_page
from sim.commands.report import Row
from tests.support.browser import framed, run_browser
from tests.support.sim.story import story

pytestmark = pytest.mark.campaign

PROBE = Path(__file__).parents[1] / "support" / "sim" / "page_probe.js"


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    image = "data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciLz4="
    picture = {"image": image, "caption": "A run.", "parameters": "n = 4"}
    rows = [
        Row("lad.vpu", "small", "verilator", "harness", vectors=60, picture=picture),
        Row("kllm.orizuru", "small", "icarus", "cocotb", vectors=60),
    ]
    meta = {"model": "tiny.gguf", "text": "a text"}
    folder = tmp_path_factory.mktemp("page")
    return write_page(folder, rows, blocks(), meta, story(), ["A sentence."])


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off_and_tokens_can_be_chosen(page, width):
    said, console = framed(page, width, PROBE)
    assert console == []
    assert "CUT" not in "\n".join(said), "\n".join(said)
    found = [line for line in said if " overflows " in line]
    assert len(found) == 4 and all(line.endswith(" overflows 0") for line in found)
    assert any(line.startswith("chose 9: Token “") and "cycles" in line for line in said)
    assert any("q k v 90, o 30, gate up 120, down 60 cycles." in line for line in said)
    assert "then 10 layer 2" in said and "gone 6" in said
    (bars,) = (line for line in said if line.startswith("bars "))
    read = len(story().pieces) - 1
    # A bar for each token, and one for the votes of each row that is kept.
    assert bars == f"bars {read + 5} out {read - 5}"


def test_without_a_script_text_and_verdict_are_there(page):
    plain = page.with_name("plain.html")
    plain.write_text(re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.S))
    tree, console = run_browser(plain, 1280)
    assert console == [] and "RTL = model: 1,234,567 bits, 0 differ" in tree
    assert tree.count('class="token') == len(story().pieces)
