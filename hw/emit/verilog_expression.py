"""Expressions of the Verilog that Yosys writes: parsed, measured, put into each other, printed.

An expression is a tuple whose first element is its kind:

``("name", n)``, ``("slice", n, high, low)``, ``("dynamic", n, indices)`` with expressions as
indices, ``("constant", text)``, ``("unary", operator, a)``, ``("binary", operator, a, b)``,
``("choice", condition, a, b)``, ``("join", parts)``, ``("call", function, a)``.

Yosys writes one operator in each assignment. Where a result has no name in the source and one
reader, the reader is easier to read with the expression in its place. Verilog evaluates operands
in the width of the whole expression, so :func:`inlined` accepts a place only where that width
cannot change a bit.
"""

import re
from collections.abc import Callable, Collection, Mapping

Expression = tuple

TOKEN = re.compile(r"\s*(\d+'[a-z]?[0-9a-fxz?]+|\$?\w+|>>>|<<<|[<>=!]=|<<|>>|&&|\|\||~\^|[^\s\w])")
# From loose to tight.
PRECEDENCE = (
    *(["||"], ["&&"], ["|"], ["^"], ["&"], ["==", "!="], ["<", "<=", ">", ">="]),
    *(["<<", ">>", ">>>"], ["+", "-"], ["*", "/", "%"]),
)
BINDS = {operator: level for level, group in enumerate(PRECEDENCE) for operator in group}
COMPARISONS = {"==", "!=", "<", "<=", ">", ">="}
LOGICAL = {"&&", "||"}
SHIFTS = {"<<", ">>", ">>>"}
REDUCTIONS = {"!", "&", "|", "^"}
CHAINS = {"&", "|", "^"}
"""Operators of which a chain needs no parentheses."""


class UnknownText(ValueError):
    """Text that is not of the kinds above."""


class Reader:
    """Tokens of a text, one after another."""

    def __init__(self, text: str):
        self._tokens = TOKEN.findall(text)
        self._index = 0

    @property
    def next(self) -> str:
        return self._tokens[self._index] if self._index < len(self._tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.next
        if not token or (expected and token != expected):
            raise UnknownText(f"{expected or 'a token'} missing before {token!r}")
        self._index += 1
        return token

    def accept(self, token: str) -> bool:
        if self.next != token:
            return False
        self._index += 1
        return True


def parse(text: str) -> Expression:
    reader = Reader(text)
    found = read(reader)
    if reader.next:
        raise UnknownText(f"{reader.next!r} after an expression")
    return found


def read(reader: Reader) -> Expression:
    """The expression that begins at the reader's next token."""
    left = _chain(reader, 0)
    if reader.accept("?"):
        yes = read(reader)
        reader.take(":")
        return ("choice", left, yes, read(reader))
    return left


def _chain(reader: Reader, level: int) -> Expression:
    """Operands of binary operators that bind as tightly as `level`, or tighter."""
    left = _operand(reader)
    # Precedence climbing: all of Verilog's binary operators group from the left.
    while BINDS.get(reader.next, -1) >= level:
        operator = reader.take()
        left = ("binary", operator, left, _chain(reader, BINDS[operator] + 1))
    return left


def _operand(reader: Reader) -> Expression:
    token = reader.take()
    if token == "(":
        inner = read(reader)
        reader.take(")")
        return inner
    if token in ("~", "!", "&", "|", "^", "-"):
        return ("unary", token, _operand(reader))
    if token == "{":
        return _joined(reader)
    if token in ("$signed", "$unsigned"):
        reader.take("(")
        inner = read(reader)
        reader.take(")")
        return ("call", token, inner)
    if "'" in token:
        return ("constant", token)
    if not re.fullmatch(r"[A-Za-z_]\w*", token):
        raise UnknownText(f"{token!r} is no operand")
    return _indexed(token, reader)


def _joined(reader: Reader) -> Expression:
    if re.fullmatch(r"\d+", reader.next):  # a repetition
        times = int(reader.take())
        reader.take("{")
        parts = [*_joined(reader)[1]] * times
    else:
        parts = [read(reader)]
        while reader.accept(","):
            parts.append(read(reader))
    reader.take("}")
    return ("join", tuple(parts))


def _indexed(name: str, reader: Reader) -> Expression:
    selections = []
    while reader.accept("["):
        if re.fullmatch(r"\d+", reader.next):
            high = low = int(reader.take())
            if reader.accept(":"):
                low = int(reader.take())
            selections.append((high, low))
        else:
            selections.append(read(reader))
        reader.take("]")
    if not selections:
        return ("name", name)
    if len(selections) == 1 and isinstance(selections[0][0], int):
        return ("slice", name, *selections[0])
    return ("dynamic", name, tuple(selections))


def names_in(expression: Expression) -> list[str]:
    """Every name an expression reads, in order and as often as it does."""
    found: list[str] = []
    _collect(expression, found)
    return found


def _collect(expression: Expression, found: list[str]) -> None:
    kind = expression[0]
    if kind in ("name", "slice"):
        found.append(expression[1])
    elif kind == "dynamic":
        found.append(expression[1])
        for index in expression[2]:
            if not isinstance(index[0], int):
                _collect(index, found)
    elif kind == "join":
        for part in expression[1]:
            _collect(part, found)
    else:
        for part in expression[1:]:
            if isinstance(part, tuple):
                _collect(part, found)


class Shapes:
    """Widths and signs by Verilog's rules, given the declarations of a module.

    declared
        Width and whether it is signed, by name; of a memory's rows.
    memories
        Names of the memories among them.
    """

    def __init__(self, declared: Mapping[str, tuple[int, bool]], memories: Collection[str] = ()):
        self._declared, self._memories = declared, memories

    def width(self, expression: Expression) -> int:
        """Bits of an expression alone, without what surrounds it."""
        kind = expression[0]
        if kind == "name":
            return self._declared[expression[1]][0]
        if kind == "slice":
            return expression[2] - expression[3] + 1
        if kind == "constant":
            return int(expression[1].split("'")[0])
        if kind == "unary":
            return 1 if expression[1] in REDUCTIONS else self.width(expression[2])
        if kind == "binary":
            operator, a, b = expression[1:]
            if operator in COMPARISONS or operator in LOGICAL:
                return 1
            return self.width(a) if operator in SHIFTS else max(self.width(a), self.width(b))
        if kind == "choice":
            return max(self.width(expression[2]), self.width(expression[3]))
        if kind == "join":
            return sum(map(self.width, expression[1]))
        if kind == "dynamic":
            last = expression[2][-1]
            if isinstance(last[0], int):
                return last[0] - last[1] + 1
            return self._declared[expression[1]][0] if expression[1] in self._memories else 1
        if kind == "call":
            return self.width(expression[2])
        raise UnknownText(f"no width of {kind}")

    def signed(self, expression: Expression) -> bool:
        kind = expression[0]
        if kind == "name":
            return self._declared[expression[1]][1]
        if kind == "call":
            return expression[1] == "$signed"
        if kind == "unary":
            return expression[1] not in REDUCTIONS and self.signed(expression[2])
        if kind == "binary":
            operator, a, b = expression[1:]
            if operator in COMPARISONS or operator in LOGICAL:
                return False
            return self.signed(a) and (operator in SHIFTS or self.signed(b))
        if kind == "choice":
            return self.signed(expression[2]) and self.signed(expression[3])
        return False

    def extends(self, expression: Expression) -> bool:
        """Whether zeros in front of an expression's operands are zeros in front of its value."""
        kind = expression[0]
        if kind == "unary":
            return expression[1] in REDUCTIONS
        if kind == "binary":
            operator, a, b = expression[1:]
            if operator in COMPARISONS or operator in LOGICAL:
                return True
            if operator in (">>", "/", "%"):
                return self.extends(a) and (operator == ">>" or self.extends(b))
            return operator in CHAINS and self.extends(a) and self.extends(b)
        if kind == "choice":
            return self.extends(expression[2]) and self.extends(expression[3])
        return kind != "call"


Definition = Callable[[str], Expression | None]


def inlined(expression: Expression, shapes: Shapes, width: int, find: Definition) -> Expression:
    """An expression with definitions in place of names, wherever no bit changes.

    width
        Bits in which Verilog evaluates it: its own, or more.
    find
        What a name is defined as, or None if it is to be kept. The definition must be unsigned, and
        of the name's width.
    """

    def inner(part: Expression, width: int) -> Expression:
        return inlined(part, shapes, width, find)

    def alone(part: Expression) -> Expression:
        return inlined(part, shapes, shapes.width(part), find)

    kind = expression[0]
    if kind == "name":
        found = find(expression[1])
        # A wire cuts off carries at its width; in a wider place the expression would keep them.
        # Only operators that make zeros of zeros in front may be put there.
        if found is None or not (shapes.width(expression) == width or shapes.extends(found)):
            return expression
        return found
    if kind == "unary":
        operator, a = expression[1:]
        return (kind, operator, alone(a) if operator in REDUCTIONS else inner(a, width))
    if kind == "binary":
        operator, a, b = expression[1:]
        if operator in LOGICAL:
            return (kind, operator, alone(a), alone(b))
        # Operands of a comparison are evaluated in the wider one's width, whatever surrounds it.
        if operator in COMPARISONS:
            width = max(shapes.width(a), shapes.width(b))
        return (
            kind,
            operator,
            inner(a, width),
            alone(b) if operator in SHIFTS else inner(b, width),
        )
    if kind == "choice":
        _, condition, a, b = expression
        return (kind, alone(condition), inner(a, width), inner(b, width))
    if kind == "join":
        # A part of a concatenation is evaluated by itself, so any expression fits in its own width.
        return (kind, tuple(map(alone, expression[1])))
    if kind == "call":
        return (kind, expression[1], alone(expression[2]))
    if kind == "dynamic":
        indices = (i if isinstance(i[0], int) else alone(i) for i in expression[2])
        return (kind, expression[1], tuple(indices))
    return expression


def replaced(expression: Expression, change: Callable[[Expression], Expression | None]):
    """An expression in which `change` gives other ones for some of its parts, innermost first."""
    kind = expression[0]
    if kind == "join":
        expression = (kind, tuple(replaced(part, change) for part in expression[1]))
    elif kind == "dynamic":
        indices = (i if isinstance(i[0], int) else replaced(i, change) for i in expression[2])
        expression = (kind, expression[1], tuple(indices))
    elif kind not in ("name", "slice", "constant"):
        parts = (replaced(p, change) if isinstance(p, tuple) else p for p in expression[1:])
        expression = (kind, *parts)
    return change(expression) or expression


def value_of(constant: Expression) -> int | None:
    """The number of a constant without unknown bits; None for anything else."""
    found = constant[0] == "constant" and re.fullmatch(r"\d+'([hdb])([0-9a-f]+)", constant[1])
    return int(found[2], {"h": 16, "d": 10, "b": 2}[found[1]]) if found else None


def written(expression: Expression) -> str:
    """The text of an expression."""
    kind = expression[0]
    if kind in ("name", "constant"):
        return expression[1]
    if kind == "slice":
        _, name, high, low = expression
        return f"{name}[{high}]" if high == low else f"{name}[{high}:{low}]"
    if kind == "dynamic":
        return expression[1] + "".join(
            f"[{':'.join(map(str, dict.fromkeys(i)))}]"
            if isinstance(i[0], int)
            else f"[{written(i)}]"
            for i in expression[2]
        )
    if kind == "unary":
        return expression[1] + _in_parentheses(expression[2])
    if kind == "binary":
        operator, a, b = expression[1:]
        return f"{_beside(operator, a)} {operator} {_beside(operator, b)}"
    if kind == "choice":
        return " ".join(
            (_in_parentheses(expression[1]), "?", _branch(expression[2]), ":")
            + (written(expression[3]),)
        )
    if kind == "join":
        return _written_join(expression[1])
    return f"{expression[1]}({written(expression[2])})"


def _branch(expression: Expression) -> str:
    return f"({written(expression)})" if expression[0] == "choice" else written(expression)


def _in_parentheses(expression: Expression) -> str:
    text = written(expression)
    return f"({text})" if expression[0] in ("unary", "binary", "choice") else text


def _beside(operator: str, operand: Expression) -> str:
    kind = operand[0]
    if kind == "binary" and operand[1] == operator and operator in CHAINS:
        return written(operand)
    if kind == "unary" and operand[1] in "~!":
        return written(operand)
    return _in_parentheses(operand)


def _written_join(parts: tuple) -> str:
    texts = []
    index = 0
    while index < len(parts):
        count = 1
        # Equal neighbours become a repetition where that is shorter.
        while index + count < len(parts) and parts[index + count] == parts[index]:
            count += 1
        text = written(parts[index])
        if count * len(text) > len(text) + 6:
            texts.append(f"{{{count}{{{text}}}}}")
        else:
            texts += [text] * count
        index += count
    # A repetition alone needs no second pair of braces.
    return texts[0] if len(texts) == 1 and texts[0][:1] == "{" else f"{{{', '.join(texts)}}}"
