"""The result of a block's testbench: counts, failures, and the command that repeats one."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from hw.catalogue import Block
from hw.parameters import Parameters
from sim.core.memory import MemoryTiming
from sim.core.stimulus import Mismatch, Outcome, Stimulus


@dataclasses.dataclass
class RunResult:
    """The result of one configuration in one simulator.

    configuration
        The preset's name and every parameter that differs from it.
    trace
        File of the real data.
    vectors
        Transactions of each kind, real and random, under each stall pattern.
    memory
        Stall pattern to the timing of the memories under it; None for a block without memories.
    dram
        Stall pattern to the figures of each memory by name, where memories are DRAMs
        (:meth:`sim.core.dram.timing.DramUse.as_json`), of all its runs; None elsewhere.
    cycles
        Cycles of the runs without stalls, if there are any.
    predicted
        Cycles the block's formula gives for the same stimuli, the most where it gives a band; None
        where stalls or a slow memory make it meaningless.
    fewest
        The band's other end; `predicted` where the formula is exact.
    failures
        One sentence for each stimulus that broke a stream rule, hung or took a wrong number of
        cycles.
    reproduce
        The command that repeats the first failure alone; None if nothing failed.
    """

    block: str
    preset: str
    simulator: str
    driver: str
    seed: int
    stall: str
    configuration: str = ""
    parameters: dict = dataclasses.field(default_factory=dict)
    trace: str = ""
    vectors: int = 0
    memory: dict[str, str] | None = None
    dram: dict[str, dict[str, dict]] | None = None
    transactions: int = 0
    mismatches: int = 0
    cycles: int = 0
    predicted: int | None = None
    fewest: int | None = None
    simulated: int = 0
    wall_s: float = 0.0
    first_mismatch: str | None = None
    failures: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    reproduce: str | None = None

    @property
    def passed(self) -> bool:
        return self.transactions > 0 and not self.mismatches and not self.failures


def formula(fewest: int | None, predicted: int | None) -> str:
    """Cycles of a formula as "N", as "N to M" where it gives a band, or nothing without one."""
    if predicted is None:
        return ""
    return f"{predicted}" if fewest in (None, predicted) else f"{fewest} to {predicted}"


def settings_of(block: Block, preset: str, parameters: Parameters) -> list[str]:
    """Every parameter that differs from the preset's, as ``name=value``."""
    usual = dataclasses.asdict(block.parameters_class.preset(preset))
    values = dataclasses.asdict(parameters).items()
    return [f"{name}={value}" for name, value in values if value != usual[name]]


def configuration_name(preset: str, settings: list[str]) -> str:
    """``small``, or ``small with k=2`` where parameters differ from the preset's."""
    return " ".join([preset, *(["with"] if settings else []), *settings])


def command_line(
    result: RunResult,
    settings: list[str],
    stall: str,
    trace: Path | None,
    memory: MemoryTiming | None,
    verilog: Path | None,
    trust: bool,
) -> str:
    """The command that repeats a result under one stall pattern."""
    words = ["python", "-m", "sim", "run", result.block, "--preset", result.preset]
    for setting in settings:
        words += ["--set", setting]
    options = {
        "--simulator": result.simulator,
        "--driver": result.driver,
        "--vectors": result.vectors,
        "--seed": result.seed,
        "--stall": stall,
        "--trace": trace,
        "--memory": memory,
        "--verilog": verilog,
    }
    for name, value in options.items():
        if value is not None:
            words += [name, str(value)]
    return shlex.join([*words, *(["--trust"] if trust else [])])


def dram_figures(runs: list[tuple[str, Outcome]]) -> dict[str, dict[str, dict]] | None:
    """Figures of each DRAM under each stall pattern; None without a DRAM."""
    found: dict[str, dict[str, Any]] = {}
    for stall, outcome in runs:
        for name, use in outcome.memories.items():
            if use.dram is not None:
                memories = found.setdefault(stall, {})
                memories[name] = memories[name] + use.dram if name in memories else use.dram
    figures = {
        stall: {name: use.as_json() for name, use in memories.items()}
        for stall, memories in found.items()
    }
    return figures or None


def add(
    result: RunResult,
    stimulus: Stimulus,
    stall: str,
    outcome: Outcome,
    mismatches: list[Mismatch],
    formula: bool = True,
) -> None:
    """Add the outcome of one stimulus to a result.

    formula
        Whether the block's cycle formula holds where nothing stalls, as it does unless a memory is
        slow.
    """
    counted = formula and stall == "none" and outcome.failure is None and not mismatches
    result.transactions += stimulus.transactions
    result.mismatches += len(mismatches)
    if stall in ("none", result.stall):
        result.cycles += outcome.cycles
    result.simulated += outcome.simulated
    if counted:
        fewest, most = stimulus.cycle_range(outcome)
        result.fewest = (result.fewest or 0) + fewest
        result.predicted = (result.predicted or 0) + most
    where = f"stall {stall}: " if result.stall == "all" else ""
    if mismatches and result.first_mismatch is None:
        result.first_mismatch = f"{where}{mismatches[0]}"
    if outcome.failure is not None:
        result.failures.append(f"{where}{outcome.failure}")
    elif counted and (wrong := stimulus.wrong_cycles(outcome)) is not None:
        result.failures.append(f"{where}{wrong}")
