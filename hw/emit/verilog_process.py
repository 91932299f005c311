"""Processes of the Verilog that Yosys writes: parsed, merged and printed.

Yosys writes an ``always`` block for each signal, so that a state machine's ``case`` appears as
often as it drives signals. :func:`merge` puts equal conditions together again.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator

from hw.emit.verilog_expression import Expression, Reader, names_in, read, value_of, written

WIDTH = 100
"""Characters of a line, where a statement may take one line or several."""


@dataclasses.dataclass
class Assign:
    target: Expression
    value: Expression


class Variable(Assign):
    """A value that is there for the statements behind it, also in a clocked process."""


@dataclasses.dataclass
class If:
    condition: Expression
    yes: list
    no: list


@dataclasses.dataclass
class Case:
    """items: labels, empty for ``default``, and statements."""

    subject: Expression
    items: list[tuple[tuple, list]]


Statement = Assign | If | Case


def parse_statements(text: str) -> list:
    """Statements of the inside of a process.

    :raises UnknownText: if it is not of the form that Yosys writes.
    """
    reader = Reader(re.sub(r"/\*.*?\*/|\(\*.*?\*\)", "", text))
    found = []
    while reader.next:
        found += _statement(reader)
    return found


def _statement(reader: Reader) -> list:
    """One statement, or the statements of a block; none for a semicolon alone."""
    if reader.accept(";"):
        return []
    if reader.accept("begin"):
        found: list = []
        while not reader.accept("end"):
            found += _statement(reader)
        return found
    if reader.accept("if"):
        reader.take("(")
        condition = read(reader)
        reader.take(")")
        yes = _statement(reader)
        return [If(condition, yes, _statement(reader) if reader.accept("else") else [])]
    if reader.next in ("case", "casez"):
        return [_case(reader)]
    target = read_target(reader)
    if not reader.accept("<="):
        reader.take("=")
    value = read(reader)
    reader.take(";")
    return [Assign(target, value)]


def read_target(reader: Reader) -> Expression:
    """What is assigned; ``<=`` behind it is no comparison."""
    tokens = []
    depth = 0
    # A comparison can only be inside brackets here, so the first one outside is the assignment.
    while reader.next and (depth or reader.next not in ("=", "<=")):
        token = reader.take()
        depth += (token in "[{") - (token in "]}")
        tokens.append(token)
    return read(Reader(" ".join(tokens)))


def _case(reader: Reader) -> Case:
    reader.take()
    reader.take("(")
    subject = read(reader)
    reader.take(")")
    items = []
    while not reader.accept("endcase"):
        labels: list[Expression] = []
        if not reader.accept("default"):
            labels.append(read(reader))
            while reader.accept(","):
                labels.append(read(reader))
        reader.take(":")
        items.append((tuple(labels), _statement(reader)))
    return Case(subject, items)


def expressions(statements: list) -> Iterator[Expression]:
    """Everything that statements read, and the indices of what they assign."""
    for statement in statements:
        if isinstance(statement, Assign):
            yield statement.value
            if statement.target[0] == "dynamic":
                yield from (i for i in statement.target[2] if not isinstance(i[0], int))
        elif isinstance(statement, If):
            yield statement.condition
            yield from expressions(statement.yes + statement.no)
        else:
            yield statement.subject
            for _, inner in statement.items:
                yield from expressions(inner)


def targets(statements: list) -> set[str]:
    """Names of everything that statements assign."""
    found: set[str] = set()
    for statement in statements:
        if isinstance(statement, Assign):
            target = statement.target
            found.update([target[1]] if target[0] == "dynamic" else names_in(target))
        elif isinstance(statement, If):
            found |= targets(statement.yes) | targets(statement.no)
        else:
            for _, inner in statement.items:
                found |= targets(inner)
    return found


def changed(statements: list, change: Callable[[Statement], Statement]) -> list:
    """Statements after `change` of each assignment and each condition, the inner ones first."""
    found = []
    for statement in statements:
        if isinstance(statement, If):
            yes, no = changed(statement.yes, change), changed(statement.no, change)
            statement = If(statement.condition, yes, no)
        elif isinstance(statement, Case):
            items = [(labels, changed(inner, change)) for labels, inner in statement.items]
            statement = Case(statement.subject, items)
        found.append(change(statement))
    return found


def merge(into: list, statements: list) -> None:
    """Add statements whose targets `into` does not assign, below equal conditions.

    Neither the added ones nor those there were change their order.
    """
    place = 0
    for statement in statements:
        # Statements go behind everything that theirs followed, never before it: of two assignments
        # to one target the later one wins, so the order must be kept on both sides.
        for index in range(place, len(into)):
            if _mergeable(into[index], statement):
                _merge(into[index], statement)
                place = index
                break
        else:
            if isinstance(statement, Assign) and place == 0:
                while place < len(into) and isinstance(into[place], Assign):
                    place += 1
                into.insert(place, statement)
                place += 1
            else:
                into.append(statement)
                place = len(into)


def _mergeable(a: Statement, b: Statement) -> bool:
    if isinstance(a, If) and isinstance(b, If):
        return a.condition == b.condition
    if isinstance(a, Case) and isinstance(b, Case) and a.subject == b.subject:
        # Cases with other labels can be merged only if no value fits two of them.
        same = [labels for labels, _ in a.items] == [labels for labels, _ in b.items]
        return same or (_apart(a.items) and _apart(b.items))
    return False


def _apart(items: list) -> bool:
    """Whether each item has a constant, and no two the same."""
    labels = [labels[0] for labels, _ in items if len(labels) == 1]
    known = [value_of(label) for label in labels]
    return len(labels) == len(items) and None not in known and len(set(known)) == len(known)


def _merge(a, b) -> None:
    if isinstance(a, If):
        merge(a.yes, b.yes)
        merge(a.no, b.no)
        return
    there = dict(a.items)
    for labels, inner in b.items:
        if labels in there:
            merge(there[labels], inner)
        else:
            a.items.append((labels, list(inner)))


def without_empty(statements: list) -> list:
    """Statements without conditions that nothing depends on."""
    found: list = []
    for statement in statements:
        if isinstance(statement, If):
            yes, no = without_empty(statement.yes), without_empty(statement.no)
            if yes or no:
                found.append(If(statement.condition, yes, no))
        elif isinstance(statement, Case):
            items = [(labels, without_empty(inner)) for labels, inner in statement.items]
            items = _needed(items)
            if items:
                found.append(Case(statement.subject, items))
        else:
            found.append(statement)
    return found


def _needed(items: list) -> list:
    """Items without those that do nothing, if none below would then be chosen instead."""
    texts = [label[1] for labels, _ in items for label in labels if label[0] == "constant"]
    # An empty branch still matters if its value would otherwise reach a later label or the default.
    distinct = len(set(texts)) == sum(len(labels) for labels, _ in items)
    default = any(not labels for labels, inner in items if inner)
    if distinct and not default and not any("?" in text for text in texts):
        return [item for item in items if item[1]]
    while items and not items[-1][1]:
        items = items[:-1]
    return items


def printed(statements: list, assigns: str, indent: int) -> list[str]:
    """Lines of statements; `assigns` is ``=`` or ``<=``."""
    lines: list[str] = []
    for statement in statements:
        if isinstance(statement, Assign):
            lines.append(" " * indent + _assignment(statement, assigns))
        elif isinstance(statement, If):
            lines += _printed_if(statement, assigns, indent)
        else:
            lines += _printed_case(statement, assigns, indent)
    return lines


def _assignment(statement: Assign, assigns: str) -> str:
    assigns = "=" if isinstance(statement, Variable) else assigns
    return f"{written(statement.target)} {assigns} {written(statement.value)};"


def negated(condition: Expression) -> Expression:
    """The condition that is 1 where one of a single bit is 0."""
    if condition[0] == "unary" and condition[1] in ("!", "~"):
        return condition[2]
    return ("unary", "!", condition)


def _printed_if(statement: If, assigns: str, indent: int) -> list[str]:
    if not statement.yes:
        statement = If(negated(statement.condition), statement.no, [])
    chain = [(f"if ({written(statement.condition)})", statement.yes)]
    rest = statement.no
    # A chain of conditions prints as `else if`, as priority is in the source.
    while len(rest) == 1 and isinstance(rest[0], If) and rest[0].yes:
        chain.append((f"else if ({written(rest[0].condition)})", rest[0].yes))
        rest = rest[0].no
    if rest:
        chain.append(("else", rest))
    space = " " * indent
    short = [_in_a_line(f"{space}{head}", inner, assigns) for head, inner in chain]
    if all(short):
        return short
    lines = []
    for number, (head, inner) in enumerate(chain):
        lines.append(f"{space}{'end ' if number else ''}{head} begin")
        lines += printed(inner, assigns, indent + 2)
    return [*lines, f"{space}end"]


def _in_a_line(head: str, statements: list, assigns: str) -> str:
    """A statement behind what it depends on; empty if there are several, or no room."""
    if len(statements) == 1 and isinstance(statements[0], Assign):
        line = f"{head} {_assignment(statements[0], assigns)}"
        return line if len(line) <= WIDTH else ""
    return ""


def _printed_case(statement: Case, assigns: str, indent: int) -> list[str]:
    space = " " * indent
    wild = any(
        "?" in label[1] or "z" in label[1] for labels, _ in statement.items for label in labels
    )
    lines = [f"{space}case{'z' * wild} ({written(statement.subject)})"]
    for labels, inner in statement.items:
        head = f"{space}  {', '.join(map(written, labels)) or 'default'}:"
        if not inner:
            lines.append(f"{head} ;")
        elif short := _in_a_line(head, inner, assigns):
            lines.append(short)
        elif len(inner) == 1:
            lines.append(head)
            lines += printed(inner, assigns, indent + 4)
        else:
            lines += [f"{head} begin", *printed(inner, assigns, indent + 4), f"{space}  end"]
    return [*lines, f"{space}endcase"]
