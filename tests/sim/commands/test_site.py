"""The site: links between pages, pages of blocks and sources, and the built site in a browser."""

import html.parser
import os
import subprocess
import urllib.parse
from pathlib import Path, PurePosixPath

import pytest

from hw.catalogue import blocks
from sim.commands import site
from sim.core.tools import ROOT
from tests.support.browser import framed

PROBE = ROOT / "tests" / "support" / "sim" / "site_probe.js"
SEEN = (
    *("index", "blocks", "verilog", "compare", "results/index", "results/kllm"),
    *("blocks/kllm.orizuru", "blocks/veda.veda_core", "source/hw/topick/rpdu.py"),
)
"""Pages that are opened: a start, long tables, code, pictures, a block's, a source's."""


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
