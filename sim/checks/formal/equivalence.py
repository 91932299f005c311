"""Does a mutant behave as the design does, always? Proofs and counterexamples.

Two copies of the design, one with the fault switched on, start from the same arbitrary state, are
reset together and then see the same inputs for ever, further resets among them. They are
*equivalent* if every ready and valid output always agrees, and every payload output whenever its
valid is 1. Inputs keep the stream rules, that a beat offered stays, unchanged, until it is taken,
and a payload field whose shape is a ``range`` holds a value of that range.

The proof is an induction. Its claim is that register bits of the two copies are equal: all of them
to begin with, fewer as steps are found that part them (C. van Eijk, "Sequential equivalence
checking based on structural similarities", 2000). Steps from states that are never reached do not
count (:mod:`sim.checks.formal.reachability`); what is learnt of those serves all mutants of a
design, save what speaks of a mutant's own registers.
"""

import dataclasses
import time

from bitwuzla import Kind, Term

from sim.checks.formal.input_rules import remember_offers
from sim.checks.formal.reachability import OutOfTime, Reachability, Solver
from sim.checks.formal.transition import System, read
from sim.checks.mutation.mutants import SELECT

CYCLES = 60  # after reset, in which a difference is searched for at most


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is known of a mutant.

    status
        ``equivalent`` (proved for all time), ``differs`` or ``unresolved``.
    detail
        What the proof rests on, or the inputs that show the difference.
    """

    status: str
    detail: str

    @property
    def equivalent(self) -> bool:
        return self.status == "equivalent"

    def __str__(self) -> str:
        return f"{self.status}: {self.detail}"


class Prover:
    """Judges mutants of one design; the more it has judged, the more it knows of the design.

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
        """Prove mutant `number` equivalent or tell it apart, within about `seconds`.

        A short attempt at each comes first, as most mutants need no more. States once excluded
        stay so, and the long attempt starts from there.
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
        """Equivalent, or not resolved."""
        try:
            proof = self._induct(mutant, deadline)
        except OutOfTime:
            proof = None
        return Verdict("unresolved", "") if proof is None else Verdict("equivalent", proof)

    def _induct(self, mutant: System, deadline: float) -> str | None:
        """What makes the mutant equivalent; None if no more bits can be given up."""
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
        """Bits that agree after a reset from whatever common state."""
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
        """Run both copies from reset, every input free, until an output differs."""
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
        """The inputs that lead to a difference, beat by beat, and the difference."""
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
        """Some output differs that matters."""
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
        """Register values after a cycle in reset, or after any cycle where there is no reset."""
        if self._rst is None:
            return system.next
        return system.substitute({self._rst: self._terms.value(self._rst.sort(), 1)}).next
