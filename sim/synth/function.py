"""Boolean functions as Liberty writes them: read, evaluated, and written in other languages.

Operators, strongest first: ``!`` before or ``'`` after a term, ``^``, ``&`` (also ``*`` or nothing
between two terms), ``|`` (also ``+``).
"""

import itertools
import re

from sim.synth import SynthesisError

TOKEN = re.compile(r"\s*([A-Za-z_][\w\[\]]*|[01](?!\w)|[()!'&*|+^])")


def parse(text: str) -> tuple:
    """A tree of ``("pin", name)``, ``("constant", bool)`` and ``("!" | "&" | "|" | "^", *trees)``.

    :raises SynthesisError: if it is no such expression.
    """
    tokens = []
    at = 0
    stripped = text.strip()
    while at < len(stripped):
        match = TOKEN.match(stripped, at)
        if not match:
            raise SynthesisError(f"the function {text!r} in the library cannot be read")
        tokens.append(match[1])
        at = match.end()
    tree, rest = _either(tokens)
    if rest or tree is None:
        raise SynthesisError(f"the function {text!r} in the library cannot be read")
    return tree


def _either(tokens):
    return _chain(tokens, _both, ("|", "+"), "|")


def _both(tokens):
    tree, tokens = _differ(tokens)
    while tree and tokens and tokens[0] not in (")", "|", "+", "'"):
        more, tokens = _differ(tokens[1:] if tokens[0] in "&*" else tokens)
        tree = ("&", tree, more) if more else None
    return tree, tokens


def _differ(tokens):
    return _chain(tokens, _term, ("^",), "^")


def _chain(tokens, part, signs, name):
    tree, tokens = part(tokens)
    while tree and tokens and tokens[0] in signs:
        more, tokens = part(tokens[1:])
        tree = (name, tree, more) if more else None
    return tree, tokens


def _term(tokens):
    """A recursive-descent parser; None in place of a tree is a syntax error."""
    if not tokens or tokens[0] in ")&*|+^'":
        return None, tokens
    head, tokens = tokens[0], tokens[1:]
    if head == "!":
        tree, tokens = _term(tokens)
        return (("!", tree) if tree else None), tokens
    if head == "(":
        tree, tokens = _either(tokens)
        if not tree or not tokens or tokens[0] != ")":
            return None, tokens
        tokens = tokens[1:]
    elif head in "01":
        tree = ("constant", head == "1")
    else:
        tree = ("pin", head)
    while tokens and tokens[0] == "'":
        tree, tokens = ("!", tree), tokens[1:]
    return tree, tokens


def evaluate(tree: tuple, values: dict[str, bool]) -> bool:
    kind, *parts = tree
    if kind == "pin":
        return values[parts[0]]
    if kind == "constant":
        return parts[0]
    results = [evaluate(part, values) for part in parts]
    if kind == "!":
        return not results[0]
    return {"&": all(results), "|": any(results), "^": results[0] != results[-1]}[kind]


def truth_table(text: str, pins: list[str]) -> tuple[bool, ...]:
    """Values for all inputs, the first pin changing slowest.

    :raises SynthesisError: if the function is not of these pins alone.
    """
    tree = parse(text)
    try:
        return tuple(
            evaluate(tree, dict(zip(pins, values, strict=True)))
            for values in itertools.product((False, True), repeat=len(pins))
        )
    except KeyError as error:
        raise SynthesisError(f"the function {text!r} names {error}, which is no input") from None


def to_verilog(tree: tuple) -> str:
    kind, *parts = tree
    if kind == "pin":
        return parts[0]
    if kind == "constant":
        return "1'b1" if parts[0] else "1'b0"
    texts = [to_verilog(part) for part in parts]
    return f"~{texts[0]}" if kind == "!" else f"({f' {kind} '.join(texts)})"


def to_genlib(tree: tuple) -> str:
    """ABC's genlib notation, which has no exclusive or."""
    kind, *parts = tree
    if kind == "pin":
        return parts[0]
    if kind == "constant":
        return f"CONST{int(parts[0])}"
    texts = [to_genlib(part) for part in parts]
    if kind == "!":
        return f"!{texts[0]}"
    if kind == "^":
        a, b = texts
        return f"(({a} * !{b}) + (!{a} * {b}))"
    return f"({({'&': ' * ', '|': ' + '}[kind]).join(texts)})"
