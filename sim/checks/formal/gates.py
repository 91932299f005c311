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

    def waiting(self, valid: int, ready: int, payload: Iterable[int], reset: int) -> int:
        """Whether a stream's beat was not taken in the cycle before, and is not offered now as
        it was then."""
        waits = self.register()
        self.connect(waits, self.both(self.both(valid, ready ^ 1), reset ^ 1))
        changes = [valid ^ 1]
        for bit in payload:
            before = self.register()
            self.connect(before, bit)
            changes.append(self.differ(bit, before))
        return self.both(waits, self.any(changes))

    def behind(self, output: int, distance: int | None = None) -> tuple[set[int], set[int]]:
        """Literals of nodes that `output` depends on, and of the registers among them.

        distance
            Registers between an output and a node, at most; what is behind is left out, and so are
            registers at that distance among the registers. All if None.
        """
        operands = {node: (a, b) for node, a, b in self._ands}
        nodes, registers, front = {0}, set(), [output & ~1]
        while front:
            following = []
            while front:
                node = front.pop()
                if node in nodes:
                    continue
                nodes.add(node)
                if node in operands:
                    front += [operand & ~1 for operand in operands[node]]
                elif node in self._registers and distance != 0:
                    registers.add(node)
                    following.append(self._registers[node] & ~1)
            front = following
            distance = distance and distance - 1
        return nodes, registers

    def write(self, path: Path, output: int, distance: int | None = None) -> None:
        """A binary AIGER file with one output, and all that is :meth:`behind` it.

        Registers that are not among those may have any value in any cycle.
        """
        nodes, registers = self.behind(output, distance)
        unbound = nodes - registers
        free = [node for node in (*self._inputs, *self._registers) if node in unbound]
        kept = [node for node in self._registers if node in registers]
        ands = [row for row in self._ands if row[0] in nodes]
        order = [*free, *kept, *(node for node, _, _ in ands)]
        numbers = {literal >> 1: number for number, literal in enumerate(order, start=1)}
        numbers[0] = 0

        def written(literal: int) -> int:
            return 2 * numbers[literal >> 1] | literal & 1

        lines = [f"aig {len(order)} {len(free)} {len(kept)} 1 {len(ands)}"]
        ends = [*(self._registers[node] for node in kept), output]
        lines += [str(written(literal)) for literal in ends]
        body = bytearray()
        for node, a, b in ands:
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
