"""A netlist as solver terms: registers, their next values and the outputs, as functions.

Read from the text that Yosys' ``write_smt2`` makes of a flat design with one clock. Inputs and
registers become free constants. Copies of the design, later cycles and mutants are made by
substitution, so that equal logic in two copies is one term.
"""

import dataclasses
import re

import bitwuzla
from bitwuzla import Kind, Term


class Terms:
    """Shorthand for the solver's terms. Results are Booleans unless stated."""

    def __init__(self, manager: bitwuzla.TermManager):
        self.manager = manager
        self._one = manager.mk_bv_one(manager.mk_bv_sort(1))

    def word(self, term: Term) -> Term:
        """A bit vector from a bit vector or a Boolean."""
        if not term.sort().is_bool():
            return term
        return self.manager.mk_term(Kind.ITE, [term, self._one, self.value(self._one.sort(), 0)])

    def bit(self, word: Term, number: int) -> Term:
        extract = self.manager.mk_term(Kind.BV_EXTRACT, [word], [number, number])
        return self.equal(extract, self._one)

    def value(self, sort, value: int) -> Term:
        """A constant bit vector."""
        return self.manager.mk_bv_value(sort, value)

    def equal(self, a: Term, b: Term) -> Term:
        return self.manager.mk_term(Kind.EQUAL, [a, b])

    def differ(self, a: Term, b: Term) -> Term:
        return self.manager.mk_term(Kind.DISTINCT, [a, b])

    def negate(self, term: Term) -> Term:
        return self.manager.mk_term(Kind.NOT, [term])

    def any(self, terms: list[Term]) -> Term:
        if len(terms) < 2:
            return terms[0] if terms else self.manager.mk_false()
        return self.manager.mk_term(Kind.OR, terms)

    def all(self, terms: list[Term]) -> Term:
        if len(terms) < 2:
            return terms[0] if terms else self.manager.mk_true()
        return self.manager.mk_term(Kind.AND, terms)

    def fresh(self, like: Term, name: str) -> Term:
        return self.manager.mk_const(like.sort(), name)

    def substitute(self, terms: list[Term], values: dict[Term, Term]) -> list[Term]:
        return [self.manager.substitute_term(term, values) for term in terms]


@dataclasses.dataclass
class System:
    """Terms of a design; every register, input and output is a bit vector.

    inputs, outputs
        By port name, without the clock.
    next
        Register to its value after the clock edge.
    """

    terms: Terms
    inputs: dict[str, Term]
    outputs: dict[str, Term]
    next: dict[Term, Term]

    def with_inputs(self, **fixed: int) -> "System":
        """The same system with some inputs tied to constants."""
        values = {
            self.inputs[name]: self.terms.value(self.inputs[name].sort(), value)
            for name, value in fixed.items()
        }
        inputs = {name: port for name, port in self.inputs.items() if name not in fixed}
        return dataclasses.replace(self.substitute(values), inputs=inputs)

    def substitute(self, values: dict[Term, Term]) -> "System":
        """Outputs and next values with registers or inputs replaced."""
        return dataclasses.replace(
            self,
            outputs=_zip(self.outputs, self.terms.substitute(list(self.outputs.values()), values)),
            next=_zip(self.next, self.terms.substitute(list(self.next.values()), values)),
        )


def _zip(keys, values) -> dict:
    return dict(zip(keys, values, strict=True))


def _search(pattern: str, text: str) -> str:
    """The pattern's first group, where a line of the text has it."""
    found = re.search(pattern, text, re.MULTILINE)
    assert found, f"Yosys wrote no line like {pattern}"
    return found[1]


def read(smt2: str) -> System:
    """The system that ``write_smt2``, without options, describes in `smt2`."""
    manager = bitwuzla.TermManager()
    parser = bitwuzla.Parser(manager, bitwuzla.Options(), "smt2")
    terms = Terms(manager)
    top = _search(r"^; yosys-smt2-module (\S+)$", smt2)
    name = rf"\|{re.escape(top)}[#_][^|]*\|"
    # Every function has one argument, the state; without it functions become constants.
    text = re.sub(rf"\(({name}) state\)", r"\1", smt2)

    constants = {}  # SMT-LIB name to bit vector, for inputs and registers
    declaration = rf"\(declare-fun ({name}) \(\|[^|]*_s\|\) (.*?)\)(?: ;.*)?$"
    definition = rf"\(define-fun ({name}) \(\(state \|[^|]*\|\)\) (.*)$"
    # Assertions, assumptions and initial state are not needed, and may be several lines long.
    unused = {f"|{top}_{kind}|" for kind in "atuih"}
    for line in text.splitlines():
        if (found := re.match(declaration, line)) and not found[1].endswith("_is|"):
            bits = re.search(r"BitVec (\d+)", found[2])
            sort = manager.mk_bv_sort(int(bits[1]) if bits else 1)
            word = f"{found[1][:-1]}@|"
            parser.parse(f"(declare-const {word} (_ BitVec {sort.bv_size()}))", True, False)
            value = word if bits else f"(= {word} #b1)"
            parser.parse(f"(define-fun {found[1]} () {found[2]} {value})", True, False)
            constants[found[1]] = parser.parse_term(word)
        elif (found := re.match(definition, line)) and found[1] not in unused:
            parser.parse(f"(define-fun {found[1]} () {found[2]}\n", True, False)

    def ports(kind: str) -> list[str]:
        return re.findall(rf"^; yosys-smt2-{kind} (\S+) \d+$", text, re.MULTILINE)

    inputs = {}
    for port in ports("input"):
        if port != "clk":
            reading = re.escape(f"(define-fun |{top}_n {port}| ")
            inputs[port] = constants[_search(rf"^{reading}.*?(\|{re.escape(top)}#\d+\|)", text)]
    outputs = {port: terms.word(parser.parse_term(f"|{top}_n {port}|")) for port in ports("output")}
    edges = re.findall(rf"\(= (.*) \(({name}) next_state\)\)", text)
    after = {constants[register]: terms.word(parser.parse_term(value)) for value, register in edges}
    return System(terms, inputs, outputs, after)
