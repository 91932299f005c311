"""What the Verilog of a block depends on: the modules that it imports, and no others."""

import subprocess
import sys

import pytest

from hw.catalogue import find
from sim.core.imports import closure
from sim.core.tools import ROOT

LOADED = """
import importlib, sys
importlib.import_module(sys.argv[1])
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] == "hw":
        print(module.__file__)
"""


@pytest.mark.parametrize("block", ["kllm.orizuru", "veda.veda_core"])
def test_it_is_what_python_loads(block):
    module = f"hw.{block}"
    done = subprocess.run(
        [sys.executable, "-c", LOADED, module], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = {str(file) for file in closure(module)}
    assert files >= set(done.stdout.split())
    # Modules imported for types alone, or in a function, count too.
    assert len(files) <= len(done.stdout.split()) + 3


def test_blocks_of_one_paper_do_not_depend_on_another():
    files = closure(find("kllm.orizuru").component.__module__)
    assert not any({"veda", "lad", "topick", "unicaim"} & set(file.parts) for file in files)
    assert not closure("golden.kllm.orizuru")


def test_nothing_but_the_catalogue_imports_by_name():
    """Else a block's Verilog could depend on a module that is not found."""
    by_name = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "hw").rglob("*.py")
        if "import_module" in file.read_text()
    }
    # Board platforms of amaranth-boards, places of classes in docstrings, commands of sim.
    others = {"hw/boards/platforms.py", "hw/docstrings.py", "hw/__main__.py"}
    assert by_name == {"hw/catalogue.py", *others}
