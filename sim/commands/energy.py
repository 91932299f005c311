"""``python -m sim energy``: what a block's logic costs, by its testbench on its mapped netlist."""

import argparse
import dataclasses
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from sim.commands.arguments import add_configuration, configuration, count, vectors
from sim.synth.flow import MODES

RUNS = 4
PIECES = 1000
"""Gates from which on a sub-module is mapped by itself."""
MODE = "speed"
"""Without buffers, as for the smallest area, a net of large fan-out takes so long that glitches say
nothing about a design at its clock."""
CLOCK_MHZ = 1000


def measure(
    name: str,
    parameters: Any,
    many: int | None,
    seeds: range,
    library: str,
    sha256: str,
    mode: str = MODE,
) -> dict[str, Any]:
    """Energies of a block, as the command's JSON has them.

    many
        Transactions of each run; None for as many as the testbench has.
    seeds
        A run's for each, RUNS of :mod:`sim.synth.activity` at most.
    sha256
        Hash of the library's content, for the key of a kept result.
    mode
        One of :data:`sim.synth.flow.MODES`.
    :raises ToolError: if an output of the netlist differs from the model's.
    """
    from hw.catalogue import find
    from hw.emit.export import to_rtlil
    from sim.checks.gate_run import GateRun
    from sim.core.design import generate
    from sim.drivers.run import load_testbench, load_trace
    from sim.synth import liberty, power
    from sim.synth.flow import Mapper

    block, cells = find(name), liberty.read(Path(library))
    with tempfile.TemporaryDirectory(prefix="energy_") as scratch:
        rtlil = to_rtlil(block.create(parameters), "unit")
        mapped = Mapper(rtlil, "unit", cells, Path(scratch), PIECES).map(mode)
    testbench, trace = load_testbench(block), load_trace(None)
    many = many or testbench.default_vectors(parameters)
    stimuli = [testbench.stimulus(parameters, trace, many, seed) for seed in seeds]
    costs = power.energies(mapped.netlist, cells, power.read(cells.path))
    found = GateRun(generate(block, parameters), mapped.netlist, cells, costs).run(stimuli)

    def mean(beats) -> float:
        return sum(len(beats(stimulus)) for stimulus in stimuli) / len(stimuli)

    streams = {name: mean(lambda s, name=name: s.inputs[name]) for name in stimuli[0].inputs}
    results = {name: mean(lambda s, name=name: s.outputs[name]) for name in stimuli[0].outputs}
    for memory in stimuli[0].memories.values():
        streams[memory.response] = found.answers[memory.response]
    return {
        "block": name,
        "parameters": dataclasses.asdict(parameters),
        "library": cells.name,
        "mode": mode,
        "vectors": many,
        "runs": len(seeds),
        "cells": len(mapped.netlist.cells),
        "area_um2": round(mapped.area, 1),
        "flipflops": mapped.flipflops,
        "cycles": found.cycles,
        "beats": streams,
        "results": results,
        "settled_fj": round(found.settled),
        "glitches_fj": round(found.glitches),
        "clock_fj": round(found.clock, 1),
        "leakage_uw": round(found.leakage, 2),
    }


def energy_command(arguments) -> int:
    from hw.parameters import ParameterError
    from sim.core.design import with_streams

    block, parameters = configuration(arguments)
    if block.synthesizable_as:
        raise ParameterError(
            f"{block.name} is for simulation only, measure {block.synthesizable_as} instead"
        )
    component = block.create(parameters)
    if with_streams(component, "unit") is not component:
        raise ParameterError(f"{block.name} has no streams; docs/arithmetic.md has such units")
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    library = library_of(arguments.liberty)
    many, mode = arguments.vectors, arguments.mode
    row = measure(block.name, parameters, many, seeds, *library, mode)
    print(json.dumps(row, indent=1)) if arguments.json else describe(row)
    return 0


def describe(row: dict[str, Any]) -> None:
    """What was measured, for people to read."""
    cycles = row["cycles"]
    leakage = row["leakage_uw"] * 1e3 / CLOCK_MHZ
    beats = ", ".join(f"{number:g} of {name}" for name, number in row["beats"].items())
    print(f"{row['block']}, {row['library']}, mapped for {row['mode']}: {row['cells']:,} cells,")
    print(f"{row['area_um2']:,.0f} um2, {row['flipflops']:,} flip-flops.")
    print("Every output of the netlist equals the model's.")
    print(f"{row['runs']} runs of {row['vectors']} transactions: {cycles} cycles; beats: {beats}.")
    print(f"pJ a cycle: {row['settled_fj'] / cycles / 1e3:.3f} toggles between settled values,")
    print(f"  {row['glitches_fj'] / cycles / 1e3:.3f} more with glitches,")
    print(f"  {row['clock_fj'] / 1e3:.3f} clock pins, {leakage / 1e3:.3f} leakage at 1 GHz.")
    print("Without wires and clock tree; memories as flip-flops.")


@functools.cache
def library_of(name: str) -> tuple[str, str]:
    """Path and hash of a cell library."""
    from golden.files import file_sha256
    from sim.synth import libraries

    path = libraries.find(name).path
    return str(path), file_sha256(path)


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command: argparse.ArgumentParser = commands.add_parser(
        "energy",
        description=(
            "Map a block to a cell library, run its testbench on the netlist, compare every output "
            "with the golden model, and say what toggles, glitches, clock pins and leakage cost. "
            "Nothing stalls; a memory of the block answers in the next cycle. Gates have inertial "
            "delays; there are no wires."
        ),
    )
    add_configuration(command, preset="first")
    command.add_argument(
        "--liberty",
        default="nangate45",
        metavar="FILE.lib",
        help="cell library with power; nangate45 is fetched once (default: %(default)s)",
    )
    command.add_argument(
        "--mode",
        choices=MODES,
        default=MODE,
        help="mapping, as of `sim synth` (default: %(default)s)",
    )
    command.add_argument(
        "--vectors",
        type=vectors,
        metavar="N",
        help="transactions of real data (default: the testbench's)",
    )
    command.add_argument(
        "--runs",
        type=count,
        default=RUNS,
        choices=range(1, 65),
        metavar="N",
        help="runs side by side, of different seeds, up to 64 (default: %(default)s)",
    )
    command.set_defaults(run=energy_command)
