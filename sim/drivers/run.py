"""Run a block's testbench: compile, simulate real and random stimuli, compare the outputs."""

import dataclasses
import importlib
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np

from golden import trace as traces
from hw import HOME
from hw.catalogue import Block
from hw.parameters import ParameterError, Parameters
from sim.core import processes
from sim.core.design import Design, from_file, generate
from sim.core.memory import TIMINGS, MemoryTiming, described, timings_of
from sim.core.result import (
    RunResult,
    add,
    command_line,
    configuration_name,
    dram_figures,
    settings_of,
)
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Mismatch, Outcome, Stimulus, Testbench, compare, compare_memories
from sim.core.tools import TIMEOUT_S
from sim.drivers.cocotb.runner import CocotbSimulation
from sim.drivers.harness.runner import Harness
from sim.drivers.harness.verilated import ENORMOUS, compile_engine, compile_harness


def load_testbench(block: Block) -> Testbench:
    name = f"{HOME}sim.testbenches.{block.folder}.{block.module}"
    return importlib.import_module(name).testbench


def load_trace(path: Path | None) -> traces.Trace:
    """The user's trace, or the one that ships."""
    return traces.load(traces.shipped()[0] if path is None else path)


def stimuli_of(
    block: Block, parameters: Parameters, trace: traces.Trace, vectors: int, seed: int
) -> list[Stimulus]:
    """Two stimuli of `vectors` transactions: real data, and corner cases with random data."""
    testbench = load_testbench(block)
    return [
        testbench.stimulus(parameters, trace, vectors, seed),
        testbench.stimulus(parameters, None, vectors, seed),
    ]


class Simulation:
    """A design compiled for a simulator and a driver, ready to run stimuli.

    timeout
        Wall-clock seconds without a simulated cycle after which cocotb's simulator is ended.
    foreign
        Whether the Verilog is the user's, so that it may crash or never end: the harness then runs
        in a fork of this process, for `timeout` and a second for each 100 cycles of a stimulus.
    """

    def __init__(
        self,
        design: Design,
        simulator: str,
        driver: str = "cocotb",
        waves: Path | None = None,
        *,
        timeout: float = TIMEOUT_S,
        foreign: bool = False,
    ):
        if driver == "harness" and simulator != "verilator":
            raise ParameterError(f"the compiled harness needs Verilator, not {simulator}")
        if driver == "harness" and waves is not None:
            raise ParameterError("the compiled harness writes no waves; use the cocotb driver")
        if driver == "cocotb" and design.instances >= ENORMOUS:
            raise ParameterError(
                f"{design.module} has {design.instances} module instances, too many for {simulator}"
                " by cocotb; use --driver harness"
            )
        self.design, self.simulator, self.driver = design, simulator, driver
        self._waves, self._timeout, self._foreign = waves, timeout, foreign
        self._compiled: dict[tuple, Any] = {}
        self._stuck = False

    def run(
        self, stimuli: list[tuple[Stimulus, str]], seed: int, memory: MemoryTiming | None = None
    ) -> list[tuple[Outcome, list[Mismatch]]]:
        """Run (stimulus, stall pattern) pairs, each from reset; an outcome and its mismatches each.

        memory
            Timing of all memories; by default each stall pattern's.
        """
        timings = []
        for stimulus, stall in stimuli:
            stimulus.stall = stall
            timings.append(timings_of(stimulus.memories, memory_timing(stall, seed, memory)))
        if self.driver == "harness":
            outcomes = [
                self._run_in_harness(stimulus, stall, seed, timing)
                for (stimulus, stall), timing in zip(stimuli, timings, strict=True)
            ]
        else:
            waves = self._waves is not None
            simulation = self._compile(
                CocotbSimulation, self.simulator, waves=waves, timeout=self._timeout
            )
            outcomes = simulation.run(stimuli, seed, self._waves, timings)
        check = getattr(load_testbench(self.design.block), "compare", compare)
        results = []
        for (stimulus, stall), timing, outcome in zip(stimuli, timings, outcomes, strict=True):
            stimulus.stall, stimulus.timings = stall, timing
            mismatches: list[Mismatch] = []
            # A simulator that did not run left nothing to compare.
            if outcome.failure is None or outcome.simulated:
                layouts = self.design.outputs
                mismatches = check(stimulus, outcome.outputs, layouts, outcome.cycles_of)
            if outcome.failure is None and not mismatches:
                mismatches = compare_memories(stimulus, outcome)
            results.append((outcome, mismatches))
        return results

    def _run_in_harness(self, stimulus: Stimulus, stall: str, seed: int, timing) -> Outcome:
        if not self._foreign:
            harness = self._compile(Harness)
            harness.reset()
            return harness.run(stimulus, PATTERNS[stall], seed, timing)

        def run() -> Outcome:
            # Loaded in the fork alone: a model made here has threads, which the fork would lack.
            harness = Harness(self.design)
            return harness.run(stimulus, PATTERNS[stall], seed, timing)

        compile_engine(), compile_harness(self.design)
        failure = "not run, as the harness did not end before"
        if not self._stuck:
            try:
                return processes.call_in_fork(run, self._timeout + stimulus.cycles / 100)
            except processes.Stuck as stuck:
                self._stuck, failure = True, f"the harness: {stuck}"
        outputs = {name: beats[:0] for name, beats in stimulus.outputs.items()}
        return Outcome(outputs, {name: np.zeros(0, np.int64) for name in outputs}, 0, 0, failure)

    def _compile(self, kind, *arguments, **options):
        key = (kind, arguments, *options.items())
        if key not in self._compiled:
            self._compiled[key] = kind(self.design, *arguments, **options)
        return self._compiled[key]


def memory_timing(stall: str, seed: int, timing: MemoryTiming | None = None) -> MemoryTiming:
    """The timing of memories under a stall pattern, unless the run names one."""
    return timing or dataclasses.replace(TIMINGS[stall], seed=seed)


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
    memory: MemoryTiming | None = None,
    verilog: Path | None = None,
    trust: bool = False,
    waves: Path | None = None,
    timeout: float = TIMEOUT_S,
) -> RunResult:
    """Run a block's testbench and count mismatches.

    stall
        One stall pattern, or None for all of them.
    memory
        Timing of the block's memories; by default each stall pattern has its own.
    trust
        Accept a `verilog` file that can run commands or write files.
    timeout
        Wall-clock seconds without a simulated cycle after which a run is given up.
    :raises ParameterError, TraceError, ToolError: with one sentence for the user.
    """
    data = load_trace(trace)
    design = (
        from_file(block, parameters, verilog, trust=trust)
        if verilog
        else generate(block, parameters)
    )
    vectors = vectors or load_testbench(block).default_vectors(parameters)
    stimuli = stimuli_of(block, parameters, data, vectors, seed)
    memories = {name: m for stimulus in stimuli for name, m in stimulus.memories.items()}
    if memory is not None:
        require_memory(block, memories, memory)
    foreign = verilog is not None
    simulation = Simulation(design, simulator, driver, waves, timeout=timeout, foreign=foreign)
    patterns = [stall] if stall else list(PATTERNS)
    settings = settings_of(block, preset, parameters)
    result = RunResult(
        block.name,
        preset,
        simulator,
        driver,
        seed,
        stall or "all",
        configuration=configuration_name(preset, settings),
        parameters=dataclasses.asdict(parameters),
        trace=str(trace or traces.shipped()[0].name),
        vectors=vectors,
        notes=list(stimuli[0].notes),
    )
    if memories:
        result.memory = {
            name: described(timings_of(memories, memory_timing(name, seed, memory)))
            for name in patterns
        }
    started = time.monotonic()
    runs = list(itertools.product(stimuli, patterns))
    formula = memory is None or memory.is_fastest
    outcomes = simulation.run(runs, seed, memory)
    for (stimulus, pattern), (outcome, mismatches) in zip(runs, outcomes, strict=True):
        add(result, stimulus, pattern, outcome, mismatches, formula=formula)
        if result.reproduce is None and (result.mismatches or result.failures):
            result.reproduce = command_line(
                result, settings, pattern, trace, memory, verilog, trust
            )
    pairs = zip(runs, outcomes, strict=True)
    result.dram = dram_figures([(pattern, outcome) for (_, pattern), (outcome, _) in pairs])
    result.wall_s = round(time.monotonic() - started, 3)
    return result


def require_memory(block: Block, memories: dict, timing: MemoryTiming) -> None:
    """Check that a block can use a memory timing.

    :raises ParameterError: if the block has no memory, or none that may answer out of order.
    """
    if not memories:
        raise ParameterError(f"{block.name} has no memory, so it takes no --memory")
    untagged = all(memory.tag is None for memory in memories.values())
    if timing.is_drawn and timing.reorder and untagged:
        raise ParameterError(f"{block.name}'s memory has no tags, so its order must be in, not any")
