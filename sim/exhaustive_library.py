"""Compile a design with the stream harness into a shared library, by Verilator and g++."""

import hashlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from sim import payload
from sim.design import Design
from sim.tools import ToolError, build_log, compiled_folder, environment, verilator, versions

SOURCE = Path(__file__).with_name("harness.cpp")
MEMORY_SOURCE = Path(__file__).with_name("memory.h")
# Verilator's data-flow optimiser has bugs that give wrong results without a word: one took a
# zero-extended operand of a signed sum for a negative one. Without it, nothing here is slower.
NO_DFG = "-fno-dfg"
# Verilator writes files for each module, and reading the headers takes a third of a second each:
# joined to a few, they compile twice as fast.
FEW_FILES = ["--output-groups", "2"]
VERILATOR_ARGUMENTS = [
    "--cc",
    "--exe",
    # Amaranth leaves width extension and unused bits to the language's rules.
    "-Wno-fatal",
    "-Wno-lint",
    "-O3",
    "--x-assign",
    "fast",
    "--x-initial",
    "fast",
    "--noassert",
    NO_DFG,
    *FEW_FILES,
    "-CFLAGS",
    "-fPIC -std=gnu++17",
    "-LDFLAGS",
    "-shared",
]
# Verilator optimises across instances and then writes code for each, which takes minutes to compile
# and is too much for a processor's caches when there are many. From LARGE instances on, modules are
# kept apart and nothing is optimised across their ports: equal instances then share code, which
# compiles several times and runs up to thirty times as fast.
# HUGE designs are still too slow to build for tests of every block in every simulator.
LARGE, HUGE = 32, 256


def large_design_arguments(design: Design, folder: Path) -> list[str]:
    """Verilator's arguments for a design of many instances; writes a control file to `folder`."""
    if design.instances < LARGE:
        return []
    lines = [f'no_inline -module "{name}"' for name in design.modules if name != design.module]
    control = folder / "large.vlt"
    control.write_text("\n".join(["`verilator_config", *lines, ""]))
    return [str(control), "-fno-gate"]


def optimisation(design: Design) -> list[str]:
    """Settings of Verilator's makefiles; a large design's start-up code is not worth optimising."""
    slow = "-O2" if design.instances < LARGE else "-O1"
    return ["OPT_FAST=-O2", f"OPT_SLOW={slow}", "OPT_GLOBAL=-O2"]


def compile_harness(design: Design, memories: bool) -> Path:
    """Path of the stream harness' shared library, built unless the cache has it."""
    sources = [SOURCE, MEMORY_SOURCE] if memories else [SOURCE]
    texts = {source.name: source.read_text() for source in sources}
    texts["ports.h"] = _ports_header(design, memories)
    return compile_library(design, "harness", texts, optimisation(design))


def compile_library(
    design: Design, name: str, sources: dict[str, str], settings: list[str]
) -> Path:
    """Path of the shared library of a design and C++ around it, built unless the cache has it.

    sources
        File name to text; ``name.cpp`` among them, which finds the design as ``Model.h``.
    settings
        Of Verilator's makefile.
    """
    key = design.digest(*itertools.chain(*sources.items()), *_tools(), *settings)
    folder = compiled_folder() / f"{name}_{design.module[:60]}_{key}"
    library = folder / f"{name}.so"
    if library.exists():
        return library
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Built aside and moved in whole: an interrupted build is never taken for a finished one.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building_") as scratch:
        scratch = Path(scratch)
        for file, text in {"design.v": design.verilog, **sources}.items():
            (scratch / file).write_text(text)
        program = [str(verilator()), *VERILATOR_ARGUMENTS, "--prefix", "Model"]
        program += ["-o", library.name, "--top-module", design.module, "design.v", f"{name}.cpp"]
        program += large_design_arguments(design, scratch)
        _run(program, scratch, design)
        objects = scratch / "obj_dir"
        for runtime in runtime_folder().glob("*.o"):
            # Copied after Model.mk was written, so that make takes them for up to date.
            shutil.copyfile(runtime, objects / runtime.name)
        _run(["make", "-j2", *settings, "-f", "Model.mk", library.name], objects, design)
        keep_copies(objects.glob("verilated*.o"), runtime_folder())
        keep_copies([objects / library.name], folder)
    return library


def _run(command: list[str], folder: Path, design: Design) -> None:
    run = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    if run.returncode:
        log = build_log(design.module, run.stdout + run.stderr)
        raise ToolError(f"Verilator could not compile {design.module}; its output is in {log}")


def _tools() -> list[str]:
    """What a compiled simulation depends on besides sources."""
    return [repr(VERILATOR_ARGUMENTS), versions()]


def runtime_folder() -> Path:
    """Verilator's own run-time library, compiled once for all designs: most of a build's time."""
    key = hashlib.sha256("\0".join(_tools()).encode()).hexdigest()[:20]
    return compiled_folder() / f"runtime_{key}"


def keep_copies(files: Iterable[Path], folder: Path) -> None:
    """Copy files into the cache as one folder, whole or not at all; the first to do so wins."""
    if folder.exists():
        return
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".keeping_") as scratch:
        done = Path(scratch) / "done"
        done.mkdir()
        for file in files:
            shutil.copyfile(file, done / file.name)
        try:
            os.replace(done, folder)
        except OSError:
            if not folder.exists():
                raise


def _ports_header(design: Design, memories: bool) -> str:
    def mangled(name: str) -> str:
        return name.replace("__", "___05F")  # Verilator's spelling of a double underscore

    def table(name: str, streams: dict) -> str:
        rows = [
            f"X({k}, {mangled(stream + '__payload')}, {mangled(stream + '__valid')}, "
            f"{mangled(stream + '__ready')}, {payload.words(shape)})"
            for k, (stream, shape) in enumerate(streams.items())
        ]
        return f"#define {name}(X) {' '.join(rows)}\n"

    constants = " ".join(f"X({k}, {mangled(c)})" for k, c in enumerate(design.constants))
    return (
        '#define MODEL Model\n#define MODEL_HEADER "Model.h"\n'
        f"#define CLOCKED {int(design.clocked)}\n#define MEMORIES {int(memories)}\n"
        + table("SOURCES", design.inputs)
        + table("SINKS", design.outputs)
        + f"#define CONSTANTS(X) {constants}\n"
    )
