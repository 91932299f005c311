"""Run a block's bench: build, play real and random jobs, compare with the golden model."""

import dataclasses
import importlib
import itertools
import time
from pathlib import Path

from golden import trace as traces
from hw.catalogue import Block
from hw.parameters import Parameters
from sim import bench as benches
from sim.bench import Bench, Job, Mismatch, Played
from sim.cocotb_runner import CocotbSimulation
from sim.design import Design, from_file, generate
from sim.harness import Harness
from sim.stall import PATTERNS
from sim.tools import ToolError

DRIVERS = ("cocotb", "harness")


@dataclasses.dataclass
class RunResult:
    """One configuration in one simulator.

    cycles
        Of the runs without stalls, if there are any.
    predicted
        Cycles the block's formula gives for the same jobs; None where stalls make it meaningless.
    failures
        One sentence for each job that a broken stream rule, a hang or a wrong cycle count ended.
    """

    block: str
    preset: str
    simulator: str
    driver: str
    seed: int
    stall: str
    transactions: int = 0
    mismatches: int = 0
    cycles: int = 0
    predicted: int | None = None
    simulated: int = 0
    wall_s: float = 0.0
    first_mismatch: str | None = None
    failures: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.transactions > 0 and not self.mismatches and not self.failures


def bench_of(block: Block) -> Bench:
    return importlib.import_module(f"sim.benches.{block.folder}.{block.module}").bench


def load_trace(path: Path | None) -> traces.Trace:
    """The user's trace, or the one that ships."""
    return traces.load(traces.shipped()[0] if path is None else path)


def jobs_of(
    block: Block, parameters: Parameters, trace: traces.Trace, vectors: int, seed: int
) -> list[Job]:
    """The same number of real transactions and of corner cases and random ones."""
    bench = bench_of(block)
    return [
        bench.job(parameters, trace, vectors, seed),
        bench.job(parameters, None, vectors, seed),
    ]


class Simulation:
    """A design compiled for a simulator and a driver, ready to play jobs."""

    def __init__(
        self, design: Design, simulator: str, driver: str = "cocotb", waves: Path | None = None
    ):
        if driver == "harness" and simulator != "verilator":
            raise ToolError(f"the compiled harness needs Verilator, not {simulator}")
        if driver == "harness" and waves is not None:
            raise ToolError("the compiled harness writes no waves; use the cocotb driver")
        self.design, self.simulator, self.driver = design, simulator, driver
        self._waves = waves
        self._compiled = {}

    def play(self, jobs: list[tuple[Job, str]], seed: int) -> list[tuple[Played, list[Mismatch]]]:
        """Play jobs under stall patterns, each from reset; what came out and what differs."""
        for job, stall in jobs:
            job.stall = stall
        if self.driver == "harness":
            harness = self._compile(Harness)
            played = []
            for job, stall in jobs:
                harness.reset()
                played.append(harness.play(job, PATTERNS[stall], seed))
        else:
            waves = self._waves is not None
            simulation = self._compile(CocotbSimulation, self.simulator, waves=waves)
            played = simulation.play(jobs, seed, self._waves)
        compare = getattr(bench_of(self.design.block), "compare", benches.compare)
        found = []
        for (job, stall), outcome in zip(jobs, played, strict=True):
            job.stall = stall
            # A simulator that broke off leaves nothing to compare, only its reason.
            lost = outcome.failure is not None and outcome.simulated == 0
            outputs = self.design.outputs
            found.append([] if lost else compare(job, outcome.outputs, outputs, outcome.cycles_of))
        return list(zip(played, found, strict=True))

    def _compile(self, kind, *arguments, **options):
        key = (kind, arguments, *options.items())
        if key not in self._compiled:
            self._compiled[key] = kind(self.design, *arguments, **options)
        return self._compiled[key]


def run(
    block: Block,
    preset: str,
    parameters: Parameters,
    *,
    simulator: str = "verilator",
    driver: str = "cocotb",
    trace: Path | None = None,
    vectors: int | None = None,
    seed: int = 1,
    stall: str | None = None,
    verilog: Path | None = None,
    waves: Path | None = None,
) -> RunResult:
    """Play a block's jobs and count what differs.

    stall
        One stall pattern, or None for all of them.
    :raises ParameterError, TraceError, ToolError: with one sentence for the user.
    """
    data = load_trace(trace)
    design = from_file(block, parameters, verilog) if verilog else generate(block, parameters)
    vectors = vectors or bench_of(block).default_vectors(parameters)
    jobs = jobs_of(block, parameters, data, vectors, seed)
    simulation = Simulation(design, simulator, driver, waves)
    result = RunResult(block.name, preset, simulator, driver, seed, stall or "all")
    result.notes = list(jobs[0].notes)
    started = time.monotonic()
    plays = list(itertools.product(jobs, [stall] if stall else PATTERNS))
    for (job, pattern), outcome in zip(plays, simulation.play(plays, seed), strict=True):
        add(result, job, pattern, *outcome)
    result.wall_s = round(time.monotonic() - started, 3)
    return result


def add(result: RunResult, job: Job, stall: str, played: Played, found: list[Mismatch]) -> None:
    """Count one played job into a result."""
    result.transactions += job.transactions
    result.mismatches += len(found)
    if stall in ("none", result.stall):
        result.cycles += played.cycles
    result.simulated += played.simulated
    if stall == "none":
        result.predicted = (result.predicted or 0) + job.cycles
    where = f"stall {stall}: " if result.stall == "all" else ""
    if found and result.first_mismatch is None:
        result.first_mismatch = f"{where}{found[0]}"
    if played.failure is not None:
        result.failures.append(f"{where}{played.failure}")
    elif not found and stall == "none" and played.cycles != job.cycles:
        took = f"took {played.cycles} cycles where the formula says {job.cycles}"
        result.failures.append(f"{where}{took}")
