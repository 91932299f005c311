"""And-inverter graphs: two-input ANDs, inverters and registers, and the AIGER format.

A literal is twice the number of a node, plus 1 where it is inverted; 0 is false and 1 is true
(A. Biere, "The AIGER And-Inverter Graph (AIG) format", 2007).
"""

import dataclasses
import itertools
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from sim.core.yosys import yosys

# Values that the text leaves open (`x`) become free inputs. Registers lose what they hold when
# power comes up.
READ = """\
read_verilog design.v
hierarchy -top {top}
proc
flatten
opt_clean
memory_map
opt -fast
techmap
simplemap
opt -fast
setattr -unset init w:*
dfflegalize -cell $_DFF_P_ x
opt_clean
setundef -undriven -anyseq
aigmap
opt_clean
write_aiger -ascii -symbols design.aag"""


class Graph:
    """A graph to build: equal ANDs are one node, and constants are propagated."""

    def __init__(self) -> None:
        self._nodes = 0
        self._inputs: list[int] = []
        self._registers: dict[int, int] = {}
        self._ands: list[tuple[int, int, int]] = []
        self._known: dict[tuple[int, int], int] = {}

    def _node(self) -> int:
        self._nodes += 1
        return 2 * self._nodes

    def input(self) -> int:
        self._inputs.append(self._node())
        return self._inputs[-1]

    def register(self) -> int:
        """A register, 0 at first and always unless it is connected."""
        literal = self._node()
        self._registers[literal] = 0
        return literal

    def connect(self, register: int, following: int) -> None:
        self._registers[register] = following

    def both(self, a: int, b: int) -> int:
        a, b = min(a, b), max(a, b)
        if a == 0 or a == b ^ 1:
            return 0
        if a == 1 or a == b:
            return b
        if (a, b) not in self._known:
            self._known[a, b] = self._node()
            self._ands.append((self._known[a, b], a, b))
        return self._known[a, b]

    def either(self, a: int, b: int) -> int:
        return self.both(a ^ 1, b ^ 1) ^ 1

    def differ(self, a: int, b: int) -> int:
        return self.either(self.both(a, b ^ 1), self.both(a ^ 1, b))

    def choose(self, select: int, a: int, b: int) -> int:
        """`a` if `select` is true, else `b`."""
        return self.either(self.both(select, a), self.both(select ^ 1, b))

    def any(self, literals: Iterable[int]) -> int:
        """Whether one of them is true, by a balanced tree, as ABC recurses over levels."""
        row = list(literals)
        while len(row) > 1:
            pairs = itertools.zip_longest(row[::2], row[1::2], fillvalue=0)
            row = [self.either(a, b) for a, b in pairs]
        return row[0] if row else 0

    def at_most(self, word: list[int], limit: int) -> int:
        """Whether an unsigned number, its lowest bit first, is `limit` or less."""
        holds = 1
        for bit, literal in enumerate(word):
            if limit >> bit & 1:
                holds = self.either(literal ^ 1, holds)
            else:
                holds = self.both(literal ^ 1, holds)
        return holds

    def write(self, path: Path, output: int) -> None:
        """A binary AIGER file with one output."""
        order = [*self._inputs, *self._registers, *(node for node, _, _ in self._ands)]
        numbers = {literal >> 1: number for number, literal in enumerate(order, start=1)}
        numbers[0] = 0

        def written(literal: int) -> int:
            return 2 * numbers[literal >> 1] | literal & 1

        sizes = len(self._inputs), len(self._registers), 1, len(self._ands)
        lines = [f"aig {len(order)} {' '.join(map(str, sizes))}"]
        lines += [str(written(literal)) for literal in (*self._registers.values(), output)]
        body = bytearray()
        for node, a, b in self._ands:
            less, more = sorted((written(a), written(b)))
            for difference in (written(node) - more, more - less):
                while difference > 127:
                    body.append(difference & 127 | 128)
                    difference >>= 7
                body.append(difference)
        path.write_bytes("\n".join([*lines, ""]).encode() + body)


@dataclasses.dataclass(frozen=True)
class Netlist:
    """A flat design as it was read.

    inputs, outputs
        Port to literals, the lowest bit first.
    free
        Inputs without a port: values that the text leaves open.
    registers
        Literal of a register, and of its next value.
    ands
        Node and operands, operands first.
    """

    inputs: Mapping[str, list[int]]
    free: list[int]
    outputs: Mapping[str, list[int]]
    registers: list[tuple[int, int]]
    ands: list[tuple[int, int, int]]

    def copy(self, graph: Graph, values: Mapping[int, int]) -> Callable[[int], int]:
        """Add the ANDs to a graph, where inputs and registers have `values`, by literal.

        Returns the function from a literal of the netlist to the graph's.
        """
        nodes = {0: 0} | {literal >> 1: value for literal, value in values.items()}

        def literal(own: int) -> int:
            return nodes[own >> 1] ^ own & 1

        for node, a, b in self.ands:
            nodes[node >> 1] = graph.both(literal(a), literal(b))
        return literal


def read(verilog: str, top: str) -> Netlist:
    """A design with one clock as a netlist.

    :raises ToolError: if Yosys fails.
    """
    with tempfile.TemporaryDirectory(prefix="gates_") as folder:
        Path(folder, "design.v").write_text(verilog)
        yosys([READ.format(top=top)], Path(folder), f"make gates of {top}")
        return parse(Path(folder, "design.aag").read_text())


def parse(text: str) -> Netlist:
    """A netlist from AIGER's ASCII format, with the names of its ports."""
    lines = text.splitlines()
    rows = iter(lines[1:])
    sizes = [int(size) for size in lines[0].split()[2:6]]
    inputs, registers, outputs, ands = (
        [[int(literal) for literal in next(rows).split()] for _ in range(size)] for size in sizes
    )
    ports: dict[str, dict[str, dict[int, int]]] = {"i": {}, "o": {}}
    named = set()
    for line in rows:
        if line == "c":  # a comment follows
            break
        found = re.fullmatch(r"([io])(\d+) (\w\S*?)(?:\[(\d+)\])?", line)
        if found:
            [literal] = (inputs if found[1] == "i" else outputs)[int(found[2])]
            ports[found[1]].setdefault(found[3], {})[int(found[4] or 0)] = literal
            named.add(literal)
    words = {
        side: {name: [bits[bit] for bit in range(len(bits))] for name, bits in of.items()}
        for side, of in ports.items()
    }
    return Netlist(
        words["i"],
        [literal for [literal] in inputs if literal not in named],
        words["o"],
        [(row[0], row[1]) for row in registers],
        [(row[0], row[1], row[2]) for row in ands],
    )
