"""How often a design accesses the memories inside it: counters in its generated Verilog.

Each clocked statement that reads or writes a memory counts whenever it is executed; a memory that
is read without a clock counts a read in each cycle in which its address has changed. Counters of
all instances of a memory are added up in two further ports of the top module, which change nothing
else.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sim.core.design import Design
from sim.synth.hierarchy import MEMORY

DECLARED = re.compile(r"^  reg \[(\d+):0\] (\S+) \[(\d+):0\];\n", re.M)
CLOCKED = re.compile(r"^  always @\(posedge clk\)", re.M)
# What is before a memory's name in a statement that reads it, without a clock and with one.
ASSIGNED = re.compile(r"(?:assign|wire(?: \[\d+:0\])?) \S+ = [^;]*\Z")
INDEX = r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]"
TARGET = re.compile(rf"(?:(?:[\w$]+|\\\S+ )(?:{INDEX})*|\{{[^;{{}}]*\}}) <=\s[^;]*\Z")
# What is behind a row: a part of it, and the sign of an assignment.
SLICE = re.compile(r"\[(\d+)(?::(\d+))?\]")
WRITTEN = re.compile(r"\s*<=\s")
INITIAL = re.compile(r"\s*=\s")


@dataclasses.dataclass(frozen=True)
class Store:
    """A memory of a design that can be written, of more than MEMORY bits.

    module, name
        Names of the module, without the design's, and of the memory in it.
    rows, bits
        Depth and width.
    instances
        Instances of the module in the design.
    """

    module: str
    name: str
    rows: int
    bits: int
    instances: int


@dataclasses.dataclass(frozen=True)
class Accesses:
    """What was done with all instances of a memory.

    reads
        Rows read.
    written
        Bits written, as a write may be of a part of a row.
    """

    store: Store
    reads: int
    written: int

    def figures(self) -> dict[str, Any]:
        """As a row of a comparison has them."""
        return dataclasses.asdict(self.store) | {"reads": self.reads, "bits_written": self.written}


def counted(design: Design) -> tuple[Design, list[Store]]:
    """The design with its memories' counters as observed ports, and the memories in their order."""
    modules = {match[1]: match for match in _modules(design.verilog)}
    stores: list[Store] = []
    sums: list[str] = []
    pieces, end = [], 0
    paths = _paths({name: match[2] for name, match in modules.items()}, design.module)
    for name, match in modules.items():
        body = match[2]
        for at, declared in enumerate(DECLARED.finditer(match[2])):
            width, rows = int(declared[1]) + 1, int(declared[3]) + 1
            if width * rows <= MEMORY or name not in paths:
                continue
            changed, reads, written = _instrumented(body, declared[2], width, f"counted_{at}")
            if not written:  # a table
                continue
            body = changed
            short = name.removeprefix(f"{design.module}__")
            stores.append(Store(short, declared[2], rows, width, len(paths[name])))
            for counters in (reads, written):
                terms = [f"{path}{counter}" for path in paths[name] for counter in counters]
                sums.append(" + ".join(terms) or "64'd0")
        pieces += [design.verilog[end : match.start(2)], body]
        end = match.end(2)
    verilog = "".join([*pieces, design.verilog[end:]])
    names = tuple(f"counted_{kind}_{at}" for at in range(len(stores)) for kind in ("reads", "bits"))
    top = rf"^module {re.escape(design.module)}\(\n"
    ports = "".join(f"  output [63:0] {name},\n" for name in names)
    verilog = re.sub(top, lambda head: head[0] + ports, verilog, count=1, flags=re.M)
    head = re.search(top, verilog, re.M)
    assert head is not None
    last = verilog.index("endmodule", head.end())
    lines = "".join(f"  assign {n} = {of};\n" for n, of in zip(names, sums, strict=True))
    verilog = verilog[:last] + lines + verilog[last:]
    return dataclasses.replace(design, verilog=verilog, observed=names), stores


def accesses(
    stores: Sequence[Store], before: Mapping[str, int], after: Mapping[str, int]
) -> list[Accesses]:
    """Between two moments, from the observed ports' values."""
    spent = {name: value - before[name] for name, value in after.items()}
    return [
        Accesses(store, spent[f"counted_reads_{at}"], spent[f"counted_bits_{at}"])
        for at, store in enumerate(stores)
    ]


def _modules(verilog: str) -> Iterator[re.Match]:
    return re.finditer(r"^module (\S+)\(\n(.*?)^endmodule", verilog, re.M | re.S)


def _paths(bodies: Mapping[str, str], top: str) -> dict[str, list[str]]:
    """Paths of all instances of each module in use, as prefixes of their signals' names."""
    uses = {
        name: [
            (used, instance)
            for used, instance in re.findall(r"^  (\S+) (\\\S+ |\w+) ?\(\n    \.", body, re.M)
            if used in bodies
        ]
        for name, body in bodies.items()
    }

    @functools.cache
    def below(name: str) -> list[tuple[str, str]]:
        found = [(name, "")]
        for used, instance in uses[name]:
            found += [(module, f"{instance}.{path}") for module, path in below(used)]
        return found

    paths: dict[str, list[str]] = {}
    for module, path in below(top):
        paths.setdefault(module, []).append(path)
    return paths


def _instrumented(
    body: str, memory: str, width: int, prefix: str
) -> tuple[str, list[str], list[str]]:
    """A module's text with counters of one memory: their names, of reads and of bits written."""
    edits: dict[tuple[int, int], list[str]] = {}
    counters: dict[tuple[str, int], str] = {}
    lines: list[str] = []
    # A counter belongs to one clocked block, as two must not assign it.
    blocks = [match.start() for match in CLOCKED.finditer(body)]
    for found in re.finditer(rf"(?<![\w$.\\]){re.escape(memory)}\[", body):
        close = _closed(body, found.end() - 1)
        part = SLICE.match(body, close)
        after = part.end() if part else close
        if INITIAL.match(body, after):  # of an initial block
            continue
        end = body.index(";", after) + 1
        before = body[body.rfind(";", 0, found.start()) + 1 : found.start()]
        if WRITTEN.match(body, after):
            start, kind, step = found.start(), "bits", width
            if part:
                step = int(part[1]) - int(part[2] or part[1]) + 1
        elif ASSIGNED.search(before):
            address = body[found.end() : close - 1]
            name = f"{prefix}_address_{len(lines)}"
            counters["reads", -1 - len(lines)] = counter = f"{prefix}_reads_{len(lines)}"
            same = f"({address}) == {name}"
            counting = f"begin {name} <= {address}; {counter} = {counter} + 64'd1; end"
            lines.append(f"  reg [63:0] {name} = 64'd0;\n")
            lines.append(f"  always @(posedge clk) if (!({same})) {counting}\n")
            continue
        else:
            target = TARGET.search(before)
            assert target is not None, f"{memory}: a read of another form: {before}"
            start, kind, step = found.start() - len(target[0]), "reads", 1
        block = sum(at < start for at in blocks)
        counter = counters.setdefault((kind, block), f"{prefix}_{kind}_{block}")
        edits.setdefault((start, end), []).append(f"{counter} = {counter} + 64'd{step};")
    for (start, end), steps in sorted(edits.items(), reverse=True):
        body = f"{body[:start]}begin {body[start:end]} {' '.join(steps)} end{body[end:]}"
    lines = [f"  reg [63:0] {name} = 64'd0;\n" for name in counters.values()] + lines
    declared = re.search(rf"^  reg \[\d+:0\] {re.escape(memory)} \[\d+:0\];\n", body, re.M)
    assert declared is not None
    body = body[: declared.end()] + "".join(lines) + body[declared.end() :]
    reads, written = (
        [name for (kind, _), name in counters.items() if kind == of] for of in ("reads", "bits")
    )
    return body, reads, written


def _closed(text: str, at: int) -> int:
    """Where the bracket that opens at a place is closed, and one further."""
    depth = 0
    for place in range(at, len(text)):
        depth += {"[": 1, "]": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    raise AssertionError("a bracket is not closed")
