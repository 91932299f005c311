"""The page in a real browser: no console message, nothing cut off, tokens can be chosen."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hw.catalogue import blocks
from sim.commands.page import write_page
from sim.commands.report import Row
from tests.support.sim.story import story

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CACHES = (".cache/chromium-headless", ".cache/ms-playwright")

pytestmark = pytest.mark.campaign

PROBE = Path(__file__).parents[1] / "support" / "sim" / "page_probe.js"


def browser() -> str:
    found = [path for name in NAMES if (path := shutil.which(name))]
    for folder in CACHES:
        for name in ("chrome-headless-shell", "headless_shell", "chrome"):
            found += map(str, sorted((Path.home() / folder).rglob(name)))
    found = [path for path in found if os.access(path, os.X_OK) and Path(path).is_file()]
    if not found:
        pytest.skip("Chromium is not installed; install it with: apt-get install chromium")
    return found[0]


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


def run_browser(path: Path, width: int, *options: str) -> tuple[str, list[str]]:
    """The page's tree as text once its scripts have run, and what the console says."""
    done = subprocess.run(
        [
            browser(),
            *("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *("--allow-file-access-from-files", f"--user-data-dir={path.parent / 'profile'}"),
            *(f"--window-size={width},2000", "--virtual-time-budget=5000", "--dump-dom"),
            # A proxy that refuses everything: the page must not need a network.
            *("--proxy-server=127.0.0.1:9", *options, path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off_and_tokens_can_be_chosen(page, width):
    around = page.with_name(f"around{width}.html")
    # A frame has exactly this width; the window of a headless browser is not always so narrow.
    around.write_text(
        f'<!doctype html><meta charset="utf-8"><pre id="said"></pre>'
        f"<script>{PROBE.read_text()}</script>"
        f'<iframe id="page" src="{page.name}" style="width:{width}px;height:1900px;border:0">'
        "</iframe>"
    )
    tree, console = run_browser(around, 1400)
    assert console == []
    said = re.search(r'<pre id="said">(.*?)</pre>', tree, re.S)[1].splitlines()
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
