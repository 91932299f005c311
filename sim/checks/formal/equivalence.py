"""Sequential equivalence of a design and its mutants: unbounded proofs and counterexamples.

Two copies of the design, one with the fault switched on, start in the same arbitrary state, are
reset together and then receive the same inputs, with further resets at any time. They are
*equivalent* if every ready and valid output agrees in every cycle, and every payload output
whenever its valid is 1. Inputs keep the rules of streams: a stalled beat is unchanged until it is
accepted. A payload field whose shape is a ``range`` holds a value of that range.

The proof is by induction over register correspondence (C. van Eijk, "Sequential equivalence
checking based on structural similarities", 2000). The hypothesis is that register bits of the two
copies are equal: all of them at first; bits that a step makes different are dropped, until a step
preserves the rest. Steps from unreachable states do not count. Lemmas about unreachable states
(:mod:`sim.checks.formal.reachability`) are kept for all mutants of a design, except those about a
mutant's own registers.
"""

import dataclasses
import time

from bitwuzla import Kind, Term

from sim.checks.formal.input_rules import remember_offers
from sim.checks.formal.reachability import OutOfTime, Reachability, Solver
from sim.checks.formal.transition import System, read
from sim.checks.mutation.mutants import SELECT

CYCLES = 60  # bound of the search for a difference, after reset


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is known of a mutant.

    status
        ``equivalent`` (unbounded proof), ``differs`` (counterexample found) or ``unresolved``.
    detail
        Size of the proof, or the inputs of the counterexample.
    """

    status: str
    detail: str

    @property
    def equivalent(self) -> bool:
        return self.status == "equivalent"

    def __str__(self) -> str:
        return f"{self.status}: {self.detail}"


class Prover:
    """Judges mutants of one design, and keeps the lemmas about the design from one to the next.

    smt2
        The design with all mutants, as :class:`sim.checks.mutation.mutants.Mutants` has it.
    sources, sinks
        Input and output stream names to payload shapes.
    """

    def __init__(self, smt2: str, sources: dict, sinks: dict):
        self._system = read(smt2)
        self._terms = self._system.terms
        self._sources, self._sinks = sources, sinks
        self._rst = self._system.inputs.get("rst")
        design = self._system.with_inputs(**{SELECT: 0})
        self._design, self._rule = remember_offers(design, self._sources)
        self._inputs = list(self._design.inputs.values())
        self._after_reset = self._in_reset(self._design)
        self._known = Reachability(
            self._terms, self._design.next, self._after_reset, self._inputs, self._rule
        )

    def judge(self, number: int, seconds: float) -> Verdict:
        """Prove mutant `number` equivalent or find a counterexample, within about `seconds`.

        A short proof and a bounded search come first, as most mutants need no more. The long proof
        starts from the lemmas of the short one.
        """
        mutant = self._system.with_inputs(**{SELECT: number})
        verdict = Verdict("unresolved", "")
        for attempt, share in ((self._prove, 0.05), (self._search, 0.2), (self._prove, 0.75)):
            found = attempt(mutant, time.monotonic() + share * seconds)
            if found.status != "unresolved":
                return found
            verdict = Verdict("unresolved", f"{verdict.detail} {found.detail}".strip())
        return verdict

    def _prove(self, mutant: System, deadline: float) -> Verdict:
        """Equivalent or unresolved."""
        try:
            proof = self._induct(mutant, deadline)
        except OutOfTime:
            proof = None
        return Verdict("unresolved", "") if proof is None else Verdict("equivalent", proof)

    def _induct(self, mutant: System, deadline: float) -> str | None:
        """Size of the proof of equivalence; None if an output can differ while the bits agree.

        :raises OutOfTime: at the deadline.
        """
        terms, in_reset = self._terms, self._in_reset(mutant)
        equal = [(word, bit) for word in mutant.next for bit in range(word.sort().bv_size())]
        resets = Solver(terms, deadline)
        equal = self._still_equal(resets, equal, self._after_reset, in_reset)
        while True:
            own, pair = self._pair(mutant, equal)
            reach = Reachability(
                terms,
                self._design.next | {own[word]: pair.next[word] for word in own},
                self._after_reset | {own[word]: in_reset[word] for word in own},
                self._inputs,
                self._rule,
            )
            wrong = self._wrong(self._design.outputs, pair.outputs)
            parted = [self._differ(self._design.next, pair.next, it) for it in equal]
            failure = terms.any([wrong, *parted])
            steps = Solver(terms, deadline)
            steps.add(self._rule, *self._known.lemmas)
            while steps.satisfiable(failure):
                learnt = len(self._known.lemmas), len(reach.lemmas)
                cube = reach.shrink(steps, failure, deadline)
                common = [it for it in cube if it.register in self._design.next]
                excluded = self._known.exclude(common, deadline)
                excluded = excluded or bool(own) and reach.exclude(cube, deadline)
                steps.add(*self._known.lemmas[learnt[0] :], *reach.lemmas[learnt[1] :])
                if excluded or not steps.satisfiable(failure):
                    continue
                if steps.holds(wrong):
                    return None
                break
            else:
                lemmas = len(self._known.lemmas) + len(reach.lemmas)
                bits = sum(word.sort().bv_size() for word in mutant.next)
                return (
                    f"{len(equal)} of {bits} register bits stay equal, "
                    f"{lemmas} sets of states excluded"
                )
            equal = [it for it, term in zip(equal, parted, strict=True) if not steps.holds(term)]

    def _still_equal(self, solver: Solver, equal: list, a: dict, b: dict) -> list:
        """Bits of `equal` that agree after a reset from any common state."""
        while True:
            parted = [self._differ(a, b, it) for it in equal]
            if not solver.satisfiable(self._terms.any(parted)):
                return equal
            equal = [it for it, term in zip(equal, parted, strict=True) if not solver.holds(term)]

    def _pair(self, mutant: System, equal: list) -> tuple[dict, System]:
        """The mutant's own registers, and the mutant reading those and the design's equal bits."""
        terms, manager = self._terms, self._terms.manager
        own, values = {}, {}
        for word in mutant.next:
            same = sum(1 << bit for shared, bit in equal if shared == word)
            if same != (1 << word.sort().bv_size()) - 1:
                own[word] = terms.fresh(word, "mutant's")
                mask = terms.value(word.sort(), same)
                values[word] = manager.mk_term(
                    Kind.BV_OR,
                    [
                        manager.mk_term(Kind.BV_AND, [word, mask]),
                        manager.mk_term(
                            Kind.BV_AND, [own[word], manager.mk_term(Kind.BV_NOT, [mask])]
                        ),
                    ],
                )
        return own, mutant.substitute(values)

    def _search(self, mutant: System, deadline: float) -> Verdict:
        """Bounded model checking: both copies from reset, all inputs free, until outputs differ."""
        terms = self._terms
        solver = Solver(terms, deadline)
        state, mutant_state = self._after_reset, self._in_reset(mutant)
        outcome = []
        cycle = 0
        try:
            for cycle in range(1, CYCLES + 1):
                inputs = {
                    port: terms.fresh(port, f"{name}_{cycle}")
                    for name, port in self._design.inputs.items()
                }
                if self._rst is not None:
                    inputs[self._rst] = terms.value(self._rst.sort(), 0)
                now = self._design.substitute(state | inputs)
                mutant_now = mutant.substitute(mutant_state | inputs)
                solver.add(*terms.substitute([self._rule], state | inputs))
                outcome.append((inputs, now, mutant_now))
                if solver.satisfiable(self._wrong(now.outputs, mutant_now.outputs)):
                    return Verdict("differs", self._story(solver, outcome))
                state, mutant_state = now.next, mutant_now.next
        except OutOfTime:
            cycle -= 1
        return Verdict("unresolved", f"no difference within {cycle} cycles after reset")

    def _story(self, solver: Solver, outcome: list) -> str:
        """The counterexample as text: the inputs beat by beat, and the outputs that differ."""
        ports, lines = self._design.inputs, []
        for stream in self._sources:
            beats = []
            for inputs, _, _ in outcome:
                offered = solver.value(inputs[ports[f"{stream}__valid"]])
                payload = solver.value(inputs[ports[f"{stream}__payload"]])
                beats.append(f"{payload:#x}" if offered else "-")
            lines.append(f"{stream} offers {' '.join(beats)}")
        for stream in self._sinks:
            ready = [solver.value(inputs[ports[f"{stream}__ready"]]) for inputs, _, _ in outcome]
            lines.append(f"{stream} ready {''.join(map(str, ready))}")
        _, now, mutant_now = outcome[-1]
        for name, output in now.outputs.items():
            want, got = solver.value(output), solver.value(mutant_now.outputs[name])
            if want != got:
                lines.append(f"{name} is {got:#x}, not {want:#x}")
        return f"in cycle {len(outcome)} after reset; {'; '.join(lines)}"

    def _wrong(self, a: dict[str, Term], b: dict[str, Term]) -> Term:
        """A ready or valid differs, or the payload of a valid beat."""
        terms, found = self._terms, []
        for name, output in a.items():
            differs = terms.differ(output, b[name])
            stream, _, member = name.rpartition("__")
            if member == "payload":
                differs = terms.all([terms.bit(a[f"{stream}__valid"], 0), differs])
            found.append(differs)
        return terms.any(found)

    def _differ(self, a: dict, b: dict, place: tuple[Term, int]) -> Term:
        word, bit = place
        return self._terms.differ(self._terms.bit(a[word], bit), self._terms.bit(b[word], bit))

    def _in_reset(self, system: System) -> dict[Term, Term]:
        """Register values after a cycle in reset; after any cycle, if the design has no reset."""
        if self._rst is None:
            return system.next
        return system.substitute({self._rst: self._terms.value(self._rst.sort(), 1)}).next
