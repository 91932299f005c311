"""``python -m hw fpga``: a block with its serial link as a board's bitstream."""

import argparse
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from golden.files import check_writable
from hw.catalogue import Block, blocks, find
from hw.component import ON_FPGA
from hw.emit.arguments import add_set
from hw.emit.export import module_name
from hw.parameters import ParameterError
from sim.commands.stages import Stages
from sim.commands.terminal import print_table

if TYPE_CHECKING:  # other commands of `python -m hw` start without these
    from hw.boards.platforms import FpgaBoard, Resources
    from sim.synth.fpga import Built


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "fpga",
        add_help=False,
        help="a bitstream of a block behind a serial link, for a board",
        description=(
            "Build a block with a serial link for a board: netlist, place and route, bitstream, "
            "and what it uses. `python -m sim run BLOCK --board PORT` then runs the block's "
            "testbench on it. Exits 1 if the design does not fit or misses the board's clock."
        ),
    )
    command.add_argument(
        "block", nargs="?", help="block name as in `python -m hw list`, or all: those that fit"
    )
    command.add_argument(
        "-h", "--help", action=HelpWithBoards, nargs=0, help="show this help message and exit"
    )
    command.add_argument(
        "--board",
        default="ulx3s_85f",
        metavar="B",
        help="one of those below, MODULE:CLASS for a platform class of your own, or list "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--clock",
        type=float,
        metavar="MHZ",
        help="of the design, made by the device's PLL (default: the board's oscillator)",
    )
    command.add_argument("--preset", default="first", help="(default: %(default)s, the smallest)")
    add_set(command)
    command.add_argument(
        "--baud", type=int, metavar="N", help="of the serial line (default: the board's)"
    )
    command.add_argument(
        "--memory",
        choices=("block", "sdram"),
        default="block",
        help="what holds the rows of memories: the FPGA's block memory, or the board's SDRAM "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--memory-rows",
        type=int,
        default=-1,
        metavar="N",
        help="rows of each memory on the board, 0: the memories' beats go over the cable "
        "(default: as many as addresses reach; 1024 at most in block memory)",
    )
    command.add_argument(
        "--multiplier",
        choices=ON_FPGA,
        default=ON_FPGA[0],
        help="the FPGA's multipliers for products, or, where many of them are left, for shifts "
        "too (default: %(default)s)",
    )
    command.add_argument(
        "-o", "--output", type=Path, default=Path("build/fpga"), metavar="DIR",
        help="folder with a folder for each design (default: %(default)s)",
    )  # fmt: skip
    command.add_argument(
        "--seed", type=int, default=1, metavar="N",
        help="of placement; another may meet a clock that is just missed (default: %(default)s)",
    )  # fmt: skip
    command.add_argument("--program", action="store_true", help="load it into the board")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run_command)


class HelpWithBoards(argparse.Action):
    """``--help``, with the names of the boards, which take a moment to find."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        from hw.boards.platforms import boards

        parser.epilog = f"Boards: {', '.join(boards())}."
        parser.print_help()
        parser.exit()


def run_command(arguments: argparse.Namespace) -> int:
    """Run the command.

    :raises ParameterError, ToolError: with one sentence.
    """
    from hw.boards.platforms import find_board
    from hw.boards.uart import divisor_of
    from sim.synth.fpga import DoesNotFit

    if arguments.board == "list":
        _list_boards(arguments.json)
        return 0
    board = find_board(arguments.board).clocked(arguments.clock)
    divisor = divisor_of(board.clock_mhz, arguments.baud or board.baud)
    if arguments.block is None:
        raise ParameterError("a block is needed, or --board list")
    if arguments.block == "all":
        if arguments.program or arguments.set:
            raise ParameterError("--program and --set need one block, not 'all'")
        chosen = [block for block in blocks() if not block.synthesizable_as]
    else:
        chosen = [find(arguments.block)]
    check_writable(arguments.output)
    built = []
    with Stages(quiet=arguments.json) as step:
        for block in chosen:
            try:
                built.append(_build(block, board, divisor, arguments, step))
            except DoesNotFit as error:
                if arguments.block != "all":
                    raise
                step.print(str(error))
    if arguments.json:
        print(json.dumps([dataclasses.asdict(one) for one in built], indent=2))
    else:
        _print(built, board, arguments)
    return 0 if built and all(one.meets_timing for one in built) else 1


def _build(
    block: Block, board: "FpgaBoard", divisor: int, arguments: argparse.Namespace, step: Stages
) -> "Built":
    from hw.boards.design import BoardParameters, board_design
    from hw.boards.platforms import sdram_period
    from sim.core.result import configuration_name, settings_of
    from sim.synth import fpga

    preset = block.parameters_class.preset_name(arguments.preset)
    parameters = block.parameters_class.preset(preset).replace_from_text(arguments.set)
    link = BoardParameters(
        divisor=divisor,
        memory_rows=arguments.memory_rows,
        multiplier=arguments.multiplier,
        memory=arguments.memory,
        period=sdram_period(board) if arguments.memory == "sdram" else 0,
    )

    step(f"{block.name}: elaborating")
    design = board_design(block, parameters, link)
    target = "" if link.multiplier == "dsp" else link.multiplier
    module = module_name(block, parameters, target or "columns")
    folder = arguments.output / f"{module}_{re.sub(r'[^a-zA-Z0-9_]', '_', board.name)}"
    name = configuration_name(preset, settings_of(block, preset, parameters))
    name += f", {target}" if target else ""
    name += ", sdram" if link.memory == "sdram" else ""
    name += f", seed {arguments.seed}" if arguments.seed != 1 else ""
    built = fpga.build(design, name, board, folder, step, arguments.seed)
    if arguments.program:
        step(f"{block.name}: programming")
        fpga.program_board(board, folder)
    return built


def _print(built: "list[Built]", board: "FpgaBoard", arguments: argparse.Namespace) -> None:
    """A table, a sentence for each design that misses the clock, and how the host runs it."""
    from sim.synth import report

    print_table(report.fpga_table(built, board))
    for one in built:
        print(one.bitstream)
        if not one.meets_timing:
            slower = int(one.fmax_mhz)
            print(
                f"{one.block} works at {one.fmax_mhz} MHz, {board.name} has {one.clock_mhz:g} MHz: "
                f"another --seed may meet it, or --clock {slower} by the PLL",
                file=sys.stderr,
            )
    if len(built) == 1:
        print(f"run it by: {_host_command(built[0], arguments)}")


def _host_command(built: "Built", arguments: argparse.Namespace) -> str:
    """The command that runs the testbench on the board, with the options that must agree."""
    words = ["python -m sim run", built.block, "--preset", arguments.preset]
    words += [word for setting in arguments.set for word in ("--set", setting)]
    words += ["--board PORT", f"--clock {built.clock_mhz:g}"]
    for name in ("baud", "memory", "memory_rows", "multiplier"):
        value = getattr(arguments, name)
        if value not in (None, -1, ON_FPGA[0], "block"):
            words.append(f"--{name.replace('_', '-')} {value}")
    return " ".join(words)


def _list_boards(as_json: bool) -> None:
    from hw.boards.platforms import boards

    if as_json:
        fields = ("name", "device", "package", "clock_mhz", "baud")
        print(
            json.dumps(
                [
                    {name: getattr(board, name) for name in fields}
                    | {"resources": dataclasses.asdict(board.resources)}
                    for board in boards().values()
                ],
                indent=2,
            )
        )
        return
    for board in boards().values():
        print(
            f"{board.name:21} {board.device:12} {_words(board.resources)}, {board.clock_mhz:g} MHz"
        )


def _words(resources: "Resources") -> str:
    return f"{resources.lut4} LUT4, {resources.dsp} multipliers, {resources.bram} block memories"
