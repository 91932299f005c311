"""Names in a module's body: of results without one, of wires at sub-blocks, of states."""

import re
from collections.abc import Iterator

from hw.emit import verilog_process as process
from hw.emit.verilog_body import ANONYMOUS, Body
from hw.emit.verilog_expression import Expression, names_in, replaced, value_of
from hw.emit.verilog_process import Assign, Case, If, Statement

# Names of the ports of sub-blocks and memories, and numbered ones, are not the source's.
PART = re.compile(r".*__.*|.*_\d+|.*_(read|write)_(addr|data|en)")


def name_results(body: Body) -> None:
    """Remove wires that are other names of a signal; the source's name for it is kept."""
    # Names may be replaced by others that are replaced in turn, so a name is followed to its end.
    names: dict[str, str] = {}

    def now(name: str) -> str:
        while name in names:
            name = names[name]
        return name

    at_instances = {
        value[1]: re.fullmatch(rf"{port}(_\d+)?", value[1])
        for instance in body.instances
        for port, value, _ in instance.connections
        if value[0] == "name"
    }

    def vague(name: str) -> bool:
        return bool(ANONYMOUS.fullmatch(name) or PART.fullmatch(name) or at_instances.get(name))

    ports = tuple(f"{name}_" for name, wire in body.wires.items() if wire.port)
    kept = []
    for assign in body.assigns:
        if assign.target[0] != "name" or assign.value[0] != "name":
            kept.append(assign)
            continue
        a, b = now(assign.target[1]), now(assign.value[1])
        wire, source = body.wires[a], body.wires[b]
        same = (wire.width, wire.signed) == (source.width, source.signed) and a != b
        internal = same and not wire.port and wire.kind == "wire"
        # Fields of ports keep the port's name, which says where they come from.
        better = vague(b) and not vague(a) and not a.startswith(ports) and not b.startswith(ports)
        if internal and not source.port and (better or ANONYMOUS.fullmatch(b)):
            wire.kind, wire.start = source.kind, source.start
            names[b] = a
        elif internal and vague(a) and not a.startswith(ports):
            names[a] = b
        else:
            kept.append(assign)
    body.assigns = kept
    body.rename({name: now(name) for name in names})


def name_at_instances(body: Body) -> None:
    """Name wires at a sub-block's ports after it: ``queue_o__valid`` for ``o__valid_2``."""
    wires: dict[str, list[str]] = {}
    for instance in body.instances:
        for port, value, _ in instance.connections:
            if value[0] == "name" and re.fullmatch(rf"({port}|)(_\d+_?)?", value[1]):
                wires.setdefault(value[1], []).append(f"{instance.name.strip('_')}_{port}")
    names: dict[str, str] = {}
    taken = set(body.wires)
    for name, places in wires.items():
        wire = body.wires[name]
        if len(places) != 1 or wire.port or wire.kind != "wire" or places[0] in taken:
            continue
        taken.add(places[0])
        names[name] = places[0]
        if "__" not in name:
            continue
        for field in body.wires:
            if field.startswith(f"{name}_") and not body.wires[field].port:
                new = places[0] + field[len(name) :]
                if new not in taken and field not in wires and field not in names:
                    taken.add(new)
                    names[field] = new
    body.rename(names)


def name_after_readers(body: Body) -> None:
    """Name what is left after the signal that it is for: ``sum_in``; ``sum_if``, a condition."""
    readers: dict[str, tuple[str, str]] = {}

    def note(value: Expression, reader: str, ending: str) -> None:
        for name in names_in(value):
            if ANONYMOUS.fullmatch(name):
                readers.setdefault(name, (reader, ending))

    for assign in body.assigns:
        note(assign.value, min(process.targets([assign])), "in")
        _note_transfer(assign, readers)
    for statements in (*body.processes, *body.clocked):
        _note_readers(statements, note)
    for instance in body.instances:
        for port, value, is_input in instance.connections:
            if is_input:
                note(value, f"{instance.name}_{port}", "in")
    names: dict[str, str] = {}
    taken = set(body.wires)
    for name in body.wires:
        if not ANONYMOUS.fullmatch(name) or name not in readers:
            continue
        reader, ending = readers[name]
        # Readers without a name are followed to one that has a name; a circle of them ends the
        # search.
        passed = {name}
        while ANONYMOUS.fullmatch(reader) and reader in readers and reader not in passed:
            passed.add(reader)
            reader = readers[reader][0]
        base = free = f"{names.get(reader, reader)}_{ending}"
        if ANONYMOUS.fullmatch(reader):
            base = free = f"result_{ending}"
        number = 1
        while free in taken:
            number += 1
            free = f"{base}_{number}"
        taken.add(free)
        names[name] = free
    body.rename(names)


def _note_transfer(assign: Assign, readers: dict[str, tuple[str, str]]) -> None:
    """A stream's valid and ready together are its transfer."""
    match assign.target, assign.value:
        case ("name", name), ("binary", "&", ("name", valid), ("name", ready)):
            stream = valid.removesuffix("__valid")
            if ANONYMOUS.fullmatch(name) and {valid, ready} == {
                f"{stream}__valid",
                f"{stream}__ready",
            }:
                readers[name] = (stream, "transfer")


def _note_readers(statements: list, note) -> None:
    for statement in statements:
        if isinstance(statement, Assign):
            note(statement.value, min(process.targets([statement])), "in")
            continue
        targets = sorted(process.targets([statement]))
        if isinstance(statement, If):
            note(statement.condition, targets[0], "if")
            _note_readers(statement.yes, note)
            _note_readers(statement.no, note)
        else:
            note(statement.subject, targets[0], "case")
            for _, inner in statement.items:
                _note_readers(inner, note)


def name_members(body: Body) -> list[str]:
    """Write constants of states and enumerations by name; returns their declarations."""
    constants = _Constants(body)

    def member(name: str, value: Expression) -> Expression:
        if value[0] == "choice":
            return (*value[:2], member(name, value[2]), member(name, value[3]))
        number = value_of(value)
        return constants.named(name, number) or value if number is not None else value

    def compared(part: Expression) -> Expression | None:
        if part[0] == "binary" and part[1] in ("==", "!=") and part[2][0] == "name":
            return (*part[:3], member(part[2][1], part[3]))
        if part[0] != "unary" or part[1] not in ("!", "|") or part[2][0] != "name":
            return None
        zero = constants.named(part[2][1], 0)
        return zero and ("binary", "==" if part[1] == "!" else "!=", part[2], zero)

    def change(value: Expression, place: Expression | str) -> Expression:
        value = replaced(value, compared)
        return member(place[1], value) if place[0] == "name" else value

    def labelled(statement: Statement) -> Statement:
        if isinstance(statement, Case) and statement.subject[0] == "name":
            name = statement.subject[1]
            items = [(tuple(member(name, x) for x in labels), i) for labels, i in statement.items]
            return Case(statement.subject, items)
        return statement

    body.change(change)
    body.processes = [process.changed(each, labelled) for each in body.processes]
    body.clocked = [process.changed(each, labelled) for each in body.clocked]
    return [*constants.declarations()]


class _Constants:
    """Names of the values of signals; signals of equal values share them."""

    def __init__(self, body: Body):
        self._body = body
        self._signals: dict[tuple, list[str]] = {}  # by width and members
        self._names: dict[tuple, dict[int, str]] = {}

    def named(self, signal: str, number: int) -> Expression | None:
        """The name of a value of a signal; None if it has none."""
        wire = self._body.wires[signal]
        if number not in wire.members:
            return None
        key = (wire.width, *sorted(wire.members.items()))
        if key not in self._names:
            self._names[key] = self._chosen(signal)
        signals = self._signals.setdefault(key, [])
        if signal not in signals:
            signals.append(signal)
        name = self._names[key].get(number)
        return ("name", name) if name else None

    def _chosen(self, signal: str) -> dict[int, str]:
        """Names as in the source, behind the signal's if another signal has one of them."""
        members = self._body.wires[signal].members
        taken = {*self._body.wires, *(n for names in self._names.values() for n in names.values())}
        plain = {value: re.sub(r"\W", "_", text).upper() for value, text in members.items()}
        prefix = signal.removesuffix("_state").upper()
        longer = {value: f"{prefix}_{name}" for value, name in plain.items()}
        # Members of two enumerations may have the same name in the source, where each has a scope.
        for names in (plain, longer):
            new = {*names.values()}
            if not taken & new and len(new) == len(names) and all(map(str.isidentifier, new)):
                return names
        return {}

    def declarations(self) -> Iterator[str]:
        for key, signals in self._signals.items():
            width = key[0]
            size = f"[{width - 1}:0] " if width > 1 else ""
            values = [f"{name} = {width}'d{value}" for value, name in self._names[key].items()]
            if not values:
                continue
            yield f"  // {', '.join(signals[:4])}{', ...' * (len(signals) > 4)}"
            line = f"  localparam {size}{values[0]}"
            for value in values[1:]:
                if len(line) + len(value) + 3 > process.WIDTH:
                    yield f"{line},"
                    line = f"      {value}"
                else:
                    line += f", {value}"
            yield f"{line};"
