"""Maps a design module by module: each distinct module once, its area times its instances.

A module of at least `least` gates is a *piece*, mapped by itself with what it contains; smaller
ones become part of the module around them, and pieces inside a piece are left out. The area of the
design is the sum over all instances. A piece's inputs and the outputs of the pieces inside it are
driven as a design's inputs are, and nothing loads what it gives to others, so

- the slowest piece's delay is a lower bound of the clock period: paths across borders are not seen;
- no logic is shared or removed across a border, which flat mapping would do.

Memories of more than MEMORY bits that can be written are no gates: their bits are counted. Smaller
ones are mapped as flip-flops, as they are in a flat mapping.
"""

import dataclasses
import json
import re
import tempfile
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

from sim.core.jobs.kept import Results
from sim.core.yosys import yosys
from sim.synth import liberty
from sim.synth.flow import Mapper, large_modules

MEMORY = 4096
"""Number of bits up to which a memory is mapped as flip-flops."""

LEAST = 1000
"""Gates, before any are merged, from which on a module is a piece, if nobody says otherwise."""

TOP = "(top)"
"""Name of the part that is the design without its pieces."""

SOURCES = tuple(
    f"sim/synth/{name}.py" for name in ("flow", "hierarchy", "liberty", "netlist", "timing")
)
"""Files that decide a piece's result, beside its text."""

MODULE = re.compile(r"^(?:attribute [^\n]*\n)*module (\\\S+)\n.*?^end\n", re.M | re.S)
PORT = re.compile(
    r"^  wire (?:width \d+ )?(?:upto )?(?:input|output) \d+ (?:signed )?\\\S+\n", re.M
)
NUMBER = re.compile(r"parameter (?:signed )?\\(\w+) (\d+')?(\d+)\n")
USED = re.compile(r"^  cell (\\\S+) ", re.M)
STORE = re.compile(
    r"^  cell \$mem_v2 (\S+)\n((?:    (?:parameter|connect) [^\n]*\n)+)  end\n", re.M
)


@dataclasses.dataclass(frozen=True)
class Piece:
    """What was found of a piece without the pieces inside it.

    inside
        Instances of other pieces and of memories, by module.
    """

    inside: dict[str, int]
    area: float
    cells: int
    flipflops: int
    delay: float
    start: str | None
    end: str | None


@dataclasses.dataclass(frozen=True)
class Part:
    """A piece as a part of its design.

    module
        Its name without the design's; the design's own is TOP.
    instances
        In the whole design.
    area_um2, memory_bits
        One instance without the pieces inside it; `whole_um2`, `whole_memory_bits` are with them.
    """

    module: str
    instances: int
    area_um2: float
    whole_um2: float
    cells: int
    flipflops: int
    delay_ps: float
    memory_bits: int
    whole_memory_bits: int


def without_memories(rtlil: str) -> tuple[str, dict[str, int]]:
    """A design after Yosys' ``memory -nomap`` with each large memory as an empty module.

    Also gives the bits of these modules, by name.
    """
    modules, memories = [], {}
    shells = {}
    for match in MODULE.finditer(rtlil):

        def replace(found: re.Match) -> str:
            number = {
                name: int(value, 2 if width else 10)
                for name, width, value in NUMBER.findall(found[2])
                if name in ("WIDTH", "SIZE", "ABITS", "RD_PORTS", "WR_PORTS")
            }
            bits = number["WIDTH"] * number["SIZE"]
            if bits <= MEMORY or not number["WR_PORTS"]:
                return found[0]
            ports = number["RD_PORTS"], number["WR_PORTS"], number["WIDTH"], number["ABITS"]
            name = "\\memory_{}x{}_{}r{}w".format(number["SIZE"], number["WIDTH"], *ports[:2])
            memories[name], shells[name] = bits, _memory(name, *ports)
            wires = re.findall(r"^    connect [^\n]*\n", found[2], re.M)
            return f"  cell {name} {found[1]}\n{''.join(wires)}  end\n"

        modules.append(STORE.sub(replace, match[0]))
    return "".join([*modules, *shells.values()]), memories


def _memory(name: str, reads: int, writes: int, width: int, address: int) -> str:
    """An empty module with the ports of Yosys' memory cell."""
    sizes = {f"RD_{port}": ("input", reads) for port in ("CLK", "EN", "ARST", "SRST")}
    sizes |= {"RD_ADDR": ("input", reads * address), "RD_DATA": ("output", reads * width)}
    sizes |= {"WR_CLK": ("input", writes), "WR_EN": ("input", writes * width)}
    sizes |= {"WR_ADDR": ("input", writes * address), "WR_DATA": ("input", writes * width)}
    wires = [
        f"  wire width {max(1, size)} {direction} {number} \\{port}\n"
        for number, (port, (direction, size)) in enumerate(sizes.items(), 1)
    ]
    return f"attribute \\blackbox 1\nmodule {name}\n{''.join(wires)}end\n"


def _shell(text: str) -> str:
    """A module without its content."""
    [head] = re.findall(r"^module \S+\n", text, re.M)
    return f"attribute \\blackbox 1\n{head}{''.join(PORT.findall(text))}end\n"


def measure_piece(rtlil: str, library: str, sha256: str, mode: str) -> Piece:
    """Map the module ``piece``, whose inner pieces are empty modules.

    sha256
        Hash of the library's content, for the key of the kept result.
    """
    with tempfile.TemporaryDirectory(prefix="synth_") as scratch:
        folder = Path(scratch)
        (folder / "piece.il").write_text(rtlil)
        commands = [
            "read_rtlil piece.il",
            "hierarchy -top piece",
            "flatten",
            "delete */t:$scopeinfo",
            "opt_clean",
            "tee -q -o inside.json stat -json",
            # What an inner piece is connected to is connected to the outside from here on.
            "expose -evert piece",
            "hierarchy -top piece",
            "opt_clean",
            "write_rtlil everted.il",
        ]
        yosys(commands, folder, "separate a module")
        statistics = json.loads((folder / "inside.json").read_text())["modules"]
        kinds = statistics["\\piece"]["num_cells_by_type"]
        mapper = Mapper(
            (folder / "everted.il").read_text(), "piece", liberty.read(Path(library)), folder
        )
        found = mapper.map(mode)
        worst = found.timing.worst
        return Piece(
            {kind: count for kind, count in kinds.items() if not kind.startswith("$")},
            found.area,
            len(found.netlist.cells),
            found.flipflops,
            found.delay,
            worst.start if worst else None,
            worst.end if worst else None,
        )


class Hierarchy:
    """A design whose pieces are mapped.

    least
        Gates, before any are merged, from which on a module is a piece.

    :raises ToolError: if Yosys cannot synthesize a module.
    """

    def __init__(self, rtlil: str, name: str, library: str, sha256: str, mode: str, least: int):
        self.top = name
        self._synthesize(rtlil, least)
        kept = Results(SOURCES)
        self.pieces: dict[str, Piece] = {}
        for module in self._separate:
            arguments = (self._text(module), library, sha256, mode)
            found = kept.load(measure_piece, arguments)
            if found is None:
                found = measure_piece(*arguments)
                kept.store(measure_piece, arguments, found)
            names = {f"\\{kind}": count for kind, count in found.inside.items()}
            inside = {re.sub(r"^\\of__", f"\\\\{name}__", n): c for n, c in names.items()}
            self.pieces[module] = dataclasses.replace(found, inside=inside)

    def _synthesize(self, rtlil: str, least: int) -> None:
        """Find the gates of each module, and which are pieces."""
        with tempfile.TemporaryDirectory(prefix="synth_") as scratch:
            folder = Path(scratch)
            (folder / "design.il").write_text(rtlil)
            commands = [
                "read_rtlil design.il",
                # Flip-flops power up with any value; only a reset sets them.
                "attrmap -remove init",
                f"hierarchy -check -top {self.top}",
                "proc",
                "opt_expr",
                "opt_clean",
                "memory -nomap",
                "opt_clean",
                "write_rtlil coarse.il",
            ]
            yosys(commands, folder, f"read {self.top}")
            text, self.memories = without_memories((folder / "coarse.il").read_text())
            (folder / "logic.il").write_text(text)
            commands = [
                "read_rtlil logic.il",
                f"synth -booth -noabc -top {self.top}",
                "tee -q -o gates.json stat -json",
                "write_rtlil gates.il",
            ]
            yosys(commands, folder, f"synthesize {self.top}")
            statistics = json.loads((folder / "gates.json").read_text())
            text = (folder / "gates.il").read_text()
        self._modules = {match[1]: match[0] for match in MODULE.finditer(text)}
        self._separate = [f"\\{self.top}", *large_modules(statistics, self.top, least)]

    def _text(self, name: str) -> str:
        """A module, the small modules inside it, and the pieces inside it as empty modules.

        Names are without the design's, which does not matter to a kept result.
        """
        texts = {name: self._modules[name].replace(f"module {name}\n", "module \\piece\n")}
        waiting = [name]
        while waiting:
            for used in USED.findall(texts[waiting.pop()]):
                if used in texts or used not in self._modules:
                    continue
                text = self._modules[used]
                if used in self.memories or used in self._separate:
                    texts[used] = _shell(text)
                else:
                    texts[used] = text
                    waiting.append(used)
        return "".join(texts.values()).replace(f"\\{self.top}__", "\\of__")

    def parts(self) -> list[Part]:
        """All pieces, each after those that it is inside of."""
        top = f"\\{self.top}"
        order = list(
            TopologicalSorter({n: p.inside for n, p in self.pieces.items()}).static_order()
        )
        order = [name for name in order if name in self.pieces]
        instances = Counter({top: 1})
        for name in reversed(order):
            for used, count in self.pieces[name].inside.items():
                instances[used] += count * instances[name]
        area: dict[str, float] = {}
        bits: dict[str, int] = {}
        found = []
        for name in order:
            piece = self.pieces[name]
            own = sum(c * self.memories.get(used, 0) for used, c in piece.inside.items())
            below = [(used, c) for used, c in piece.inside.items() if used in self.pieces]
            area[name] = piece.area + sum(c * area[used] for used, c in below)
            bits[name] = own + sum(c * bits[used] for used, c in below)
            part = Part(
                TOP if name == top else name.removeprefix(f"{top}__"),
                instances[name],
                round(piece.area, 3),
                round(area[name], 3),
                piece.cells,
                piece.flipflops,
                round(piece.delay, 1),
                own,
                bits[name],
            )
            found.append(part)
        return found[::-1]
