"""The site: links between pages, pages of blocks and sources, and the built site in a browser."""

import html.parser
import json
import os
import re
import shutil
import subprocess
import tarfile
import urllib.parse
from pathlib import Path, PurePosixPath

import pytest

from hw.catalogue import blocks
from sim.commands import site
from sim.core.tools import ROOT
from sim.drivers.live.blocks import LIVE
from tests.support.browser import framed
from tests.support.keyboard import keyboard

PROBE = ROOT / "tests" / "support" / "sim" / "site_probe.js"
AXE_PROBE = ROOT / "tests" / "support" / "sim" / "axe_probe.js"
LIVE_PROBE = ROOT / "tests" / "support" / "sim" / "live_probe.js"
SEEN = (
    *("index", "blocks", "verilog", "compare", "results/index", "results/kllm"),
    *(
        "live",
        "generate",
        "blocks/kllm.orizuru",
        "blocks/veda.veda_core",
        "source/hw/topick/rpdu.py",
    ),
)
"""Pages that are opened: a start, long tables, code, pictures, a block's, a source's."""

FAULTS = {
    "kllm.orizuru": {
        ("leaf_0.removed_max", 0, 1): "74 of 128 .*: max.index is 13, not 0",
        ("leaf_0.removed_max", 0, 0): "82 of 128 .*: max.index is 0, not 13",
        ("fsm_state", 0, 0): "Hangs: no beat moved in 2030 cycles. 0 of 128",
    },
    "topick.rpdu": {
        ("unit.prune", 0, 0): "58 of 64 .*: prune is 0, not 1",
        ("unit.prune", 0, 1): "6 of 64 .*: prune is 1, not 0",
    },
    "unicaim.topk_sense": {
        ("winners", 0, 1): "302 of 310 .*: row is 0, not 5",
        ("k", 0, 0): "Hangs: no beat moved in 2010 cycles",
    },
    "veda.voting_engine": {("voting", 0, 0): "stream o, beat 18, .*: slot is 0, not 1"},
    "lad.apid": {
        ("subtract_1.o", 15, 0): "44 of 167 .*: g.count is ",
        ("queue.used", 0, 0): "Hangs: no beat moved in 2030 cycles",
    },
}
"""What docs/live.md says to try, register, bit and value, and what the page must say of it."""


def test_a_block_s_page_has_its_run_and_what_was_measured():
    page = site.made_pages()["blocks/kllm.orizuru.md"]
    assert "![beats on the streams of kllm.orizuru](kllm.orizuru.svg)" in page
    assert "`python -m sim timeline kllm.orizuru`" in page and "µm²" in page
    assert "- Mutants: 0 of 1200 survive." in page and "- Proofs, exhaustive runs: order" in page
    plain = site.made_pages()["blocks/arith.exp.md"]
    assert "## A run" not in plain and "## Measured" in plain
    drawn = site.run_pictures()
    assert "blocks/kllm.orizuru.svg" in drawn and "blocks/arith.exp.svg" not in drawn


def test_links_lead_to_pages():
    text = (
        "[a](docs/kllm.md#b) ![c](docs/demo.png) [d](https://e.f) [g](#h) [i](hw/ports.py) [j](hw)"
    )
    assert site.linked(text, PurePosixPath("README.md")) == (
        "[a](kllm.md#b) ![c](demo.png) [d](https://e.f) [g](#h) [i](source/hw/ports.py.md)"
        " [j](source/hw/index.md)"
    )
    text = "[a](../../README.md) [b](../kllm.md) [c](lad.svg) [d](../../hw/ports.py)"
    assert site.linked(text, PurePosixPath("docs/results/lad.md")) == (
        "[a](../index.md) [b](../kllm.md) [c](lad.svg) [d](../source/hw/ports.py.md)"
    )


def test_a_row_of_the_table_of_blocks_leads_to_the_block():
    row = "| `kllm.orizuru` | Pops. | KLLM | small | [hardware](../hw/kllm/orizuru.py), … |"
    assert site.linked(row, site.BLOCKS) == (
        "| [`kllm.orizuru`](blocks/kllm.orizuru.md) | Pops. | KLLM | small |"
        " [hardware](source/hw/kllm/orizuru.py.md), … |"
    )


def test_sources_that_are_linked_are_pages():
    found = site.sources()
    assert PurePosixPath("hw/topick/rpdu.py") in found and len(set(found)) == len(found)
    assert all((ROOT / path).exists() for path in found)
    folders = [path for path in found if (ROOT / path).is_dir()]
    assert folders and all(set(site.inside(path)) <= set(found) for path in folders)
    page = site.source_page(PurePosixPath("hw/ports.py"))
    assert page.endswith(f"````python\n{(ROOT / 'hw/ports.py').read_text().rstrip()}\n````\n")


class Links(html.parser.HTMLParser):
    """What a page links to, and what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        of = dict(attrs)
        if tag == "a" and of.get("href"):
            self.links.append(of["href"])
        if tag in ("script", "img") and of.get("src"):
            self.loads.append(of["src"])
        if tag == "link" and of.get("rel") in ("stylesheet", "icon"):
            self.loads.append(of["href"])


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The site; its packages are those of `make site`."""
    packages = tmp_path_factory.mktemp("packages")
    python = str(ROOT / ".venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages)]
    subprocess.run([*install, "-r", "requirements-docs.txt"], cwd=ROOT, check=True)
    folder = tmp_path_factory.mktemp("site")
    build = [python, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(packages)}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.campaign
def test_no_link_is_broken_and_nothing_is_loaded_from_elsewhere(built):
    files = {path.relative_to(built).as_posix() for path in built.rglob("*.*")}
    assert {f"blocks/{block.name}.html" for block in blocks()} <= files
    pages = sorted(name for name in files if name.endswith(".html") and name != "404.html")
    for name in pages:
        found = Links((built / name).read_text())
        for target in [*found.links, *found.loads]:
            url = urllib.parse.urlsplit(target)
            if url.scheme or url.netloc:
                assert target in found.links, f"{name} loads {target}"
            elif url.path:
                path = (built / name).parent / urllib.parse.unquote(url.path)
                assert path.exists(), f"{name}: {target}"


@pytest.mark.campaign
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", SEEN)
def test_in_a_browser(built, name, width):
    said, console = framed(built / f"{name}.html", width, PROBE)
    assert console == []
    assert said == ["overflows 0", "headings 1"]


AXE = "axe-core@4.10.3"
"""Checks pages against WCAG 2.1 and good practice; from npm."""


@pytest.fixture(scope="module")
def axe_probe(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("axe")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed; install it with: apt-get install npm")
    packed = subprocess.run(
        ["npm", "pack", "--silent", AXE], cwd=folder, capture_output=True, text=True
    )
    assert packed.returncode == 0, packed.stderr
    with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
        source = archive.extractfile("package/axe.min.js")
        assert source is not None
        text = json.dumps(source.read().decode()).replace("</", r"<\/")
    probe = folder / "probe.js"
    probe.write_text(f"const AXE = {text};\n{AXE_PROBE.read_text()}")
    return probe


@pytest.mark.campaign
@pytest.mark.parametrize("scheme", ["slate", "default"], ids=["dark", "light"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", SEEN)
def test_pages_can_be_read_by_anyone(built, axe_probe, tmp_path, name, width, scheme):
    # A new profile, since the theme remembers colours.
    options = [f"--user-data-dir={tmp_path}", "--virtual-time-budget=60000"]
    options += [f"--blink-settings=preferredColorScheme={int(scheme == 'default')}"]
    said, _ = framed(built / f"{name}.html", width, axe_probe, *options)
    assert said == [scheme, "rules true"]


@pytest.fixture(scope="module")
def live_probe(tmp_path_factory) -> Path:
    faults = json.dumps({block: [*faults] for block, faults in FAULTS.items()})
    path = tmp_path_factory.mktemp("probe") / "probe.js"
    path.write_text(f"const FAULTS = {faults};\n{LIVE_PROBE.read_text()}")
    return path


@pytest.mark.campaign
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("motion", [True, False])
def test_live_blocks_equal_the_golden_models_and_faults_show(built, live_probe, width, motion):
    options = ["--virtual-time-budget=120000"]
    options += [] if motion else ["--force-prefers-reduced-motion"]
    said, console = framed(built / "live.html", width, live_probe, *options)
    assert console == [] and said.pop() == "end"
    expected = []
    for live in LIVE:
        right = r"pass: (\d+) of \1 beats equal the golden model, in \d+ cycles\."
        expected += [f"{live.name} {stalls} {right}" for stalls in ("none", "source", "sink")]
        for (register, bit, one), verdict in FAULTS[live.name].items():
            expected.append(f"{live.name} {re.escape(register)} {bit} {one} fail: .*{verdict}.*")
        expected.append(f"{live.name} overflows 0")
    for pattern, line in zip(expected, said, strict=True):
        assert re.fullmatch(pattern, line), line


@pytest.mark.campaign
def test_a_wrong_expected_beat_turns_a_live_block_red(built, live_probe):
    name = "kllm.orizuru"
    script = (built / "live" / f"{name}.js").read_text()
    entry = json.loads(script[script.index('": {') + 3 : script.rindex(" };")])
    output = entry["streams"][-1]
    output["beats"][5] = f"{int(output['beats'][5], 16) ^ 1:x}"
    wrong = f"globalThis.liveBlocks = {{ '{name}': {json.dumps(entry)} }};"
    (built / "live" / "wrong.js").write_text(wrong)
    page = (built / "live.html").read_text().replace(f"live/{name}.js", "live/wrong.js")
    (built / "live_wrong.html").write_text(page)
    said, _ = framed(built / "live_wrong.html", 1280, live_probe, "--virtual-time-budget=120000")
    (line,) = [line for line in said if line.startswith(f"{name} none")]
    assert "fail: 127 of 128 beats" in line and "stream o, beat 5, cycle" in line


@pytest.mark.campaign
def test_live_blocks_by_keyboard_alone(built, tmp_path):
    with keyboard((built / "live.html").as_uri(), 1280, tmp_path / "profile") as keys:
        keys.until("document.querySelector('.live button') !== null")
        at, pressed = "document.activeElement", 0
        while keys.value(f"{at}.textContent") != "Step":
            keys.press("Tab")
            pressed += 1
            assert pressed < 200
        assert keys.value(f"getComputedStyle({at}).outlineStyle") == "solid"
        keys.press("Space", "Enter")
        root = "document.querySelector('.live')"
        assert keys.value(f"{root}.querySelector('.live-clock').textContent") == "cycle 2"
        keys.press("Tab", "Space")  # Run
        keys.until(f"{root}.querySelector('.live-verdict').dataset.is === 'pass'")
        keys.press("Tab", "Space")  # Reset
        assert keys.value(f"{root}.querySelector('.live-clock').textContent") == "cycle 0"
        for chosen in ("source", "0"):  # stalls, then a fault
            keys.press("Tab", "ArrowDown")
            assert keys.value(f"{at}.value") == chosen
        assert keys.value(f"{root}.querySelector('input').disabled") is False
