"""What the generator's page calls in Pyodide: a block's Verilog and sidecar."""

import json
import subprocess
from collections.abc import Callable

from hw.catalogue import find
from hw.emit import export
from hw.parameters import ParameterError

Yosys = Callable[[str], tuple[int, str, str]]
"""Runs a script; returns the exit status, the output and the messages."""


def answer(request: str, yosys: Yosys) -> str:
    """Files of a configuration by name, or the ``error`` that prevents them; both are JSON.

    request
        JSON with ``block``, ``preset`` and ``settings``, a list of ``name=value``.
    """

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], *yosys(script))

    export.run_yosys = run
    asked = json.loads(request)
    try:
        block = find(asked["block"])
        parameters = block.parameters_class.preset(asked["preset"])
        made = export.export(block, parameters.replace_from_text(asked["settings"]))
    except (ParameterError, export.ExportError) as error:
        return json.dumps({"error": str(error)})
    return json.dumps({"files": made.files()})
