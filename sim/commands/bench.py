"""``python -m sim bench``: simulation speeds, and the gain of emitting equal modules once.

All seconds are CPU seconds, which depend less on other work of the machine.
"""

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from amaranth.back.rtlil import convert
from rich.table import Table

from hw.catalogue import Block, find
from hw.component import ModuleLibrary
from hw.emit.export import module_name, to_rtlil, to_verilog
from hw.kllm.orizuru import OrizuruParameters
from hw.parameters import Parameters
from sim.commands.arguments import count
from sim.commands.terminal import print_table
from sim.core.design import from_file, generate
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Stimulus
from sim.core.tools import ROOT, ToolError, compiled_folder, has_icarus
from sim.drivers.cocotb.runner import SIMULATORS
from sim.drivers.harness.verilated import compile_harness
from sim.drivers.run import Simulation, load_testbench, load_trace, stimuli_of

CONFIGURATIONS = (
    ("stream.queue", "default"),
    ("kllm.orizuru", "small"),
    ("kllm.orizuru", "default"),
)
CYCLES = 10_000  # of a measured run, at least, when nothing stalls
# The fastest of several runs counts: at least REPEATS of them and SECONDS in total, but none starts
# after ENOUGH seconds.
REPEATS, SECONDS, ENOUGH = 3, 0.5, 10
LIMIT = 300

SHARED_BLOCK = find("kllm.orizuru")
SHARED_PARAMETERS = OrizuruParameters(n=2048, k=16)

# How to make RTLIL of a component of that name.
WAYS = {
    # As this project does it: equal modules once, unread names of array elements removed.
    "exported": to_rtlil,
    # Equal modules once, all names.
    "shared": lambda component, name: ModuleLibrary(name).convert(component),
    # As Amaranth does it: a module for each instance, all names.
    "unshared": lambda component, name: convert(component, name=name, emit_src=False),
}


@dataclasses.dataclass
class Speed:
    """Simulation speed of one configuration with one driver.

    start_s
        Seconds of a run of a single transaction: mostly starting the simulator.
    cycles_per_s
        Rate of further cycles: a long run less that time.
    """

    block: str
    preset: str
    driver: str
    stall: str
    cycles: int
    start_s: float
    cycles_per_s: int


@dataclasses.dataclass
class Emission:
    """One way to emit one design, with its size, compile time and speed.

    build_s
        Seconds to compile the harness; None if it took longer than the limit.
    """

    way: str
    modules: int
    verilog_bytes: int
    generate_s: float
    build_s: float | None = None
    cycles_per_s: int | None = None


def cpu_seconds() -> float:
    """CPU time of this process and of those it started and saw end."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def best_time(simulation: Simulation, stimulus: Stimulus, stall: str) -> tuple[float, int]:
    """Seconds of the fastest of several runs of one stimulus, and the cycles simulated in each.

    :raises ToolError: if the outputs are wrong.
    """
    times: list[float] = []
    while sum(times) < SECONDS or (len(times) < REPEATS and sum(times) < ENOUGH):
        started = cpu_seconds()
        [(outcome, found)] = simulation.run([(stimulus, stall)], seed=1)
        times.append(cpu_seconds() - started)
        if outcome.failure or found:
            said = outcome.failure or found[0]
            raise ToolError(f"{simulation.design.module} fails its check, stall {stall}: {said}")
    return min(times), outcome.simulated


def stimulus_of(block: Block, parameters: Parameters, cycles: int) -> Stimulus:
    """The block's stimulus of corner cases and random data, of at least that many cycles."""
    vectors = load_testbench(block).default_vectors(parameters)
    while True:
        _, stimulus = stimuli_of(block, parameters, load_trace(None), vectors, seed=1)
        if stimulus.cycles >= cycles:
            return stimulus
        vectors *= 2


def measure_speeds(
    block: Block, preset: str, simulators: list[str], cycles: int = CYCLES
) -> Iterator[Speed]:
    """The harness under each stall pattern, then cocotb on each simulator without stalls."""
    parameters = block.parameters_class.preset(preset)
    design = generate(block, parameters)
    long = stimulus_of(block, parameters, cycles)
    short = stimuli_of(block, parameters, load_trace(None), 1, seed=1)[1]
    runs = [("harness", "verilator", "harness", stall) for stall in PATTERNS]
    runs += [(f"cocotb, {simulator}", simulator, "cocotb", "none") for simulator in simulators]
    for name, simulator, driver, stall in runs:
        progress(f"{block.name} {preset}: {name}, stall {stall}")
        simulation = Simulation(design, simulator, driver)
        simulation.run([(short, stall)], seed=1)  # compiles, and warms the caches up
        start_s, few = best_time(simulation, short, stall)
        seconds, many = best_time(simulation, long, stall)
        if seconds < 4 * start_s:  # too short to tell from the start
            longer = stimulus_of(block, parameters, 8 * cycles)
            seconds, many = best_time(simulation, longer, stall)
        rate = round((many - few) / max(seconds - start_s, 1e-9))
        yield Speed(block.name, preset, name, stall, many, round(start_s, 4), rate)


def emit(way: str, block: Block, parameters: Parameters) -> str:
    """Verilog of a block, in one of the WAYS; the top module has its usual name."""
    name = module_name(block, parameters)
    return to_verilog(WAYS[way](block.create(parameters), name))


def measure_emission(
    way: str, block: Block, parameters: Parameters, limit: float = LIMIT
) -> Emission:
    """Emit a design one way, compile the harness of it and run that.

    limit
        Wall-clock seconds after which compiling is given up.
    """
    progress(f"{block.name} {parameters.slug()}, {way}: emit")
    started = cpu_seconds()
    verilog = emit(way, block, parameters)
    generate_s = cpu_seconds() - started
    with empty_cache() as folder:
        file = folder / "design.v"
        file.write_text(verilog)
        design = from_file(block, parameters, file)
        emission = Emission(way, len(design.modules), len(verilog), round(generate_s, 1))
        progress(f"{block.name} {parameters.slug()}, {way}: compile")
        seconds = build_seconds(block, parameters, file, limit)
        if seconds is not None:
            emission.build_s = round(seconds, 1)
            progress(f"{block.name} {parameters.slug()}, {way}: run")
            stimulus = stimulus_of(block, parameters, CYCLES)
            simulation = Simulation(design, "verilator", "harness")
            seconds, cycles = best_time(simulation, stimulus, "none")
            emission.cycles_per_s = round(cycles / seconds)
    return emission


@contextlib.contextmanager
def empty_cache() -> Iterator[Path]:
    """A temporary build folder without any design in it, used until the context ends."""
    before, compiled = os.environ.get("SENBAZURU_BUILD"), compiled_folder()
    with tempfile.TemporaryDirectory(prefix="senbazuru_") as name:
        folder = Path(name)
        for runtime in compiled.glob("runtime_*"):  # shared by all builds, so not measured
            shutil.copytree(runtime, folder / "compiled" / runtime.name)
        os.environ["SENBAZURU_BUILD"] = str(folder)
        try:
            yield folder
        finally:
            del os.environ["SENBAZURU_BUILD"]
            if before is not None:
                os.environ["SENBAZURU_BUILD"] = before


def build_seconds(block: Block, parameters: Parameters, file: Path, limit: float) -> float | None:
    """Seconds to compile the harness of a Verilog file into the cache; None if over the limit.

    limit
        In wall-clock seconds.
    """
    sizes = json.dumps(dataclasses.asdict(parameters))
    # In a separate session, so that a compiler of whatever depth can be ended.
    worker = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.bench", block.name, sizes, str(file)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = worker.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.communicate()
    if worker.returncode:
        raise ToolError(f"the harness of {file} could not be compiled")
    return float(said)


def worker() -> None:
    """Compile the harness of a file and print the seconds that took; see `build_seconds`."""
    name, sizes, file = sys.argv[1:]
    block = find(name)
    design = from_file(block, block.parameters_class(**json.loads(sizes)), Path(file))
    started = cpu_seconds()
    compile_harness(design)
    print(cpu_seconds() - started)


def progress(text: str) -> None:
    print(f"{text} …", file=sys.stderr, flush=True)


def print_speeds(speeds: list[Speed]) -> None:
    table = Table(title="Simulated cycles per CPU second (best of several runs)")
    for heading in ("block", "preset", "driver", "stall"):
        table.add_column(heading)
    for heading in ("cycles", "start [CPU s]", "cycles/CPU s"):
        table.add_column(heading, justify="right")
    for s in speeds:
        numbers = (f"{s.cycles:,}", f"{s.start_s:.4f}", f"{s.cycles_per_s:,}")
        table.add_row(s.block, s.preset, s.driver, s.stall, *numbers)
    print_table(table)


def print_emissions(emissions: list[Emission], limit: float) -> None:
    table = Table(
        title=f"{SHARED_BLOCK.name} {SHARED_PARAMETERS.slug()}: "
        f"{SHARED_PARAMETERS.units[0]} equal leaf units"
    )
    table.add_column("modules emitted")
    for heading in ("modules", "Verilog [kB]", "emit [CPU s]", "compile [CPU s]", "cycles/CPU s"):
        table.add_column(heading, justify="right")
    for e in emissions:
        compiled = e.build_s is not None
        table.add_row(
            e.way,
            str(e.modules),
            f"{e.verilog_bytes / 1000:,.0f}",
            f"{e.generate_s:.1f}",
            f"{e.build_s:.1f}" if compiled else f"> {limit:g} (wall)",
            f"{e.cycles_per_s:,}" if compiled else "",
        )
    print_table(table)


def bench_command(arguments) -> int:
    simulators = [s for s in SIMULATORS if s != "icarus" or has_icarus()]
    speeds = [
        speed
        for name, preset in CONFIGURATIONS
        for speed in measure_speeds(find(name), preset, simulators)
    ]
    if not arguments.json:
        print_speeds(speeds)
    emissions = [
        measure_emission(way, SHARED_BLOCK, SHARED_PARAMETERS, arguments.limit) for way in WAYS
    ]
    if arguments.json:
        listed = {
            "driving": [dataclasses.asdict(speed) for speed in speeds],
            "sharing": [dataclasses.asdict(emission) for emission in emissions],
        }
        print(json.dumps(listed, indent=2))
    else:
        print_emissions(emissions, arguments.limit)
    return 0


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "bench",
        description=(
            "Measure simulated cycles per CPU second of each driver, simulator and stall pattern, "
            "and the gain of emitting equal modules once on a design of 128 equal units. Takes "
            "minutes, on a machine that should do little else. Nothing is judged."
        ),
    )
    command.add_argument(
        "--limit",
        type=count,
        default=LIMIT,
        metavar="S",
        help="wall-clock seconds after which compiling is given up (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="print JSON on standard output")
    command.set_defaults(run=bench_command)


if __name__ == "__main__":
    worker()
