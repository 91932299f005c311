"""Lemmas about unreachable states of a design, proved by relative induction.

A *cube* is the set of states in which some register bits have given values. Its negation is a
*lemma* if no reset leads into the cube, and no step from a state outside it in which all earlier
lemmas hold. If such a step exists, its starting states are excluded first, as in IC3 (A. Bradley,
"SAT-based model checking without unrolling", VMCAI 2011). There are no frames as in IC3: a state is
found to be reachable only if a reset leads to it.
"""

import functools
import math
import time
from collections.abc import Iterable
from typing import NamedTuple

import bitwuzla
from bitwuzla import Option, Result, Term

from sim.checks.formal.transition import Terms

LIMIT = 50  # most cubes excluded together


class Literal(NamedTuple):
    """A register's bit and the value it has."""

    register: Term
    bit: int
    value: bool


class OutOfTime(Exception):
    """The time limit of a proof has passed."""


class Solver:
    """An incremental solver that gives up at a deadline (seconds, monotonic clock)."""

    def __init__(self, terms: Terms, deadline: float = math.inf):
        options = bitwuzla.Options()
        options.set(Option.PRODUCE_MODELS, True)
        options.set(Option.PRODUCE_UNSAT_ASSUMPTIONS, True)
        self.deadline = deadline
        self._solver = bitwuzla.Bitwuzla(terms.manager, options)
        self._solver.configure_terminator(lambda: time.monotonic() > self.deadline)

    def add(self, *formulas: Term) -> None:
        for formula in formulas:
            self._solver.assert_formula(formula)

    def satisfiable(self, *assumptions: Term) -> bool:
        """:raises OutOfTime: at the deadline."""
        if time.monotonic() > self.deadline:
            raise OutOfTime
        result = self._solver.check_sat(*assumptions)
        if result == Result.UNKNOWN:
            raise OutOfTime
        return result == Result.SAT

    def value(self, word: Term) -> int:
        """A bit vector's value in the model just found."""
        return int(self._solver.get_value(word).value(2), 2)

    def holds(self, formula: Term) -> bool:
        return self._solver.get_value(formula).is_true()

    def core(self) -> set[Term]:
        """The assumptions that the last contradiction needs."""
        return set(self._solver.get_unsat_assumptions())


class Reachability:
    """Lemmas about one transition relation.

    next
        Register to its value after a step.
    reset
        Register to its value after a step in reset, from any state.
    inputs
        Free terms besides the registers.
    rule
        What inputs satisfy in every step; Boolean over inputs and registers.
    """

    def __init__(self, terms: Terms, next: dict, reset: dict, inputs: list[Term], rule: Term):
        self._terms = terms
        self._next, self._reset, self._inputs = next, reset, inputs
        self._rule = rule
        self.lemmas: list[Term] = []

    def exclude(self, cube: Iterable[Literal], deadline: float) -> bool:
        """Try to prove that no state of the cube is ever reached; adds lemmas.

        :raises OutOfTime: at the deadline.
        """
        terms, steps = self._terms, self._steps
        self._steps.deadline = self._resets.deadline = deadline
        cubes, pending = [], list(cube)
        while True:
            if self._reset_leads_into(pending):
                return False
            if not self._exclude_alone(pending):
                cubes.append(pending)
            elif not cubes:
                return True
            # Cubes may lead into each other: all of them are excluded together, or none.
            now = terms.any([self._conjunction(it) for it in cubes])
            after = terms.any([self._conjunction(it, self._next) for it in cubes])
            if not steps.satisfiable(terms.negate(now), after):
                self._add_lemmas(cubes)
                return True
            if len(cubes) == LIMIT:
                return False
            pending = self.shrink(steps, after, deadline)

    # Both solvers are made when first needed, and keep what they learn.
    @functools.cached_property
    def _steps(self) -> Solver:
        steps = Solver(self._terms)
        steps.add(self._rule, *self.lemmas)
        return steps

    @functools.cached_property
    def _resets(self) -> Solver:
        return Solver(self._terms)

    def _reset_leads_into(self, cube: list[Literal]) -> bool:
        return self._resets.satisfiable(*(self.literal(it, self._reset) for it in cube))

    def _exclude_alone(self, cube: list[Literal]) -> bool:
        """Try to exclude a cube by itself, generalized to the fewest literals that suffice."""
        needed = self._reason(cube)
        if needed is None:
            return False
        size = len(needed) // 2
        while size:
            start = 0
            while start < len(needed):
                fewer = self._reason(needed[:start] + needed[start + size :])
                if fewer is None:
                    start += size
                else:
                    needed = fewer
            size //= 2
        self._add_lemmas([needed])
        return True

    def _reason(self, cube: list[Literal]) -> list[Literal] | None:
        """Literals whose cube is excluded by itself; None if none are found."""
        # Without a literal that keeps resets out, the larger cube might hold the first state.
        while not self._reset_leads_into(cube):
            needed = self._resets.core()
            after_reset = [self.literal(it, self._reset) for it in cube]
            after = [self.literal(it, self._next) for it in cube]
            now = self._conjunction(cube)
            if not self._steps.satisfiable(self._terms.negate(now), *after):
                needed |= self._steps.core()
                both = zip(cube, after_reset, after, strict=True)
                return [it for it, *terms in both if not needed.isdisjoint(terms)]
            # Literals that the step's first state contradicts are dropped, and the rest is tried.
            values = {it.register: self._steps.value(it.register) for it in cube}
            cube = [it for it in cube if values[it.register] >> it.bit & 1 == it.value]
        return None

    def _add_lemmas(self, cubes: Iterable[Iterable[Literal]]) -> None:
        for cube in cubes:
            lemma = self._terms.negate(self._conjunction(cube))
            self.lemmas.append(lemma)
            self._steps.add(lemma)

    def _conjunction(self, cube: Iterable[Literal], values: dict | None = None) -> Term:
        return self._terms.all([self.literal(it, values) for it in cube])

    def literal(self, literal: Literal, values: dict | None = None) -> Term:
        """A Boolean of the present state, or of the state whose register values are given."""
        word = literal.register if values is None else values[literal.register]
        bit = self._terms.bit(word, literal.bit)
        return bit if literal.value else self._terms.negate(bit)

    def shrink(self, model: Solver, formula: Term, deadline: float) -> list[Literal]:
        """The part of a model's state that alone makes `formula` true, with the model's inputs.

        All of the state's registers where they do not suffice.
        """
        values = {word: model.value(word) for word in [*self._next, *self._inputs]}
        states, inputs = {}, []
        for word, value in values.items():
            for bit in range(word.sort().bv_size()):
                literal = Literal(word, bit, bool(value >> bit & 1))
                if word in self._next:
                    states[self.literal(literal)] = literal
                else:
                    inputs.append(self.literal(literal))
        solver = Solver(self._terms, deadline)
        solver.add(self._terms.negate(formula), *inputs)
        if solver.satisfiable(*states):
            # It depends on more than registers and inputs, for example on words of a memory.
            return [*states.values()]
        return [states[term] for term in solver.core() if term in states]
