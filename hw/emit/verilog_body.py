"""The inside of a module as Yosys writes it, made readable without a change of any bit.

- Registers are loaded in one clocked process, with equal conditions and resets put together.
- States and members of enumerations are ``localparam`` names.
- A result without a name in the source is written where it is read, if that is one place or it is
  short. A wire that is only another name of a signal goes, and wires at a sub-block are named
  after it.
- The name of a field replaces the slice of its structure.
- A wire is declared with its value, behind the wires that it depends on.
"""

import dataclasses
import re
from collections.abc import Callable, Container, Iterator, Mapping

from hw.emit import verilog_process as process
from hw.emit.verilog_expression import (
    Expression,
    Shapes,
    UnknownText,
    names_in,
    parse,
    written,
)
from hw.emit.verilog_process import Assign, Case, If, Statement

START = "run_at_time_0"
"""A register of constant 0 that Yosys reads in each ``always @*``.

Its first value is an event at time 0. Without it a simulator would not compute what depends on
constants alone.
"""
# An initial value in the declaration is no event in SystemVerilog, and a blocking assignment may
# come before an `always @*` waits for it.
START_LINES = f"""\
  reg {START};
  initial {START} <= 0;  // makes each always @* run at time 0
"""

ANONYMOUS = re.compile(r"_\d+_")
RESET = ("name", "rst")

DECLARATION = re.compile(
    r"  (wire|reg) (signed )?(?:\[(\d+):0\] )?(\w+)(?: = ([^;]+))?( \[\d+:0\])?;$"
)
# A signal of no bits, which nothing reads; Verilog would take it for one of two.
NO_BITS = re.compile(r"  (?:wire|reg) (?:signed )?\[-1:0\] ")
HEADER_PORT = re.compile(
    r"  (input|output|inout) (reg )?(signed )?(?:\[(\d+):0\] )?(\w+)(?: = ([^,]+))?,?$"
)
INSTANCE = re.compile(r"  (\w+) (\w+) \(\n(.*)\n  \);$", re.S)
CONNECTION = re.compile(r"    \.(\w+)\((.*)\),?$")
ENUMERATION = re.compile(r"  \(\* enum_value_([01]+) = \"([^\"]*)\" \*\)$")
CLOCKED = "  always @(posedge clk)"
COMBINATIONAL = "  always @*"


@dataclasses.dataclass
class Wire:
    """A declaration: of a port (in the header), a wire, a register or a memory.

    start
        Initial value; of a memory, its range of rows.
    """

    kind: str
    width: int
    signed: bool = False
    start: str = ""
    port: bool = False
    members: dict[int, str] = dataclasses.field(default_factory=dict)
    attributes: list[str] = dataclasses.field(default_factory=list)

    def declared(self, name: str) -> str:
        kind = "reg" if self.kind == "memory" else self.kind
        sign = "signed " * self.signed
        size = f"[{self.width - 1}:0] " if self.width > 1 else ""
        start = f" {self.start}" if self.kind == "memory" else f" = {self.start}" * bool(self.start)
        return f"  {kind} {sign}{size}{name}{start}"


@dataclasses.dataclass
class Instance:
    """connections: what each port is wired to, and whether it is an input."""

    module: str
    name: str
    connections: list[tuple[str, Expression, bool]]
    attributes: list[str] = dataclasses.field(default_factory=list)


def inputs_of(verilog: str) -> dict[str, set[str]]:
    """Names of the input ports of every module."""
    found = {}
    for name, header in re.findall(r"^module (\w+)\((.*?)\);", verilog, re.M | re.S):
        found[name] = set(re.findall(r"^  input .*?(\w+),?$", header, re.M))
    return found


class Body:
    """The parts of one module, whose header declares its ports.

    inputs
        Input ports by module, of the others in the text.
    """

    def __init__(self, module: str, inputs: Mapping[str, set[str]]):
        head, _, rest = module.partition("\n);\n")
        self.head = f"{head}\n);\n"
        self.tail = rest[rest.index("endmodule") :]
        self.wires: dict[str, Wire] = {}
        self.assigns: list[Assign] = []
        self.loads: list[tuple[str, Expression]] = []  # a register and what it is loaded with
        self.clocked: list[list] = []  # of memories
        self.processes: list[list] = []
        self.instances: list[Instance] = []
        self.verbatim: list[str] = []
        self.initial: dict[str, list[str]] = {}  # of memories, by row
        self.names: dict[str, str] = {}  # of renamed wires, by their names in the text of Yosys
        self._inputs = inputs
        for line in head.split("\n")[1:]:
            if port := HEADER_PORT.match(line):
                kind = "reg" if port[2] else "wire"
                self.wires[port[5]] = Wire(
                    kind, int(port[4] or 0) + 1, bool(port[3]), port[6] or "", port=True
                )
        attributes: list[str] = []
        for item in items(rest[: rest.index("endmodule")]):
            if item.startswith("  (*"):
                attributes.append(item)
                continue
            self._read(item, attributes)
            attributes = []

    def _read(self, item: str, attributes: list[str]) -> None:
        kept = [text for text in attributes if "enum_" not in text]
        if NO_BITS.match(item):
            return
        if match := DECLARATION.match(item):
            kind, signed, top, name, start, rows = match.groups()
            if name == START:
                return
            members = {int(m[1], 2): m[2] for m in map(ENUMERATION.match, attributes) if m}
            kind, start = ("memory", rows.strip()) if rows else (kind, start or "")
            wire = Wire(kind, int(top or 0) + 1, bool(signed), start)
            if name in self.wires:  # a port, in the header
                wire = self.wires[name]
            wire.members, wire.attributes = members, kept
            self.wires[name] = wire
        elif item.startswith("  assign "):
            target, _, value = item[9:-1].partition(" = ")
            self.assigns.append(Assign(parse(target), parse(value)))
        elif item.startswith(COMBINATIONAL):
            # Where part of a register is a plain connection, Yosys leaves the constant out.
            inside = item[len(COMBINATIONAL) :].replace(f"if ({START}) begin end", "")
            self.processes.append(process.parse_statements(inside))
        elif item.startswith(CLOCKED):
            statements = process.parse_statements(item[len(CLOCKED) :])
            # A plain assignment loads a register; anything else is a memory's write port.
            [first, *more] = statements
            if isinstance(first, Assign) and first.target[0] == "name" and not more:
                self.loads.append((first.target[1], first.value))
            else:
                self.clocked.append(statements)
        elif item.startswith("  initial begin\n"):
            rows = re.findall(r"^    (\w+)\[\d+\] = (\S+);$", item, re.M)
            if len(rows) != item.count("\n") - 1 or len({name for name, _ in rows}) != 1:
                raise UnknownText(f"initial values: {item[:200]}")
            self.initial[rows[0][0]] = [value for _, value in rows]
        elif match := INSTANCE.match(item):
            module, name, ports = match.groups()
            inputs = self._inputs.get(module, set())
            found = [CONNECTION.match(line) for line in ports.split("\n")]
            connections = [
                (port[1], parse(port[2]), port[1] in inputs)
                for port in found
                if port and port[2].strip()
            ]
            if len(connections) + sum(bool(p and not p[2].strip()) for p in found) != len(found):
                raise UnknownText(f"connections: {item[:200]}")
            self.instances.append(Instance(module, name, connections, kept))
        else:
            raise UnknownText(f"statement: {item[:200]}")

    @property
    def shapes(self) -> Shapes:
        memories = [name for name, wire in self.wires.items() if wire.kind == "memory"]
        declared = {name: (wire.width, wire.signed) for name, wire in self.wires.items()}
        return Shapes(declared, memories)

    def values(self) -> Iterator[Expression]:
        """Everything that is read."""
        for assign in self.assigns:
            yield assign.value
        for _, value in self.loads:
            yield value
        for statements in (*self.processes, *self.clocked):
            yield from process.expressions(statements)
        for instance in self.instances:
            for _, value, is_input in instance.connections:
                if is_input:
                    yield value

    def change(self, change: Callable[[Expression, Expression | str], Expression]) -> None:
        """Replace everything that is read.

        `change` gets an expression and what it is for: the target of an assignment, or one of
        ``condition``, ``subject`` (of a case), ``index`` (of a target) and ``port``.
        """

        def target(expression: Expression) -> Expression:
            if expression[0] != "dynamic":
                return expression
            indices = (i if isinstance(i[0], int) else change(i, "index") for i in expression[2])
            return (*expression[:2], tuple(indices))

        def in_statement(statement: Statement) -> Statement:
            if isinstance(statement, If):
                return If(change(statement.condition, "condition"), statement.yes, statement.no)
            if isinstance(statement, Case):
                return Case(change(statement.subject, "subject"), statement.items)
            return Assign(target(statement.target), change(statement.value, statement.target))

        self.assigns = [Assign(a.target, change(a.value, a.target)) for a in self.assigns]
        self.loads = [(name, change(value, ("name", name))) for name, value in self.loads]
        self.processes = [process.changed(each, in_statement) for each in self.processes]
        self.clocked = [process.changed(each, in_statement) for each in self.clocked]
        for instance in self.instances:
            instance.connections = [
                (port, change(value, "port") if is_input else value, is_input)
                for port, value, is_input in instance.connections
            ]

    def rename(self, names: Mapping[str, str]) -> None:
        """Call wires by other names; a wire whose new name there is already goes."""

        def named(expression: Expression, _=None) -> Expression:
            return renamed(expression, names)

        self.change(named)

        def in_statement(statement: Statement) -> Statement:
            if isinstance(statement, Assign):
                return Assign(named(statement.target), statement.value)
            return statement

        self.assigns = [Assign(named(a.target), a.value) for a in self.assigns]
        self.loads = [(names.get(name, name), value) for name, value in self.loads]
        self.processes = [process.changed(each, in_statement) for each in self.processes]
        self.clocked = [process.changed(each, in_statement) for each in self.clocked]
        for instance in self.instances:
            instance.connections = [
                (port, value if is_input else named(value), is_input)
                for port, value, is_input in instance.connections
            ]
        self.names = {old: names.get(name, name) for old, name in self.names.items()}
        for old, new in names.items():
            self.names.setdefault(old, new)
            wire = self.wires.pop(old)
            kept = self.wires.setdefault(new, wire)
            kept.members = kept.members or wire.members

    def lines(self, localparams: list[str]) -> Iterator[str]:
        """The text of the module, without its header and end."""
        valued, assigned = _in_order(self.assigns, self.wires)
        yield from localparams
        if self.processes:
            yield from START_LINES.splitlines()
        for name, wire in self.wires.items():
            if not wire.port and name not in valued:
                yield from (text for text in wire.attributes)
                yield f"{wire.declared(name)};"
        for name, values in self.initial.items():
            yield from _initial_values(name, values, self.wires)
        for name, value in valued.items():
            yield f"{self.wires[name].declared(name)} = {written(value)};"
        for assign in assigned:
            yield f"  assign {written(assign.target)} = {written(assign.value)};"
        for statements in self.clocked:
            yield from _process(CLOCKED, process.printed(statements, "<=", 4))
        for statements in self.processes:
            yield "  always @* begin"
            yield f"    if ({START}) begin end"
            yield from process.printed(statements, "=", 4)
            yield "  end"
        for instance in self.instances:
            yield from instance.attributes
            yield f"  {instance.module} {instance.name} ("
            last = len(instance.connections) - 1
            for number, (port, value, _) in enumerate(instance.connections):
                yield f"    .{port}({written(value)}){',' * (number < last)}"
            yield "  );"


def renamed(expression: Expression, names: Mapping[str, str]) -> Expression:
    """An expression of wires by their new names."""
    kind = expression[0]
    if kind == "constant":
        return expression
    if kind == "join":
        return (kind, tuple(renamed(part, names) for part in expression[1]))
    if kind in ("name", "slice"):
        return (kind, names.get(expression[1], expression[1]), *expression[2:])
    if kind == "dynamic":
        indices = (i if isinstance(i[0], int) else renamed(i, names) for i in expression[2])
        return (kind, names.get(expression[1], expression[1]), tuple(indices))
    return (kind, *(renamed(p, names) if isinstance(p, tuple) else p for p in expression[1:]))


def items(text: str) -> Iterator[str]:
    """Declarations and statements of a module, each with all its lines."""
    item: list[str] = []
    for line in text.split("\n"):
        closes = line.startswith(("  end", "  );"))
        if item and not closes and re.match(r"  \S", line):
            yield "\n".join(item)
            item = []
        if line.strip():
            item.append(line)
    if item:
        yield "\n".join(item)


def _process(head: str, lines: list[str]) -> Iterator[str]:
    if len(lines) == 1:
        yield f"{head} {lines[0].strip()}"
    else:
        yield f"{head} begin"
        yield from lines
        yield "  end"


def _initial_values(name: str, values: list[str], taken: Container[str]) -> Iterator[str]:
    """A loop over the rows of a memory where that is shorter."""
    if len(set(values)) == 1 and len(values) > 4:
        row = f"{name}_row"
        while row in taken:
            row += "_"
        yield f"  integer {row};"
        yield f"  initial for ({row} = 0; {row} < {len(values)}; {row} = {row} + 1)"
        yield f"    {name}[{row}] = {values[0]};"
    else:
        yield "  initial begin"
        yield from (f"    {name}[{row}] = {value};" for row, value in enumerate(values))
        yield "  end"


def _in_order(
    assigns: list[Assign], wires: Mapping[str, Wire]
) -> tuple[dict[str, Expression], list[Assign]]:
    """Values of wires, each behind those that it reads; and all other assignments."""
    values: dict[str, Expression] = {}
    others = []
    for assign in assigns:
        target = assign.target
        if target[0] == "name" and wires[target[1]].kind == "wire" and not wires[target[1]].port:
            values[target[1]] = assign.value
        else:
            others.append(assign)
    ordered: dict[str, Expression] = {}
    open_: set[str] = set()
    looped: set[str] = set()
    for root in values:
        stack = [(root, iter(names_in(values[root])))]
        if root in ordered:
            continue
        open_.add(root)
        while stack:
            name, reads = stack[-1]
            for read in reads:
                if read in open_:
                    looped.add(read)  # through other bits of it
                elif read in values and read not in ordered:
                    open_.add(read)
                    stack.append((read, iter(names_in(values[read]))))
                    break
            else:
                ordered[name] = values[name]
                open_.discard(name)
                stack.pop()
    others += [Assign(("name", name), values[name]) for name in values if name in looped]
    return {name: value for name, value in ordered.items() if name not in looped}, others


BREAK = re.compile(r"(?<=,) |(?<= [&|^?:+*-]) |(?<= (?:&&|\|\||<=)) |(?<= =) ")


def wrapped(line: str) -> str:
    """A line, or several of no more than 100 characters each where that is possible."""
    margin = " " * (len(line) - len(line.lstrip()))
    indent = margin + ("// " if line.lstrip().startswith("//") else "    ")
    lines = []
    while len(line) > process.WIDTH:
        places = [m.end() for m in BREAK.finditer(line, len(indent), process.WIDTH)]
        if not places:
            break
        lines.append(line[: places[-1]].rstrip())
        line = indent + line[places[-1] :]
    return "\n".join([*lines, line])
