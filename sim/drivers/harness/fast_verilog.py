"""Verilog that simulates in less time: what is read under one condition is computed there.

A simulator computes each wire in each cycle, also where the registers behind it hold. Here such
wires become variables of the clocked process, so that a unit costs nothing while its enable is
low, and a state nothing while the machine is in another::

    wire [7:0] sum = a + b;             reg [7:0] sum;
    always @(posedge clk) begin         always @(posedge clk) begin
      if (enable) begin          ->       if (enable) begin
        total <= sum ^ c;                   sum = a + b;
      end                                   total <= sum ^ c;
    end                                   end
                                        end

Every register has the same value after each clock edge, and so has every port.
"""

import dataclasses
import graphlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator

from hw.emit.verilog_body import START, Body, inputs_of, items
from hw.emit.verilog_expression import Expression, UnknownText, names_in, parse
from hw.emit.verilog_process import (
    Assign,
    Case,
    If,
    Statement,
    Variable,
    changed,
    expressions,
    targets,
)

USES = "hw.emit.verilog_body", "hw.emit.verilog_expression", "hw.emit.verilog_process"
CLOCKED = "  always @(posedge clk)"
WRITTEN = "// verilator lint_save\n"
"""A line of each text that :mod:`hw.emit.export` writes."""
WORD = re.compile(r"[A-Za-z_]\w*")

Place = tuple[int, ...]
"""A block of statements: the number of its process, then of statements and branches to it."""
EVERYWHERE: Place = (-1,)
"""No block below a condition."""


@dataclasses.dataclass(eq=False)
class Driver:
    """Statements that drive whole signals, and the names of what they read."""

    names: set[str]
    statements: list[Statement]

    @property
    def reads(self) -> set[str]:
        return {name for value in expressions(self.statements) for name in names_in(value)}


def computed_where_read(verilog: str) -> str:
    """The same design for a simulator; as it is if this project has not written it.

    So is a text with hierarchical names, by which a module may read another one's wires.
    """
    if WRITTEN not in verilog or re.search(r"\w\.\w", re.sub(r"//.*", "", verilog)):
        return verilog
    inputs = inputs_of(verilog)
    modules = re.split(r"^(?=module )", verilog, flags=re.M)
    return "".join(_computed(text, inputs) if CLOCKED in text else text for text in modules)


def with_one_clock(verilog: str, top: str) -> str:
    """The same design, each register of which names the top module's clock.

    A simulator that keeps modules apart takes each instance's clock for another one.
    """
    if set(re.findall(r"^    \.clk\((.*?)\)", verilog, re.M)) - {"clk"}:
        return verilog
    return verilog.replace(CLOCKED, f"  always @(posedge {top}.clk)")


def _computed(module: str, inputs: dict[str, set[str]]) -> str:
    """One module; as it is if it has anything that this project does not write."""
    try:
        body, as_written = _parsed(module, inputs)
    except UnknownText:
        return module
    blocks = dict(_blocks(body.clocked))
    unread: set[str] = set()
    for driver, place in _places(body, set(WORD.findall("\n".join(as_written)))):
        if place is not None:
            blocks[place][:0] = changed(driver.statements, _variable)
            for name in driver.names:
                body.wires[name].kind = "reg"
        else:
            unread |= driver.names
        done = set(map(id, driver.statements))
        body.assigns = [assign for assign in body.assigns if id(assign) not in done]
        body.processes = [each for each in body.processes if not each or id(each[0]) not in done]
    for name in unread:
        del body.wires[name]
    return body.head + "".join(f"{line}\n" for line in body.lines(as_written)) + body.tail


def _parsed(module: str, inputs: dict[str, set[str]]) -> tuple[Body, list[str]]:
    """A module's parts, wires without values; and those items that remain as they are written."""
    head, _, rest = module.partition("\n);\n")
    end = rest.index("endmodule")
    known, others = [], []
    for item in items(rest[:end]):
        if item.startswith(("  localparam ", "  integer ", "  initial ")):
            others.append(item)
        elif item.endswith("\n  );"):  # an instance, with one line for each connection
            known.append(re.sub(r"\n {8,}", " ", item))
        elif not item.startswith("  //"):
            known.append(item if item.endswith("  end") else re.sub(r"\s*\n\s*", " ", item))
    body = Body("\n".join([f"{head}\n);", *known, rest[end:]]), inputs)
    for name, wire in body.wires.items():
        if wire.kind == "wire" and wire.start and not wire.port:
            body.assigns.append(Assign(("name", name), parse(wire.start)))
            wire.start = ""
    if not targets([*body.assigns, *itertools.chain(*body.processes)]) <= body.wires.keys():
        raise UnknownText("a signal of no bits")
    body.clocked += [[Assign(("name", name), value)] for name, value in body.loads]
    return body, [item for item in others if START not in item]


def _places(body: Body, fixed: set[str]) -> Iterator[tuple[Driver, Place | None]]:
    """Drivers whose signals are read below one condition only, and where; None if nowhere.

    What a driver reads comes after it.
    """
    drivers = _readers_first(_drivers(body, fixed))
    readers: dict[str, set[Place]] = defaultdict(set, {name: {EVERYWHERE} for name in fixed})
    for number, statements in enumerate(body.clocked):
        for block, value in _reads(statements, (number,)):
            for name in names_in(value):
                readers[name].add(block)
    movable = {id(statement) for driver in drivers for statement in driver.statements}
    others = [each for each in _combinational(body) if id(each[0]) not in movable]
    read = [value for statements in others for value in expressions(statements)]
    read += [value for instance in body.instances for _, value, _ in instance.connections]
    for value in read:
        for name in names_in(value):
            readers[name].add(EVERYWHERE)
    for driver in drivers:
        places = set().union(*(readers[name] for name in driver.names))
        place: Place | None = _common(places) if places else None
        if place != EVERYWHERE:
            yield driver, place
        if place is not None:
            for name in driver.reads:
                readers[name].add(place)


def _combinational(body: Body) -> list[list[Statement]]:
    return [*([assign] for assign in body.assigns), *filter(None, body.processes)]


def _drivers(body: Body, fixed: set[str]) -> list[Driver]:
    """Drivers of signals that are no ports and not driven by anything else too."""
    found: dict[str, Driver] = {}
    for statements in _combinational(body):
        names = targets(statements)
        for other in {id(found[n]): found[n] for n in names if n in found}.values():
            names, statements = names | other.names, [*other.statements, *statements]
        found |= dict.fromkeys(names, Driver(names, statements))
    fixed = fixed | {name for name, wire in body.wires.items() if wire.port}
    fixed = fixed.union(*map(targets, body.clocked))
    for instance in body.instances:
        outputs = (value for _, value, is_input in instance.connections if not is_input)
        fixed = fixed.union(*map(names_in, outputs))
    drivers = {id(driver): driver for driver in found.values()}.values()
    return [driver for driver in drivers if not driver.names & (fixed | driver.reads)]


def _readers_first(drivers: list[Driver]) -> list[Driver]:
    """The drivers, each before those that it reads; without those that read each other."""
    of = {name: driver for driver in drivers for name in driver.names}
    readers: dict[Driver, set[Driver]] = {driver: set() for driver in drivers}
    for driver in drivers:
        for name in driver.reads & of.keys():
            readers[of[name]].add(driver)
    while True:
        try:
            return [*graphlib.TopologicalSorter(readers).static_order()]
        except graphlib.CycleError as error:
            circle = set(error.args[1])
            readers = {d: by - circle for d, by in readers.items() if d not in circle}


def _reads(statements: list[Statement], place: Place) -> Iterator[tuple[Place, Expression]]:
    """Everything that statements read, and the block in which they do."""
    for number, statement in enumerate(statements):
        for value in expressions([_without_branches(statement)]):
            yield place, value
        for branch, inner in enumerate(_branches(statement)):
            yield from _reads(inner, (*place, number, branch))


def _without_branches(statement: Statement) -> Statement:
    if isinstance(statement, If):
        return If(statement.condition, [], [])
    return Case(statement.subject, []) if isinstance(statement, Case) else statement


def _common(places: set[Place]) -> Place:
    """The innermost block that all of these are in; `EVERYWHERE` if it is below no condition."""
    shortest = min(map(len, places))
    length = 0
    while length < shortest and len({place[length] for place in places}) == 1:
        length += 1
    length -= (length + 1) % 2  # a statement without its branch
    return min(places)[:length] if length > 1 else EVERYWHERE


def _variable(statement: Statement) -> Statement:
    if isinstance(statement, Assign):
        return Variable(statement.target, statement.value)
    return statement


def _blocks(processes: list[list]) -> Iterator[tuple[Place, list]]:
    """Every block of statements below a condition, and its place."""

    def below(statements: list, place: Place) -> Iterator[tuple[Place, list]]:
        for number, statement in enumerate(statements):
            for branch, inner in enumerate(_branches(statement)):
                yield (*place, number, branch), inner
                yield from below(inner, (*place, number, branch))

    for number, statements in enumerate(processes):
        yield from below(statements, (number,))


def _branches(statement: Statement) -> list[list]:
    if isinstance(statement, If):
        return [statement.yes, statement.no]
    return [inner for _, inner in statement.items] if isinstance(statement, Case) else []
