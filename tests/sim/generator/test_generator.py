"""The page that generates Verilog: its files are complete, and it writes the checkout's bytes."""

import functools
import http.server
import json
import subprocess
import sys
import threading
import zipfile

import pytest
from amaranth.hdl import Shape

from hw.catalogue import blocks, find
from hw.emit import export
from hw.parameters import ParameterError
from sim.commands import site
from sim.drivers import generator
from sim.drivers.generator import in_browser
from tests.support.keyboard import keyboard

NAME = "topick.rpdu"
PRESET = find(NAME).parameters_class.preset_name("first")
CHILD = """
import sys
sys.path[:] = [path for path in sys.path if not path.endswith("-packages")] + ["."]
import in_browser
def yosys(script):
    open("script", "w").write(script)
    return 1, "", "ERROR: nothing is written."
print(in_browser.answer(sys.argv[1], yosys))
"""


def request(preset: str = PRESET, *settings: str) -> str:
    return json.dumps({"block": NAME, "preset": preset, "settings": settings})


def exported(name: str, preset: str, *settings: str) -> list[str]:
    """The checkout's Verilog and sidecar."""
    block = find(name)
    parameters = block.parameters_class.preset(preset).replace_from_text([*settings])
    return [*export.export(block, parameters).files().values()]


@pytest.fixture
def yosys(monkeypatch):
    """Amaranth's Yosys as the page gets it; the function that a page replaces is put back."""
    real = export.run_yosys
    monkeypatch.setattr(export, "run_yosys", real)

    def run(script: str) -> tuple[int, str, str]:
        done = real(script)
        return done.returncode, done.stdout, done.stderr

    return run


def test_an_answer_has_the_files_of_a_checkout(yosys):
    answer = json.loads(in_browser.answer(request(), yosys))
    assert [*answer["files"].values()] == exported(NAME, PRESET)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("width=x", "width must be an integer, not 'x'"), ("no=1", "parameter name must be one of")],
)
def test_mistakes_are_one_sentence(yosys, setting, reason):
    answer = json.loads(in_browser.answer(request(PRESET, setting), yosys))
    assert [*answer] == ["error"] and answer["error"].startswith(reason)


def test_a_failure_of_yosys_is_one_sentence(yosys):
    answer = in_browser.answer(request(), lambda script: (1, "", "ERROR: no."))
    assert json.loads(answer) == {"error": "Yosys could not write Verilog: no"}


def test_the_sources_are_complete_and_give_the_same_netlist(tmp_path, monkeypatch):
    (tmp_path / "sources.zip").write_bytes(generator.sources())
    with zipfile.ZipFile(tmp_path / "sources.zip") as archive:
        archive.extractall(tmp_path)
    # Without any package of the environment, as in a browser.
    command = [sys.executable, "-I", "-c", CHILD, request()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["error"].endswith("nothing is written")
    scripts = []

    def keep(script: str) -> subprocess.CompletedProcess[str]:
        scripts.append(script)
        return subprocess.CompletedProcess([], 1, "", "ERROR: enough.")

    monkeypatch.setattr(export, "run_yosys", keep)
    with pytest.raises(export.ExportError):
        exported(NAME, PRESET)
    assert scripts == [(tmp_path / "script").read_text()]


@pytest.mark.campaign
@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_no_range_is_too_long_for_python_of_32_bits(monkeypatch, block):
    cast = Shape.cast

    def checked(shape, **options):
        assert not isinstance(shape, range) or len(shape) < 1 << 31, shape
        return cast(shape, **options)

    monkeypatch.setattr(Shape, "cast", checked)
    parameters = block.parameters_class.preset("first")
    export.to_rtlil(block.create(parameters), "top")


def test_the_form_knows_each_block_s_presets_and_what_parameters_mean():
    for block in blocks():
        entry = generator.entry(block)
        assert entry["preset"] in entry["presets"]
        for values in entry["presets"].values():
            assert [*values] == [*entry["parameters"]] and all(entry["parameters"].values())


def test_a_site_without_pyodide_says_so():
    text = '<div class="generator">The generator runs in the site.</div>'
    absent = site.with_generator(text, {})
    assert "built without Pyodide" in absent and "<script" not in absent
    page = site.with_generator(text, {"generator/blocks.js": ""})
    assert "needs JavaScript" in page and '<script src="generator/generator.js"></script>' in page


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *arguments):
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Of a page on a server that has nothing but the form, with the files that the site has."""
    try:
        files = generator.files()
    except generator.NoPyodide as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("page")
    for name, content in files.items():
        path = folder / "generator" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    head = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">'
    page = site.with_generator(head + '<div class="generator"></div>', files)
    (folder / "generate.html").write_text(page)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/generate.html"
        server.shutdown()


FORM = "document.querySelector('.generator form').elements"
SAID = "document.querySelector('.generator-status')"
READ = """Promise.all([...document.querySelectorAll('.generator-files a')]
    .map(link => fetch(link.href).then(response => response.text()))).then(texts => read = texts)"""


def choose(keys, field: str, value: str) -> None:
    control = f"{FORM}[{field!r}]"
    keys.value(f"{control}.value = {value!r}")
    keys.value(f"{control}.dispatchEvent(new Event('input', {{ bubbles: true }}))")


def press(keys) -> str:
    """What the page says after a click."""
    keys.value(f"{SAID}.dataset.is = ''; {FORM}[{FORM}.length - 2].click()")
    keys.until(f"{SAID}.dataset.is", 600)
    return keys.value(f"{SAID}.textContent")


@pytest.mark.campaign
@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="Amaranth finds other names for wires than in Python 3.12"
)
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_writes_the_bytes_of_a_checkout(address, tmp_path, width):
    orizuru, n = "kllm.orizuru", "n=24"
    with keyboard(f"{address}?block={orizuru}", width, tmp_path / "profile") as keys:
        keys.until("document.querySelector('.generator form') !== null")
        assert keys.value(f"{FORM}.block.value") == orizuru
        choose(keys, "preset", "small")
        choose(keys, "set n", "0")
        with pytest.raises(ParameterError) as refused:
            exported(orizuru, "small", "n=0")
        assert press(keys) == f"{refused.value}."
        choose(keys, "set n", "24")
        command = keys.value("document.querySelector('.generator p > code').textContent")
        assert command == f"python -m hw verilog {orizuru} --preset small --set {n}"
        verilog, sidecar = written(keys)
        assert [verilog, sidecar] == exported(orizuru, "small", n)
        assert keys.value("document.querySelector('.generator pre').textContent") == verilog
        choose(keys, "block", "lad.apid")
        choose(keys, "preset", "small")
        assert written(keys) == exported("lad.apid", "small")
        assert keys.value("document.documentElement.scrollWidth") <= width
        assert keys.console == []


def written(keys) -> list[str]:
    assert "lines of Verilog" in press(keys)
    keys.value(f"globalThis.read = null; {READ}; null")
    keys.until("read !== null")
    return keys.value("read")
