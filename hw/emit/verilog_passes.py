"""What is changed about a module's body, one step after another; every bit stays the same."""

import re
from collections import Counter

from hw.emit import verilog_process as process
from hw.emit.verilog_body import ANONYMOUS, Body, renamed
from hw.emit.verilog_expression import Expression, inlined, names_in, replaced, written
from hw.emit.verilog_names import name_after_readers, name_at_instances, name_members, name_results
from hw.emit.verilog_process import Assign, Case, If
from hw.ports import CLOCKS

ONCE, OFTEN = 80, 28
"""Characters of an expression written where it is read: in one place, in several."""

RESET = ("name", "rst")


def readable_body(body: Body) -> list[str]:
    """Lines of a module's inside after all changes."""
    # The order matters: names first, so that later passes find fewer nameless results; merging
    # before inlining, as equal conditions are compared by their names; removal of empty branches
    # last.
    gather(body)
    name_results(body)
    name_at_instances(body)
    use_fields(body)
    share(body)
    load_registers(body)
    merge_processes(body)
    inline(body)
    name_after_readers(body)
    for processes in (body.processes, body.clocked):
        processes[:] = [found for each in processes if (found := process.without_empty(each))]
    return [*body.lines(name_members(body))]


def gather(body: Body) -> None:
    """Assign the parts of a nameless result at once."""
    parts: dict[str, list[Assign]] = {}
    for assign in body.assigns:
        if assign.target[0] == "slice" and ANONYMOUS.fullmatch(assign.target[1]):
            parts.setdefault(assign.target[1], []).append(assign)
    shapes = body.shapes
    gone: set[int] = set()
    gathered = []
    for name, assigns in parts.items():
        assigns.sort(key=lambda assign: -assign.target[2])
        # The parts are in order from the top: each must begin where the one before ends, at bit 0
        # at last.
        edges = [body.wires[name].width, *(assign.target[3] for assign in assigns)]
        tops = [assign.target[2] + 1 for assign in assigns]
        values = tuple(assign.value for assign in assigns)
        fits = all(shapes.width(a.value) == shapes.width(a.target) for a in assigns)
        # A part that reads another part of the same result would be a loop once they are one
        # expression.
        if tops != edges[:-1] or edges[-1] or not fits or name in names_in(("join", values)):
            continue
        gone.update(map(id, assigns))
        gathered.append(Assign(("name", name), ("join", values)))
    body.assigns = [assign for assign in body.assigns if id(assign) not in gone] + gathered


def load_registers(body: Body) -> None:
    """Load registers in one clocked process, the conditions of their next values in it."""
    reads = Counter(name for value in body.values() for name in names_in(value))
    drivers = _drivers(body)
    loads: list = []
    resets: list = []
    done = set()
    for register, value in body.loads:
        statements = [Assign(("name", register), value)]
        # Yosys computes each register's next value in a wire; where only the register reads the
        # wire, the register itself is assigned and keeps its value by default.
        if value[0] == "name" and reads[value[1]] == 1 and value[1] in drivers:
            next_ = value[1]
            if not body.wires[next_].port:
                statements = _loaded(drivers[next_], next_, register)
                done.add(next_)
                del body.wires[next_]
        match statements:
            # Amaranth's reset is the last statement of each register: all resets together become
            # one branch.
            case [*_, If(condition, yes, [])] if condition == RESET:
                process.merge(resets, yes)
                statements = statements[:-1]
        process.merge(loads, statements)
    body.processes = [p for p in body.processes if not process.targets(p) & done]
    body.assigns = [a for a in body.assigns if not process.targets([a]) & done]
    if resets:
        loads.append(If(RESET, resets, []))
    body.loads = []
    body.clocked = [*([loads] if loads else []), *body.clocked]


def _drivers(body: Body) -> dict[str, list]:
    """Statements that drive a signal, of which several may each drive a part, by its name.

    Signals of which a part is driven together with another signal are not among them.
    """
    found: dict[str, list] = {}
    shared: set[str] = set()
    parts = [[assign] for assign in body.assigns if assign.target[0] != "name"]
    for statements in (*body.processes, *parts):
        names = process.targets(statements)
        if len(names) == 1:
            found.setdefault(min(names), []).extend(statements)
        else:
            shared |= names
    return {name: statements for name, statements in found.items() if name not in shared}


def _loaded(statements: list, next_: str, register: str) -> list:
    """Statements that drive a next value, as those that load the register; it holds by itself."""
    names = {next_: register}

    def rename(statement):
        if isinstance(statement, Assign):
            return Assign(renamed(statement.target, names), statement.value)
        return statement

    found = process.changed(statements, rename)
    while found and isinstance(found[0], Assign) and found[0].target == found[0].value:
        found = found[1:]
    return found


def merge_processes(body: Body) -> None:
    """Put processes together that begin with the same condition and do not need each other.

    Nor may their results need each other by way of other processes or sub-blocks: a simulator
    would compute in circles.
    """
    processes = body.processes
    keys = [_condition(statements) for statements in processes]
    # Most modules have nothing to merge, and the search for loops below is the slowest step.
    if max(Counter(key for key in keys if key).values(), default=0) < 2:
        return
    needs = _needs(body)
    groups: list[list[int]] = []
    place: dict[int, int] = {}
    open_: dict[tuple, int] = {}

    def needed(start: int, end: int) -> bool:
        """Whether a group needs another, or a process of none does."""
        seen, front = {start}, [start]
        while front:
            for member in groups[front.pop()]:
                for other in needs[member]:
                    if place.get(other) == end:
                        return True
                    if other in place and place[other] not in seen:
                        seen.add(place[other])
                        front.append(place[other])
        return False

    # A group that already contains others may reach more than its first process does.
    for number in range(len(processes)):  # each alone, so that every path is seen
        place[number] = number
        groups.append([number])
    for number, key in enumerate(keys):
        if not key:
            continue
        there = open_.setdefault(key, number)
        if there == number or needed(there, number) or needed(number, there):
            continue
        groups[there].append(number)
        groups[number] = []
        place[number] = there
    merged = []
    for group in groups:
        if group:
            together: list = []
            for number in group:
                process.merge(together, processes[number])
            merged.append(together)
    body.processes = merged


def _condition(statements: list) -> tuple:
    """The first condition of a process; nothing if it has none."""
    for statement in statements:
        if isinstance(statement, If):
            return ("if", statement.condition)
        if isinstance(statement, Case):
            return ("case", statement.subject)
    return ()


def _needs(body: Body) -> list[set[int]]:
    """For each process those whose results it reads, by way of wires and sub-blocks too.

    What is outside of the module may compute any input of it from any output.
    """
    drivers = {
        name: number
        for number, statements in enumerate(body.processes)
        for name in process.targets(statements)
    }
    sources: dict[str, set[str]] = {}
    for assign in body.assigns:
        for name in process.targets([assign]):
            sources.setdefault(name, set()).update(names_in(assign.value))
    for instance in body.instances:
        inputs = {n for _, value, is_in in instance.connections if is_in for n in names_in(value)}
        for _, value, is_in in instance.connections:
            if not is_in:
                for name in names_in(value):
                    sources.setdefault(name, set()).update(inputs)
    inputs = set(re.findall(r"^  input .*?(\w+),?$", body.head, re.M)).difference(CLOCKS)
    outputs = {name for name, wire in body.wires.items() if wire.port} - inputs
    sources |= dict.fromkeys(inputs, outputs)
    found = []
    for statements in body.processes:
        own = process.targets(statements)
        front = [n for value in process.expressions(statements) for n in names_in(value)]
        seen: set[str] = set()
        needs = set()
        while front:
            name = front.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in drivers:
                if name not in own:
                    needs.add(drivers[name])
            else:
                front += sources.get(name, ())
        found.append(needs)
    return found


def use_fields(body: Body) -> None:
    """Read a field by its name in place of a slice."""
    fields: dict[Expression, str] = {}
    for assign in body.assigns:
        target, value = assign.target, assign.value
        if target[0] == "name" and value[0] == "slice":
            wire = body.wires[target[1]]
            if wire.kind == "wire" and not wire.port and not wire.signed:
                fields.setdefault(value, target[1])

    def named(part: Expression) -> Expression | None:
        return ("name", fields[part]) if part[0] == "slice" and part in fields else None

    def change(value: Expression, place: Expression | str) -> Expression:
        if place[0] == "name" and value in fields and body.wires[place[1]].kind == "wire":
            return value  # a field itself
        return replaced(value, named)

    body.change(change)


def share(body: Body) -> None:
    """Drop nameless results that nothing reads, or that another wire has too."""
    names: dict[str, str] = {}
    seen: dict[tuple, str] = {}
    for named in (True, False):
        for assign in body.assigns:
            target = assign.target
            if target[0] != "name" or bool(ANONYMOUS.fullmatch(target[1])) == named:
                continue
            wire = body.wires[target[1]]
            if wire.signed or assign.value[0] in ("name", "slice", "constant"):
                continue
            key = wire.width, assign.value
            if named:
                seen.setdefault(key, target[1])
            elif key in seen:
                names[target[1]] = seen[key]
            else:
                seen[key] = target[1]
    if names:
        body.assigns = [a for a in body.assigns if a.target[1] not in names]
        body.rename(names)
        share(body)
        return
    _drop_unread(body)


def _drop_unread(body: Body) -> None:
    """Remove nameless wires that nothing reads."""
    # A wire that is no longer read may have been the only reader of another one.
    while True:
        used = {name for value in body.values() for name in names_in(value)}
        for instance in body.instances:
            used.update(n for _, value, _ in instance.connections for n in names_in(value))
        for statements in (*body.processes, *body.clocked):
            used |= process.targets(statements)
        unread = {name for name in body.wires if ANONYMOUS.fullmatch(name)} - used
        kept = [a for a in body.assigns if not process.targets([a]) <= unread]
        targets = process.targets(kept)
        for name in unread - targets:
            del body.wires[name]
        if len(kept) == len(body.assigns):
            return
        body.assigns = kept


def operands_first(values: dict[str, Expression]) -> list[str]:
    """The names, each after those that its value reads."""
    order: dict[str, None] = {}
    entered: set[str] = set()
    for first in values:
        pending = [first]
        while pending:
            name = pending[-1]
            entered.add(name)
            reads = [n for n in names_in(values[name]) if n in values and n not in entered]
            if reads:
                pending += reads
            else:
                order.setdefault(pending.pop())
    return [*order]


def inline(body: Body) -> None:
    """Put nameless results where they are read."""
    shapes = body.shapes
    reads = Counter(name for value in body.values() for name in names_in(value))
    values = {
        a.target[1]: a.value
        for a in body.assigns
        if a.target[0] == "name" and ANONYMOUS.fullmatch(a.target[1])
    }
    memories = {name for name, wire in body.wires.items() if wire.kind == "memory"}
    finished: dict[str, Expression] = {}

    def whole(name: str) -> Expression | None:
        """The value of a name, whatever its width and sign."""
        value = values.get(name)
        if value is None or memories.intersection(names_in(value)):
            return None
        value = finish(name)
        length = len(written(value))
        return value if length <= (ONCE if reads[name] == 1 else OFTEN) else None

    def find(name: str) -> Expression | None:
        value = whole(name)
        if value is None or shapes.signed(value):
            return None
        return value if shapes.width(value) == shapes.width(("name", name)) else None

    def finish(name: str) -> Expression:
        if name not in finished:
            target = ("name", name)
            finished[name] = change(values[name], target)
        return finished[name]

    def change(value: Expression, place: Expression | str) -> Expression:
        if place == "subject":
            return value
        if isinstance(place, str):
            return inlined(value, shapes, shapes.width(value), find)
        width = shapes.width(place)
        if value[0] == "name" and width == shapes.width(value):
            return whole(value[1]) or value
        if value[0] == "slice" and value[3] == 0 and width == value[2] + 1:
            found = whole(value[1])
            if found and found[0] == "binary" and found[1] in "+-*" and not shapes.signed(found):
                return found if shapes.width(found) <= width else value
            return value
        return inlined(value, shapes, max(width, shapes.width(value)), find)

    # Operands before what reads them: then the recursion is never as deep as a chain of operators.
    # The text has them in any order.
    for name in operands_first(values):
        finish(name)
    body.assigns = [
        Assign(a.target, finished[a.target[1]]) if a.target[1] in finished else a
        for a in body.assigns
    ]
    done = body.assigns
    body.assigns = [a for a in done if a.target[1] not in finished]
    kept = [a for a in done if a.target[1] in finished]
    body.change(change)
    body.assigns += kept
    _drop_unread(body)
