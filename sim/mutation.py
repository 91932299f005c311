"""How many of a block's mutants its bench notices, and whether it should notice the others.

Each mutant of the design (:mod:`sim.mutants`) is played the block's real and random jobs, under
every stall pattern, until one of them notices. What survives either behaves as the design does,
which :mod:`sim.equivalence` proves for all time, or shows a hole in the bench.
"""

import dataclasses
import itertools
import time

from tqdm import tqdm

from hw.catalogue import Block
from hw.parameters import Parameters
from sim import bench as benches
from sim.bench import Job
from sim.equivalence import Prover, Verdict
from sim.harness import Harness
from sim.memory import TIMINGS, timings_of
from sim.mutants import SELECT, Mutant, Mutants, create
from sim.run import bench_of, jobs_of, load_trace
from sim.stall import PATTERNS
from sim.tools import ToolError

COUNT = 100  # mutants
PROOF_SECONDS = 60

# Mutants run in the compiled harness, which has time for more than a cocotb run's share of data.
VECTORS_FACTOR = 4


@dataclasses.dataclass(frozen=True)
class Check:
    """One job under one stall pattern."""

    job: Job
    stall: str
    seed: int

    def __str__(self) -> str:
        return f"{self.job.transactions} transactions, stall {self.stall}"


@dataclasses.dataclass(frozen=True)
class Survivor:
    """A mutant that no check noticed, and what the proof says of it."""

    mutant: Mutant
    verdict: Verdict


@dataclasses.dataclass
class Report:
    """What became of the mutants of one configuration.

    killed
        Those that some check noticed.
    equivalent
        Survivors proved to behave as the design does, for all time.
    survivors
        All others.
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


def checks_of(
    block: Block, parameters: Parameters, seed: int, vectors: int | None = None
) -> list[Check]:
    """Every job under every stall pattern, the shortest first."""
    vectors = vectors or VECTORS_FACTOR * bench_of(block).default_vectors(parameters)
    jobs = jobs_of(block, parameters, load_trace(None), vectors, seed)
    order = list(PATTERNS)
    checks = [Check(job, stall, seed) for job, stall in itertools.product(jobs, order)]
    return sorted(checks, key=lambda check: (order.index(check.stall), check.job.cycles))


def complaint(harness: Harness, mutants: Mutants, number: int, check: Check) -> str | None:
    """What a check says about mutant `number` in a model of its own; None if it passes."""
    job, design = check.job, mutants.design
    job.stall = check.stall
    harness.reset(**{SELECT: number})
    timings = timings_of(job.memories, TIMINGS[check.stall])
    played = harness.play(job, PATTERNS[check.stall], check.seed, timings)
    if played.failure is not None:
        return played.failure
    compare = getattr(bench_of(design.block), "compare", benches.compare)
    found = compare(job, played.outputs, design.outputs, played.cycles_of)
    if found:
        return str(found[0])
    if check.stall == "none" and played.cycles != job.cycles:
        return f"took {played.cycles} cycles where the formula says {job.cycles}"
    return None


def harness_of(mutants: Mutants, checks: list[Check]) -> Harness:
    """The design with all its faults, compiled for those checks."""
    return Harness(mutants.design)


def surviving(mutants: Mutants, checks: list[Check], harness: Harness) -> list[Mutant]:
    """The mutants that pass every check.

    :raises ToolError: if the design without a fault does not.
    """
    for check in checks:
        said = complaint(harness, mutants, 0, check)
        if said is not None:
            raise ToolError(f"the design fails its own bench without a mutation ({check}): {said}")
    bar = tqdm(mutants.mutants, desc="simulate", unit="mutant", disable=None, leave=False)
    return [
        mutant
        for mutant in bar
        if all(complaint(harness, mutants, mutant.number, check) is None for check in checks)
    ]


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
) -> Report:
    """Make, simulate and judge mutants of one configuration.

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
    watch.lap("simulate")
    harness.close()
    report.killed = [mutant for mutant in mutants.mutants if mutant not in alive]
    design = mutants.design
    prover = Prover(mutants.smt2, design.inputs, design.outputs)
    for mutant in tqdm(alive, desc="prove", unit="mutant", disable=None, leave=False):
        survivor = Survivor(mutant, prover.judge(mutant.number, seconds))
        proved = survivor.verdict.equivalent
        (report.equivalent if proved else report.survivors).append(survivor)
    watch.lap("prove")
    return report


class _Watch:
    def __init__(self, laps: dict[str, float]):
        self._laps, self._last = laps, time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._laps[name] = round(now - self._last, 2)
        self._last = now
