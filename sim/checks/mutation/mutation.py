"""Mutation coverage of a block's testbench: mutants killed, equivalent and surviving.

Each mutant of the design (:mod:`sim.checks.mutation.mutants`) runs the block's real and random
stimuli under every stall pattern, until a check fails: the mutant is killed. A mutant that passes
all checks either is equivalent to the design, by an unbounded proof (:class:`Judge`), or survives
and shows a hole in the testbench.
"""

import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence

from tqdm import tqdm

from hw.catalogue import Block
from hw.parameters import Parameters
from sim.checks.formal.equivalence import Prover, Verdict
from sim.checks.formal.gate_equivalence import GateProver
from sim.checks.mutation.mutants import SELECT, Mutant, Mutants, create
from sim.core.memory import TIMINGS, timings_of
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Stimulus, compare, compare_memories
from sim.core.tools import ToolError
from sim.drivers.harness.runner import Harness
from sim.drivers.run import load_testbench, load_trace, stimuli_of

COUNT = 100  # mutants
PROOF_SECONDS = 60

# Times a cocotb run's vectors, because the compiled harness is faster; a testbench that has few of
# them says how many in `mutant_vectors`.
VECTORS_FACTOR = 4


@dataclasses.dataclass(frozen=True)
class Check:
    """One stimulus under one stall pattern."""

    stimulus: Stimulus
    stall: str
    seed: int

    def __str__(self) -> str:
        return f"{self.stimulus.transactions} transactions, stall {self.stall}"


@dataclasses.dataclass(frozen=True)
class Survivor:
    """A mutant that passes every check, and the verdict of the proof."""

    mutant: Mutant
    verdict: Verdict


@dataclasses.dataclass
class Report:
    """Mutants of one configuration by result.

    killed
        Mutants that failed a check.
    equivalent
        Mutants that passed every check and are proved equivalent to the design.
    survivors
        The others: surviving mutants.
    seconds
        Wall-clock time by stage.
    """

    block: str
    preset: str
    seed: int
    mutants: int = 0
    killed: list[Mutant] = dataclasses.field(default_factory=list)
    equivalent: list[Survivor] = dataclasses.field(default_factory=list)
    survivors: list[Survivor] = dataclasses.field(default_factory=list)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)


def _vectors(testbench, parameters: Parameters) -> int:
    own = getattr(testbench, "mutant_vectors", None)
    return (
        VECTORS_FACTOR * testbench.default_vectors(parameters) if own is None else own(parameters)
    )


def checks_of(
    block: Block, parameters: Parameters, seed: int, vectors: int | None = None
) -> list[Check]:
    """Every stimulus under every stall pattern, the shortest first.

    Random data and its stalls have two seeds, because a testbench may choose by it what a
    stimulus is about.
    """
    testbench = load_testbench(block)
    vectors = vectors or _vectors(testbench, parameters)
    stimuli = stimuli_of(block, parameters, load_trace(None), vectors, seed)
    seeded = [(stimulus, seed) for stimulus in stimuli]
    seeded.append((testbench.stimulus(parameters, None, vectors, seed + 1), seed + 1))
    order = list(PATTERNS)
    checks = [
        Check(stimulus, stall, of) for (stimulus, of), stall in itertools.product(seeded, order)
    ]
    return sorted(checks, key=lambda check: (order.index(check.stall), check.stimulus.cycles))


def further_checks(
    block: Block, parameters: Parameters, seed: int, vectors: int | None, rounds: int
) -> Iterator[list[Check]]:
    """Random data under every stall pattern, by seeds that :func:`checks_of` does not use."""
    testbench = load_testbench(block)
    vectors = vectors or _vectors(testbench, parameters)
    for of in range(seed + 2, seed + 2 + rounds):
        stimulus = testbench.stimulus(parameters, None, vectors, of)
        yield [Check(stimulus, stall, of) for stall in PATTERNS]


def complaint(
    harness: Harness, mutants: Mutants, number: int, checks: Sequence[Check]
) -> str | None:
    """The first failure of mutant `number`, with its check; None if all pass.

    All checks run on one model, each after a reset in the middle of traffic: what earlier ones have
    left in memories and registers must not matter.
    """
    harness.reset(**{SELECT: number})
    for check in checks:
        said = _failure(harness, mutants, check)
        if said is not None:
            return f"({check}): {said}"
    return None


def _failure(harness: Harness, mutants: Mutants, check: Check) -> str | None:
    stimulus, design = check.stimulus, mutants.design
    stimulus.stall = check.stall
    stimulus.timings = timings_of(stimulus.memories, TIMINGS[check.stall])
    outcome = harness.run(stimulus, PATTERNS[check.stall], check.seed, stimulus.timings)
    if outcome.failure is not None:
        return outcome.failure
    differences = getattr(load_testbench(design.block), "compare", compare)
    found = differences(stimulus, outcome.outputs, design.outputs, outcome.cycles_of)
    found = found or compare_memories(stimulus, outcome)
    if found:
        return str(found[0])
    return stimulus.wrong_cycles(outcome) if check.stall == "none" else None


def harness_of(mutants: Mutants, checks: list[Check]) -> Harness:
    """The design with all its faults, compiled."""
    return Harness(mutants.design)


def surviving(
    mutants: Mutants, checks: list[Check], harness: Harness, among: Sequence[Mutant] | None = None
) -> list[Mutant]:
    """The mutants, all or those `among` them, that pass every check.

    :raises ToolError: if the design without a fault fails one.
    """
    said = complaint(harness, mutants, 0, checks)
    if said is not None:
        raise ToolError(f"the design fails its own testbench without a mutation {said}")
    chosen = mutants.mutants if among is None else among
    bar = tqdm(chosen, desc="simulate", unit="mutant", disable=None, leave=False)
    return [mutant for mutant in bar if complaint(harness, mutants, mutant.number, checks) is None]


def mutate(
    block: Block,
    preset: str,
    parameters: Parameters,
    *,
    count: int = COUNT,
    seed: int = 1,
    vectors: int | None = None,
    seconds: float = PROOF_SECONDS,
    within: str | None = None,
    rounds: int = 0,
) -> Report:
    """Make, simulate and judge mutants of one configuration.

    rounds
        Of further random data, each of another seed, for those that pass.
    seconds
        Time limit for judging each survivor.
    within
        A regular expression that the source lines of mutants are to match.
    """
    report = Report(block.name, preset, seed)
    watch = _Watch(report.seconds)
    mutants = create(block, parameters, count, seed, within)
    report.mutants = len(mutants.mutants)
    watch.lap("generate")
    checks = checks_of(block, parameters, seed, vectors)
    harness = harness_of(mutants, checks)
    watch.lap("build")
    alive = surviving(mutants, checks, harness)
    for further in further_checks(block, parameters, seed, vectors, rounds if alive else 0):
        alive = surviving(mutants, further, harness, alive)
    watch.lap("simulate")
    harness.close()
    report.killed = [mutant for mutant in mutants.mutants if mutant not in alive]
    for survivor in judged(mutants, alive, seconds):
        proved = survivor.verdict.equivalent
        (report.equivalent if proved else report.survivors).append(survivor)
    watch.lap("prove")
    return report


def judged(mutants: Mutants, alive: Sequence[Mutant], seconds: float) -> Iterator[Survivor]:
    """Each mutant that passed the checks with the verdict on it, in about `seconds` each."""
    if alive:
        judge = Judge(mutants)
        for mutant in tqdm(alive, desc="prove", unit="mutant", disable=None, leave=False):
            yield Survivor(mutant, judge(mutant.number, seconds))


class Judge:
    """Proves mutants equivalent, or finds inputs that tell them from the design.

    By gates (:class:`sim.checks.formal.gate_equivalence.GateProver`) in the first half of the
    time, then by words (:class:`sim.checks.formal.equivalence.Prover`).
    """

    def __init__(self, mutants: Mutants):
        design = mutants.design
        self._gates = GateProver(design.verilog, design.module, design.inputs)
        self._words = Prover(mutants.smt2, design.inputs, design.outputs)

    def __call__(self, number: int, seconds: float) -> Verdict:
        started = time.monotonic()
        proof = self._gates.prove(number, seconds / 2)
        if proof is not None:
            return Verdict("equivalent", proof)
        return self._words.judge(number, seconds - (time.monotonic() - started))


class _Watch:
    def __init__(self, laps: dict[str, float]):
        self._laps, self._last = laps, time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._laps[name] = round(now - self._last, 2)
        self._last = now
