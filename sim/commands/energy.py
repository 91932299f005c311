"""``python -m sim energy``: what a block's logic costs, by its testbench on its mapped netlist."""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from sim.commands.arguments import add_configuration, configuration, count, vectors
from sim.commands.mapping import (
    MODE,
    PIECES,
    add_core,
    add_mapping,
    capacitance,
    core_of,
    library_of,
    mapped,
)
from sim.synth.placement import Core

RUNS = 4
CLOCK_MHZ = 1000


def measure(
    name: str,
    parameters: Any,
    many: int | None,
    seeds: range,
    library: str,
    sha256: str,
    mode: str = MODE,
    pieces: int = PIECES,
    wires: tuple[Core, float] | None = None,
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
    pieces
        Gates from which on a sub-module is mapped by itself.
    wires
        The core to place cells in, and wires' capacitance in fF per µm; None for no wires.
    :raises ToolError: if an output of the netlist differs from the model's, or with wires as
        :func:`sim.synth.placement.place`.
    """
    from hw.catalogue import find
    from sim.checks.gate_run import GateRun
    from sim.core.design import generate
    from sim.drivers.run import load_testbench, load_trace
    from sim.synth import liberty, power

    block, cells = find(name), liberty.read(Path(library))
    design = mapped(name, parameters, library, sha256, mode, pieces)
    netlist = design.netlist
    if wires is not None:
        from sim.synth.placement import place
        from sim.synth.wires import Wires

        core, ff_per_um = wires
        netlist = Wires.of(place(netlist, cells, core)).netlist(ff_per_um)
    testbench, trace = load_testbench(block), load_trace(None)
    many = many or testbench.default_vectors(parameters)
    stimuli = [testbench.stimulus(parameters, trace, many, seed) for seed in seeds]
    costs = power.energies(netlist, cells, power.read(cells.path))
    found = GateRun(generate(block, parameters), netlist, cells, costs).run(stimuli)

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
        "wires_ff_per_um": wires and wires[1],
        "vectors": many,
        "runs": len(seeds),
        "cells": len(netlist.cells),
        "area_um2": round(design.area, 1),
        "flipflops": design.flipflops,
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
    wires = None if arguments.wires is None else (core_of(arguments), arguments.wires)
    library = library_of(arguments.liberty)
    many, mode, pieces = arguments.vectors, arguments.mode, arguments.pieces
    row = measure(block.name, parameters, many, seeds, *library, mode, pieces, wires)
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
    wires = "Without wires and clock tree"
    if (ff_per_um := row["wires_ff_per_um"]) is not None:
        wires = f"With wires of {ff_per_um:g} fF/um, a tree without buffers for the clock"
    print(f"{wires}; memories as flip-flops.")


def runs(text: str) -> int:
    """A number of runs side by side, as an argparse type."""
    from sim.synth.activity import RUNS as MOST

    value = count(text)
    if value > MOST:
        raise argparse.ArgumentTypeError(f"must be at most {MOST}, not {text}")
    return value


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command: argparse.ArgumentParser = commands.add_parser(
        "energy",
        description=(
            "Map a block to a cell library, run its testbench on the netlist, compare every output "
            "with the golden model, and say what toggles, glitches, clock pins and leakage cost. "
            "Nothing stalls; a memory of the block answers in the next cycle. Gates have inertial "
            "delays. --wires places the cells and counts their wires."
        ),
    )
    add_configuration(command, preset="first")
    add_mapping(command)
    command.add_argument(
        "--wires",
        type=capacitance,
        metavar="FF_PER_UM",
        help="place the cells, and count wires of that capacitance, fF per um (default: no wires)",
    )
    add_core(command)
    command.add_argument(
        "--vectors",
        type=vectors,
        metavar="N",
        help="transactions of real data (default: the testbench's)",
    )
    command.add_argument(
        "--runs",
        type=runs,
        default=RUNS,
        metavar="N",
        help="runs side by side, of different seeds, up to 64 (default: %(default)s)",
    )
    command.set_defaults(run=energy_command)
