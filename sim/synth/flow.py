"""Maps a design to the cells of a library by Yosys and ABC.

After the same synthesis there are two recipes. ``area`` uses the smallest gates, without a delay
target and without buffers, so a net of large fan-out is slow. ``speed`` has a delay target of zero:
it restructures for depth, then inserts buffers and sizes gates, with a buffer as the driver of each
input. The generic set has one size of each gate.

A design is mapped as one piece by default. If `pieces` is a number of gates, sub-modules of at
least that size are mapped separately, each once however many instances it has, and joined again for
timing. Large designs then take minutes instead of hours; but no gates are merged across the border
of a piece, and none is sized for a load outside its piece.
"""

import dataclasses
import json
import re
import shutil
from pathlib import Path

from sim.core.yosys import yosys
from sim.synth import SynthesisError, function
from sim.synth.liberty import Cell, Library
from sim.synth.libraries import is_generic
from sim.synth.models import models
from sim.synth.netlist import Netlist
from sim.synth.timing import Timing, analyse

MODES = ("area", "speed")
# Truth tables, the first input changing slowest.
BUFFER = (False, True)
INVERTER = (True, False)
NAND2 = (True, True, True, False)
NOR2 = (True, False, False, False)

REGISTER = re.compile(r"^  cell \$_(?:S|AL)?DFF", re.M)  # of Yosys' gates
LARGE = 4000  # gates, before any are merged
CLEAN = "strash; ifraig; scorr; dc2; strash"
SHALLOW = "&get -n; &st; &if -g -K 6; &dch; &if -g -K 6; &dch; &if -g; &put; dch -f"
GENERIC_RECIPES = {
    "area": f"{CLEAN}; dch; amap; topo",
    "speed": f"{CLEAN}; {SHALLOW}; map; topo",
}
RECIPES = {
    "area": f"{CLEAN}; dch; amap; topo",
    "speed": f"{CLEAN}; {SHALLOW}; map -B 0.9; topo; buffer -c; topo; upsize; dnsize",
    # As speed, but no faster than a target, in ps.
    "clock": f"{CLEAN}; {SHALLOW}; map -B 0.9 -D {{target}}; topo; buffer -c; topo;"
    " upsize -D {target}; dnsize -D {target}",
}


@dataclasses.dataclass(frozen=True)
class Mapped:
    """A mapped design.

    verilog
        The netlist and models of its cells, in one text.
    """

    mode: str
    netlist: Netlist
    timing: Timing
    library: Library
    verilog: str

    @property
    def area(self) -> float:
        """Sum of the cells' areas, in the library's unit."""
        return sum(self.library.cells[cell.kind].area for cell in self.netlist.cells)

    @property
    def flipflops(self) -> int:
        kinds = self.library.cells
        return sum(kinds[cell.kind].register is not None for cell in self.netlist.cells)

    @property
    def delay(self) -> float:
        """Delay of the slowest path, in ps; 0 without a path."""
        worst = self.timing.worst
        return worst.delay if worst else 0.0


def gates(library: Library) -> dict[tuple, list[Cell]]:
    """Cells of one output by input names and truth table: one gate in all its sizes."""
    found: dict[tuple, list[Cell]] = {}
    for cell in library.cells.values():
        if cell.gate:
            inputs, text = cell.gate
            table = function.truth_table(text, list(inputs))
            found.setdefault((inputs, table), []).append(cell)
    return found


def smallest(library: Library, table: tuple[bool, ...]) -> str | None:
    """The smallest cell with that truth table, if there is one."""
    fitting = [c for (_, t), cells in gates(library).items() if t == table for c in cells]
    return min(fitting, key=lambda cell: (cell.area, cell.name)).name if fitting else None


def driver(library: Library) -> str | None:
    """The cell that drives inputs: the smallest buffer, or nothing for the generic set."""
    return None if is_generic(library) else smallest(library, BUFFER)


def nand2_area(library: Library) -> float | None:
    """Area of the smallest two-input NAND; None if the library has none."""
    name = smallest(library, NAND2)
    return library.cells[name].area if name else None


class Mapper:
    """Maps one design to one library, in one mode or several.

    rtlil
        The design, whose top module is `name`.
    folder
        An empty folder for the tools' files.
    pieces
        Number of gates, sub-modules' included, from which on a sub-module is mapped as a separate
        piece; None maps the design as one piece.

    :raises ToolError: if Yosys cannot synthesize the design.
    """

    def __init__(
        self, rtlil: str, name: str, library: Library, folder: Path, pieces: int | None = None
    ):
        self.name = name
        self.library = library
        self.folder = folder
        self.pieces = pieces
        self.driver = driver(library)
        (folder / "design.il").write_text(rtlil)
        shutil.copyfile(library.path, folder / "library.lib")
        self.abc = "abc -liberty library.lib"
        if is_generic(library):
            (folder / "gates.genlib").write_text(_genlib(library))
            self.abc = "abc -genlib gates.genlib"
        elif self.driver:
            (folder / "inputs.constr").write_text(f"set_driving_cell {self.driver}\nset_load 0\n")
            self.abc += " -constr inputs.constr"
        commands = [
            "read_rtlil design.il",
            # Flip-flops power up with any value; only a reset sets them.
            "attrmap -remove init",
            f"synth {'-flatten' if pieces is None else ''} -booth -noabc -top {name}",
            "tee -q -o gates.json stat -json",
            "write_rtlil gates.il",
        ]
        yosys(commands, folder, f"synthesize {name}")
        if REGISTER.search((folder / "gates.il").read_text()) and not any(
            cell.register and not cell.dont_use for cell in library.cells.values()
        ):
            raise SynthesisError(f"{library.name} has no flip-flops, which {name} needs")
        separate = (
            []
            if pieces is None
            else large_modules(json.loads((folder / "gates.json").read_text()), name, pieces)
        )
        self.gates = (folder / "gates.il").read_text().count("\n  cell ")
        commands = [
            "read_rtlil gates.il",
            *(f"setattr -mod -set keep_hierarchy 1 {module}" for module in separate),
            *(["flatten", "opt_clean"] if pieces is not None else []),
            # As `synth` does itself, but on large multipliers it takes minutes.
            *(["abc", "opt -fast"] if self.gates < LARGE else []),
            "attrmap -remove init",
            "delete */t:$scopeinfo",
            "dfflibmap -liberty library.lib",
            "write_rtlil prepared.il",
        ]
        yosys(commands, folder, f"map the registers of {name}")

    def map(self, mode: str, target: float = 0.0) -> Mapped:
        """The design mapped in a mode: ``area``, ``speed``, or ``clock`` with a target in ps.

        :raises SynthesisError: if the library lacks a cell, the design has latches or a loop.
        """
        recipe = (GENERIC_RECIPES if is_generic(self.library) else RECIPES)[mode]
        steps = recipe.format(target=round(target)).split("; ")
        abc = self.abc
        if mode != "area" and not is_generic(self.library):
            lone, complete = _lone_cells(self.library)
            if complete:
                abc += "".join(f" -dont_use {name}" for name in lone)
            else:
                at = next(n for n, step in enumerate(steps) if step.startswith("map "))
                steps[at : at + 1] = ["&get -n", "&nf", "&put"]
        (self.folder / "recipe.abc").write_text("\n".join([*steps, ""]))
        commands = [
            "read_rtlil prepared.il",
            f"{abc} -script recipe.abc",
            *(["setattr -mod -unset keep_hierarchy", "flatten"] if self.pieces is not None else []),
            "opt_clean",
            "write_json mapped.json",
            "write_verilog -noattr mapped.v",
        ]
        yosys(commands, self.folder, f"map {self.name} to {self.library.name}")
        netlist = Netlist.from_json((self.folder / "mapped.json").read_text(), self.name)
        timing = analyse(netlist, self.library, self.driver)
        verilog = (self.folder / "mapped.v").read_text()
        # Without Yosys' banner, which precedes the module.
        verilog = verilog[verilog.index("\nmodule") + 1 :] + "\n" + models(netlist, self.library)
        return Mapped(mode, netlist, timing, self.library, verilog)

    def map_for(self, clock: float, smallest: Mapped | None = None) -> Mapped:
        """The smallest of three mappings that meets a clock period (ps), or else the fastest.

        smallest
            The mapping of mode ``area``, if there is one already.
        """
        found = smallest or self.map("area")
        if found.delay <= clock:
            return dataclasses.replace(found, mode="clock")
        tried = [found, self.map("clock", max(1.0, clock - _register_share(found.timing)))]
        if tried[-1].delay > clock:
            tried.append(self.map("speed"))
        best = min(tried, key=lambda m: (m.delay > clock, m.area if m.delay <= clock else m.delay))
        return dataclasses.replace(best, mode="clock")


def _register_share(timing: Timing) -> float:
    """Clock-to-output plus setup on the slowest path between registers, in ps: not ABC's to cut."""
    path = timing.paths.get("register-register")
    return path.steps[0].arrival + path.delay - path.steps[-1].arrival if path else 0.0


def large_modules(statistics: dict, top: str, least: int) -> list[str]:
    """Modules of at least `least` gates, not counting gates of other such modules inside them."""
    modules = statistics["modules"]
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        """Gates of a module and of those that are flattened into it."""
        if name not in sizes:
            total = 0
            for kind, count in modules[name]["num_cells_by_type"].items():
                inside = size(f"\\{kind}") if f"\\{kind}" in modules else 1
                total += count * (inside if inside < least else 0)
            sizes[name] = total
        return sizes[name]

    size(f"\\{top}")
    return [name for name, gates in sizes.items() if gates >= least and name != f"\\{top}"]


def _lone_cells(library: Library) -> tuple[list[str], bool]:
    """Gates of one size only, and whether the others suffice for any function.

    ABC's `map` derives a gate's delay from its larger sizes, and crashes on a gate of one size. It
    ignores gates of more than five inputs.
    """
    found = {key: cells for key, cells in gates(library).items() if len(key[0]) <= 5}
    lone = [cells[0].name for cells in found.values() if len(cells) == 1]
    sized = {table for (_, table), cells in found.items() if len(cells) > 1}
    return lone, INVERTER in sized and bool(sized & {NAND2, NOR2})


def _genlib(library: Library) -> str:
    """The library's gates for ABC, each with a delay of 1 whatever its load."""
    lines = []
    for cell in library.cells.values():
        for pin in cell.pins.values():
            if cell.register is None and pin.direction == "output" and pin.function:
                logic = function.to_genlib(function.parse(pin.function))
                lines.append(f"GATE {cell.name} {cell.area} {pin.name}={logic};")
                lines.append("PIN * UNKNOWN 1 999 1.0 0.0 1.0 0.0")
    return "\n".join([*lines, ""])
