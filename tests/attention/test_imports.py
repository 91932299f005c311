"""Importing attention's modules computes no tables: every command and test would pay for it."""

import subprocess
import sys
from pathlib import Path

import golden.attention
import golden.veda
import hw.attention
import hw.veda

CHECK = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
from golden.arith.exp2_fixed import significands as golden
from hw.arith.exp2_fixed import significands
from hw.arith.tables.split_table import fit
print([function.cache_info().misses for function in (fit, significands, golden)])
"""


def test_no_table_at_import():
    names = [
        f"{package.__name__}.{path.stem}"
        for package in (hw.attention, golden.attention, hw.veda, golden.veda)
        for path in Path(package.__file__).parent.glob("[!_]*.py")
    ]
    assert {"hw.attention.binary_exponent", "golden.attention.binary_exponent"} <= set(names)
    command = [sys.executable, "-c", CHECK, *names]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == "[0, 0, 0]\n"
