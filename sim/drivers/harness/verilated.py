"""Compile designs for the stream harness: Verilator's C++ and a table of ports, by g++ alone.

The parts that all designs share are compiled once and kept: a shared library of the harness and
Verilator's run-time library, and the precompiled headers. A small design is then one file, compiled
by one call of g++ without make.
"""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sim.core import cache, payload, processes
from sim.core.design import Design
from sim.core.imports import closure
from sim.core.tools import (
    ToolError,
    build_log,
    compiled_folder,
    compiling,
    environment,
    verilator,
    versions,
)
from sim.drivers.harness import fast_verilog

HERE = Path(__file__).parent
INTERFACE = HERE / "harness.h"
ENGINE = [HERE / "harness.cpp", HERE / "memory.h", HERE / "dram.h", INTERFACE]
# Included by every design; compiling these takes most of the time of a small design.
HEADERS = """\
#include "verilated.h"
#include <algorithm>
#include <cstring>
"""
# Verilator's data-flow optimiser has bugs that silently give wrong results: one took a
# zero-extended operand of a signed sum for a negative number. Nothing here is slower without it.
NO_DFG = "-fno-dfg"
# For cocotb's builds: Verilator writes files for each module, and each takes a third of a second to
# read the headers. Joined to a few files they compile twice as fast.
FEW_FILES = ["--output-groups", "2"]
TRANSLATE = [
    "--cc",
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
    "--prefix",
    "Model",
]
COMPILE = [
    *("-std=gnu++17", "-fPIC", "-w", "-pthread", "-fno-gnu-unique", "-fcf-protection=none"),
    *(f"-DVM_{feature}=0" for feature in ("COVERAGE", "SC", "TIMING", "TRACE")),
]
# Small designs are one file for the compiler. From PARTS bytes of C++ on, a design is compiled in
# parallel parts, and code that runs once at -O0. At -O1 large designs take a fifth less to compile
# and run up to twice as long.
OFTEN, LARGE_ONCE = "-O2", "-O0"
PARTS = 400_000
# Verilator optimises across instances and then writes code for each, which takes minutes to compile
# and is too much for a processor's caches when there are many. From LARGE instances on, modules are
# kept apart and nothing is optimised across their ports: equal instances then share code, which
# compiles several times and runs up to thirty times as fast.
# HUGE designs are still too slow to build for tests of every block in every simulator.
LARGE, HUGE = 32, 256
# From ENORMOUS instances on, Verilator needs more memory than a machine has (18 GB were too little
# for 50,000), because it holds every instance apart while it optimises. The module that is repeated
# with most inside is then translated once, as a library that its instances call.
ENORMOUS = 20_000


def large_design_arguments(design: Design, folder: Path) -> list[str]:
    """Verilator's arguments for a design of many instances; writes a control file to `folder`."""
    if design.instances < LARGE:
        return []
    lines = [f'no_inline -module "{name}"' for name in design.modules if name != design.module]
    control = folder / "large.vlt"
    control.write_text("\n".join(["`verilator_config", *lines, ""]))
    return [str(control), "-fno-gate"]


def repeated_module(design: Design) -> str | None:
    """The module that an enormous design has as a library: its copies are half of the design.

    Among such modules it is the one with the fewest instances, because each call costs time.
    """
    if design.instances < ENORMOUS:
        return None
    times = design.below(design.module)
    holds = {name: (n - 1) * (1 + design.below(name).total()) for name, n in times.items()}
    enough = [name for name in times if 2 * holds[name] > design.instances]
    return min(enough, key=times.__getitem__, default=None)


def without_module(verilog: str, module: str) -> str:
    """Verilog without the definition of a module."""
    name = re.escape(module)
    return re.sub(rf"^module \\?{name}\b.*?^endmodule$", "", verilog, flags=re.S | re.M)


def optimisation(design: Design) -> list[str]:
    """Settings of Verilator's makefiles; a large design's start-up code is not worth optimising."""
    slow = "-O2" if design.instances < LARGE else "-O1"
    return ["OPT_FAST=-O2", f"OPT_SLOW={slow}", "OPT_GLOBAL=-O2"]


def compile_harness(design: Design) -> Path:
    """Path of the design's shared library, for the library of :func:`compile_engine`.

    Built if the cache lacks it.
    """
    table = _table(design).replace(str(INTERFACE), "")
    key = design.digest(INTERFACE.read_text(), HEADERS, table, *tools())
    folder = compiled_folder() / f"harness_{design.module[:60]}_{key}"

    def build(done: Path) -> None:
        compiling(f"{design.module} for the harness")
        _compile_design(design, done)

    library = built(folder, "design.so", build)
    cache.use(folder)
    cache.prune_now_and_then()
    return library


def compile_engine() -> Path:
    """Path of the shared library of harness and Verilator's run-time library."""
    key = _digest(*(path.read_text() for path in ENGINE), *tools())
    return built(compiled_folder() / f"engine_{key}", "engine.so", _compile_engine)


def _precompiled() -> Path:
    """Path of the header that every design includes, with its precompiled form beside it."""
    key = _digest(HEADERS, *tools())
    return built(compiled_folder() / f"headers_{key}", "headers.h", _compile_headers)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]


def built(folder: Path, name: str, build: Callable[[Path], None]) -> Path:
    """A file in a folder of the cache, which `build` fills if it is missing.

    The folder is built under another name and then renamed, so an interrupted build is never taken
    for a finished one. A lock lets one of several processes build.
    """
    if not (folder / name).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.parent / f".{folder.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / name).exists():
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building_") as aside:
                    done = Path(aside) / "done"
                    done.mkdir()
                    build(done)
                    os.replace(done, folder)
            Path(lock.name).unlink(missing_ok=True)
    return folder / name


def _compile_design(design: Design, done: Path) -> None:
    """Translate and compile a design; leaves ``design.so`` in `done`."""
    scratch = done.parent
    table = scratch / "table.cpp"
    table.write_text(_table(design))
    objects = _compile_parts(design, scratch, table)
    _run(["g++", "-shared", *objects, "-o", str(done / "design.so")], scratch, design.module)


def _compile_parts(design: Design, scratch: Path, more: Path) -> list[str]:
    """Translate a design and compile it with one C++ file more; returns the object files."""
    verilog = fast_verilog.computed_where_read(design.verilog)

    def write(name: str, verilog: str, top: str) -> None:
        if design.instances >= LARGE:
            verilog = fast_verilog.with_one_clock(verilog, top)
        (scratch / name).write_text(verilog)

    arguments = [*design.standard("verilator"), *large_design_arguments(design, scratch)]

    def translate(*more: str) -> None:
        _run([str(verilator()), *TRANSLATE, *arguments, *more], scratch, design.module)

    module = repeated_module(design)
    write("design.v", verilog, module or design.module)
    if module is None:
        translate("--top-module", design.module, "design.v")
    else:
        library = ["--lib-create", module, "--prefix", "Library", "--Mdir", "library"]
        translate(*library, "--top-module", module, "design.v")
        write("rest.v", without_module(verilog, module), design.module)
        # The calls are SystemVerilog, whatever the design is read as.
        rest = ["rest.v", "+1800-2017ext+sv", f"library/{module}.sv"]
        translate("--top-module", design.module, *rest)
    # Files of two models cannot be one part, as each has precompiled headers.
    parts = [*_parts(scratch / "obj_dir", more), *_parts(scratch / "library")]
    commands = []
    for number, (optimise, files) in enumerate(parts):
        part = scratch / f"part{number}.cpp"
        part.write_text("".join(f'#include "{path}"\n' for path in files))
        # Headers compiled at -O2 are not good at -O0.
        header = [] if optimise == LARGE_ONCE else ["-include", str(_precompiled())]
        output = ["-c", part.name, "-o", f"{part.stem}.o"]
        commands.append([*_compiler(optimise), *header, "-Iobj_dir", "-Ilibrary", *output])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda command: _run(command, scratch, design.module), commands))
    return [command[-1] for command in commands]


def _parts(folder: Path, *more: Path) -> list[tuple[str, list[Path]]]:
    """C++ files to compile together, with an option of optimisation each; none of no folder."""
    generated = sorted(folder.glob("*.cpp"))
    if sum(path.stat().st_size for path in generated) < PARTS:
        return [(OFTEN, [*generated, *more])] if generated else []
    once = [path for path in generated if path.stem.endswith("Slow")]
    often = [path for path in generated if path not in once]
    parts = [(OFTEN, half) for half in _halves(often)]
    return parts + [(LARGE_ONCE, half) for half in _halves([*once, *more])]


def compile_program(design: Design, main: Path, done: Path) -> None:
    """Translate a design and link it with a C++ file that has ``main`` and includes `Model.h`."""
    scratch = done.parent.parent
    objects = _compile_parts(design, scratch, main)
    engine = compile_engine()  # for Verilator's run-time library in it
    library = [str(engine), f"-Wl,-rpath,{engine.parent}", "-pthread"]
    _run(["g++", *objects, *library, "-o", str(done)], scratch, design.module)


def _halves(files: list[Path]) -> list[list[Path]]:
    """Two lists of about equal size in bytes; the second is empty where there is one file."""
    halves: tuple[list[Path], list[Path]] = ([], [])
    sizes = [0, 0]
    for path in sorted(files, key=lambda path: -path.stat().st_size):
        smaller = sizes[1] < sizes[0]
        halves[smaller].append(path)
        sizes[smaller] += path.stat().st_size
    return [half for half in halves if half]


def _compile_engine(done: Path) -> None:
    include = _include()
    sources = [ENGINE[0], include / "verilated.cpp", include / "verilated_threads.cpp"]
    command = [*_compiler(OFTEN), "-shared", *map(str, sources), "-o", str(done / "engine.so")]
    _run(command, done.parent, "the stream harness")


def _compile_headers(done: Path) -> None:
    header = done / "headers.h"
    header.write_text(HEADERS)
    command = [*_compiler(OFTEN), "-x", "c++-header", str(header), "-o", f"{header}.gch"]
    _run(command, done.parent, "Verilator's headers")


def _include() -> Path:
    return verilator().parent.parent / "include"


def _compiler(optimise: str) -> list[str]:
    include = _include()
    return ["g++", *COMPILE, optimise, f"-I{include}", f"-I{include / 'vltstd'}"]


def _run(command: list[str], folder: Path, what: str) -> None:
    run = processes.run(command, cwd=folder, env=environment())
    if run.returncode:
        log = build_log(re.sub(r"\W+", "_", what), run.stdout + run.stderr)
        tool = "g++" if command[0] == "g++" else "Verilator"
        raise ToolError(f"{tool} could not compile {what}; its output is in {log}")


def tools() -> list[str]:
    """Everything besides its sources that a compiled simulation depends on."""
    options = repr([TRANSLATE, COMPILE, OFTEN, LARGE_ONCE, PARTS, LARGE, ENORMOUS])
    return [options, *_changes(), versions()]


@functools.cache
def _changes() -> list[str]:
    """The text of what changes a design before it is compiled."""
    return [
        file.read_text() for file in [Path(fast_verilog.__file__), *closure(*fast_verilog.USES)]
    ]


def keep_copies(files: Iterable[Path], folder: Path) -> None:
    """Copy files into the cache as one folder, whole or not at all, unless it exists."""
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


def _ports(design: Design) -> list[str]:
    """The ports in the order of ``DesignTable``."""
    streams = [*design.inputs, *design.outputs]
    clocks = ["clk", "rst"] if design.clocked else []
    parts = [f"{s}__{part}" for s in streams for part in ("payload", "valid", "ready")]
    return [*clocks, *parts, *design.constants, *design.observed]


def _table(design: Design) -> str:
    """C++ of the design's table of ports."""
    # Verilator's spelling of a double underscore.
    ports = [port.replace("__", "___05F") for port in _ports(design)]
    shapes = [*design.inputs.values(), *design.outputs.values()]
    words = ", ".join(str(payload.words(shape)) for shape in shapes)
    kinds = design.inputs, design.outputs, design.constants, design.observed
    counts = [int(design.clocked), *map(len, kinds)]
    lines = [
        f'#include "{INTERFACE}"',
        '#include "Model.h"',
        "namespace {",
        "struct Instance { VerilatedContext context; Model model{&context}; bool begun = false; };",
        "void* create(Port* port) {",
        "    Instance* const made = new Instance;",
        *(f"    *port++ = {{&made->model.{port}, sizeof made->model.{port}}};" for port in ports),
        "    return made;",
        "}",
        "void evaluate(void* made) {",
        "    static_cast<Instance*>(made)->begun = true;",
        "    static_cast<Instance*>(made)->model.eval();",
        "}",
        # Only the first evaluation makes what the last call ends: instances of a library.
        "void destroy(void* made) {",
        "    if (static_cast<Instance*>(made)->begun) static_cast<Instance*>(made)->model.final();",
        "    delete static_cast<Instance*>(made);",
        "}",
        f"const int64_t words[] = {{{words}}};",
        "const DesignTable table{create, evaluate, destroy,",
        f"    {', '.join(map(str, counts))}, words}};",
        "}",
        'extern "C" const DesignTable* design_table() { return &table; }',
    ]
    return "\n".join([*lines, ""])
