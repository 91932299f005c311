"""Mutants of a design: one netlist with many faults, of which a select input switches on one.

Yosys' ``mutate`` makes the faults: a bit of a cell's port is stuck at 0 or 1, inverted, or inverted
while another bit of the port is 0 or 1. The netlist with all faults is compiled once. Its input
``mutsel`` is the number of the active fault; 0 is the original design.
"""

import dataclasses
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hw.catalogue import Block
from hw.emit.export import to_rtlil
from hw.parameters import ParameterError, Parameters
from sim.core.design import Design, generate, with_streams
from sim.core.tools import ROOT
from sim.core.yosys import yosys

SELECT = "mutsel"

# Excluded: a register on the wrong clock edge, which a testbench with one clock cannot notice, and
# resets of a memory's read ports, which Yosys wants to be constant.
FIXED = r" -port \\?(CLK|RD_CLK|WR_CLK|RD_ARST|RD_SRST) "

LISTED_WITHIN = 20
"""Factor by which more mutants are listed if only some source lines are wanted."""

MODES = {
    "inv": "inverted",
    "const0": "stuck at 0",
    "const1": "stuck at 1",
    "cnot0": "inverted while bit {control} is 0",
    "cnot1": "inverted while bit {control} is 1",
    "none": "unchanged",
}

# Assertions and printing are not hardware, and are removed before faults are listed.
_PREPARE = """\
read_rtlil design.il
hierarchy -top {top}
proc
flatten
opt_expr
opt_clean
memory_collect
delete t:$check t:$scopeinfo t:$print
opt_clean
write_rtlil prepared.il
"""

_LIST = "mutate -list {count} -seed {seed} -o {file} {cells}"

# For proofs, registers without a reset power up with any value, as on a chip: no initial values.
_INSERT = """\
read_rtlil prepared.il
{mutations}
opt_clean
write_verilog -noattr mutants.v
memory_map
opt_clean
setattr -unset init w:*
dffunmap
write_smt2 mutants.smt2
"""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault.

    number
        Value of the select input that switches it on; 1 and up.
    mode
        Yosys' name of the fault, a key of `MODES`.
    cell, port, bit
        The port bit that is changed, named as in the flattened netlist.
    control
        Bit of the same port that switches a conditional fault.
    sources
        Python lines that made the cell and its wire, as ``file:line``, this project's first.
    """

    number: int
    mode: str
    cell: str
    port: str
    bit: int
    control: int | None
    sources: tuple[str, ...]

    @property
    def line(self) -> str:
        """The one source line that reports name."""
        return self.sources[0] if self.sources else "unknown"

    @property
    def instance(self) -> str:
        """The sub-block of the cell, such as ``scheduler.map``; empty for the block's own."""
        return re.sub(r"^\$flatten|\\", "", self.cell).rpartition(".")[0]

    def __str__(self) -> str:
        what = MODES[self.mode].format(control=self.control)
        return f"{self.cell} {self.port}[{self.bit}] {what}"


@dataclasses.dataclass(frozen=True)
class Mutants:
    """A design and all its faults.

    design
        To simulate; its constant `SELECT` chooses the mutant.
    smt2
        The same netlist as Yosys' SMT-LIB transition system, memories mapped to registers.
    """

    design: Design
    mutants: tuple[Mutant, ...]
    smt2: str


def create(
    block: Block,
    parameters: Parameters,
    count: int,
    seed: int,
    within: str | None = None,
    instances: Sequence[str] = (),
) -> Mutants:
    """`count` mutants, spread evenly over the design by Yosys; fewer if the design is too small.

    within
        A regular expression that the source line of each is to match.
    instances
        Sub-blocks, as :attr:`Mutant.instance` names them: `count` mutants in each, in this order.
    :raises ToolError: if Yosys fails.
    """
    design = generate(block, parameters)
    rtlil = to_rtlil(with_streams(block.create(parameters)), design.module, emit_src=True)
    with tempfile.TemporaryDirectory(prefix="mutants_") as folder:
        work = Path(folder)
        (work / "design.il").write_text(rtlil)
        listed = 2 * count + 10
        if within:
            # Yosys does not terminate if far more faults are requested than the cells have.
            listed = max(listed, min(LISTED_WITHIN * listed, 2 * rtlil.count("\n  cell ")))
        selections = [_cells_of(instance) for instance in instances] or [""]
        files = [f"mutations{number}.txt" for number in range(len(selections))]
        lists = [
            _LIST.format(count=listed, seed=seed, file=file, cells=cells)
            for file, cells in zip(files, selections, strict=True)
        ]
        prepare = "\n".join([_PREPARE.format(top=design.module), *lists])
        yosys([prepare], work, f"list faults of {design.module}")
        prepared = (work / "prepared.il").read_text()
        sources = _CellSources(prepared)
        fixed = [FIXED, *_reads_without_clock(prepared)]
        found = [_commands((work / file).read_text(), fixed) for file in files]
        if within:
            pattern = re.compile(within)
            found = [
                [it for it in of if pattern.search(_mutant(0, it, sources).line)] for of in found
            ]
            if not any(found):
                raise ParameterError(f"no fault of {design.module} has a source line like {within}")
        commands = [command for of in found for command in of[:count]]
        bits = len(commands).bit_length()
        switched = (
            f"mutate -ctrl {SELECT} {bits} {number} {command}"
            for number, command in enumerate(commands, start=1)
        )
        insert = _INSERT.format(mutations="\n".join(switched))
        yosys([insert], work, f"make mutants of {design.module}")
        verilog, smt2 = ((work / f"mutants.{kind}").read_text() for kind in ("v", "smt2"))
    mutants = tuple(_mutant(number, text, sources) for number, text in enumerate(commands, start=1))
    faulty = dataclasses.replace(design, verilog=verilog, constants=(SELECT,))
    return Mutants(faulty, mutants, smt2)


def _cells_of(instance: str) -> str:
    """Yosys' selection of an instance's cells, without the cells of the instances within."""
    if not instance:
        return "c:* c:*.* %d"
    # Names are like $flatten\pe_array.\pe_1.$243 or, of a memory, scheduler.map.rows.
    plain, flat = instance + ".", "$flatten" + "".join(f"?{name}." for name in instance.split("."))
    return f"c:{plain}* c:{flat}* %u c:{plain}*.* c:{flat}*.* %u %d"


def _commands(text: str, fixed: list[str]) -> list[str]:
    """Yosys' faults, without those that match one of `fixed`."""
    return [
        command.removeprefix("mutate ")
        for command in text.splitlines()
        if command.strip() and not any(re.search(ports, command) for ports in fixed)
    ]


def _reads_without_clock(rtlil: str) -> list[str]:
    """Patterns of enables of combinational read ports, which must be constant."""
    found = []
    for name, body in re.findall(r"  cell \$mem_v2 (\S+)\n(.*?)\n  end\n", rtlil, re.DOTALL):
        [clocks] = re.findall(r"parameter \\RD_CLK_ENABLE \d+'([01]+)", body)
        cell = re.escape(name.removeprefix("\\"))
        bits = "|".join(str(bit) for bit, clocked in enumerate(reversed(clocks)) if clocked == "0")
        if bits:
            found.append(rf" -cell \\?{cell} -port \\?RD_EN -portbit ({bits}) ")
    return found


def _mutant(number: int, command: str, cells: "_CellSources") -> Mutant:
    # Such as: -mode cnot0 -module top -cell $add -port A -portbit 3 -ctrlbit 1 -src lane.py:42
    options = dict(re.findall(r"-(mode|cell|port|portbit|ctrlbit) (\S+)", command))
    cell, control = options["cell"], options.get("ctrlbit")
    # The wire's line comes before the cell's, which says more about what is wrong.
    sources = re.findall(r" -src (\S+)", command)[::-1]
    if not any(map(_is_ours, sources)):
        sources = cells.behind(cell) + sources
    return Mutant(
        number=number,
        mode=options["mode"],
        cell=cell.lstrip("\\"),
        port=options["port"],
        bit=int(options["portbit"]),
        control=None if control is None else int(control),
        sources=tuple(map(_short, sorted(sources, key=_is_ours, reverse=True))),
    )


def _is_ours(source: str) -> bool:
    return source.startswith(f"{ROOT}/") and "/site-packages/" not in source


def _short(source: str) -> str:
    if _is_ours(source):
        return source.removeprefix(f"{ROOT}/")
    return re.sub(r".*/(site-packages|python[0-9.]+)/", "", source)


class _CellSources:
    """Source lines for cells without one of this project, such as multiplexers of an ``m.If``.

    The line is taken from the nearest cell downstream which has one.
    """

    def __init__(self, rtlil: str):
        self._readers: dict[str, list[str]] = {}
        self._output: dict[str, str] = {}
        self._sources: dict[str, list[str]] = {}
        attributes = r"((?:  attribute [^\n]*\n)*)"
        self._wires = {
            name: _sources_in(found)
            for found, name in re.findall(attributes + r"  wire [^\n]*?(\S+)\n", rtlil)
        }
        cell = attributes + r"  cell \S+ (\S+)\n(.*?)\n  end\n"
        for found, name, body in re.findall(cell, rtlil, re.DOTALL):
            self._sources[name] = _sources_in(found)
            for port, value in re.findall(r"connect \\(\S+) (.*)", body):
                for wire in re.findall(r"[\\$][^\s]+", value):
                    if port == "Y":
                        self._output[name] = wire
                    else:
                        self._readers.setdefault(wire, []).append(name)

    def behind(self, cell: str) -> list[str]:
        seen, front = set(), [cell]
        foreign: list[str] = []
        while front:
            name = front.pop(0)
            output = self._output.get(name, "")
            sources = self._sources.get(name) or self._wires.get(output, [])
            if any(map(_is_ours, sources)):
                return sources
            foreign = foreign or sources
            if name not in seen:
                seen.add(name)
                front += self._readers.get(output, [])
        return foreign


def _sources_in(attributes: str) -> list[str]:
    found = re.search(r'\\src "([^"]*)"', attributes)
    return found[1].split("|") if found else []
