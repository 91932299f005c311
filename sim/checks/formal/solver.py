"""SMT-LIB front end for the bitwuzla Python module: ``python -m sim.checks.formal.solver``.

The wheel ships the solver as a Python module without an executable, while yosys-smtbmc talks to
solvers over a pipe. This reads commands from standard input and answers on standard output.
"""

import sys
from collections.abc import Iterable, Iterator

import bitwuzla

USAGE = "usage: python -m sim.checks.formal.solver [--lang smt2] < commands.smt2"


def commands(lines: Iterable[str]) -> Iterator[str]:
    """Complete commands, each with its parentheses closed; comments between them are dropped."""
    text, depth, quoted = "", 0, False
    for line in lines:
        if not text and (not line.strip() or line.lstrip().startswith(";")):
            continue
        for character in line:
            if character == "|":
                quoted = not quoted
            elif not quoted:
                depth += (character == "(") - (character == ")")
        text += line
        if depth == 0 and not quoted:
            yield text.strip()
            text = ""


class Session:
    """One conversation with a client.

    bitwuzla's parser forgets its scopes from one call to the next, so the assertions are kept here
    as text, one list per scope, and every ``check-sat`` replays the open scopes into a new parser.
    """

    def __init__(self) -> None:
        self._scopes: list[list[str]] = [[]]
        self._parser: bitwuzla.Parser | None = None

    def execute(self, command: str) -> bool:
        """Carry out one command; False once the client wants to end."""
        head = command.lstrip("( \t\n").split(None, 1)[0].rstrip(")")
        if head == "exit":
            return False
        if head == "push":
            self._scopes.append([])
        elif head == "pop":
            self._scopes.pop()
        elif head.startswith("check-sat"):
            self._check(command)
        elif head.startswith("get-") or head == "echo":
            self._ask(command)
        else:
            self._scopes[-1].append(command)
            # Functions defined between a check and the queries of its model.
            if self._parser is not None and head.startswith(("define-", "declare-")):
                self._ask(command)
        return True

    def _check(self, command: str) -> None:
        options = bitwuzla.Options()
        options.set(bitwuzla.Option.PRODUCE_MODELS, True)
        self._parser = bitwuzla.Parser(bitwuzla.TermManager(), options, "smt2")
        self._ask("\n".join([*(line for scope in self._scopes for line in scope), command]))

    def _ask(self, command: str) -> None:
        if self._parser is None:
            self._parser = bitwuzla.Parser(bitwuzla.TermManager(), bitwuzla.Options(), "smt2")
        self._parser.parse(command, False, False)
        sys.stdout.flush()


def main() -> None:
    if "--help" in sys.argv:
        print(USAGE)
        return
    session = Session()
    for command in commands(sys.stdin):
        if not session.execute(command):
            break


if __name__ == "__main__":
    main()
