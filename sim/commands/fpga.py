"""``python -m hw fpga``: a block with its serial link as a board's bitstream."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from golden.files import check_writable
from hw.arguments import add_set
from hw.catalogue import Block, blocks, find
from hw.component import ON_FPGA
from hw.export import module_name
from hw.parameters import ParameterError, require_one_of
from sim.commands.terminal import print_table

if TYPE_CHECKING:  # other commands of `python -m hw` start without these
    from hw.boards.platforms import FpgaBoard, Resources
    from sim.synth.fpga import Built


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "fpga",
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
        "--board", default="ulx3s_85f", metavar="B", help="or list (default: %(default)s)"
    )
    command.add_argument("--preset", default="first", help="(default: %(default)s, the smallest)")
    add_set(command)
    command.add_argument(
        "--baud", type=int, metavar="N", help="of the serial line (default: the board's)"
    )
    command.add_argument(
        "--memory-rows",
        type=int,
        default=-1,
        metavar="N",
        help="rows of each memory in block memory, 0: the memories' beats go over the cable "
        "(default: as many as addresses reach, 1024 at most)",
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


def run_command(arguments: argparse.Namespace) -> int:
    """Run the command.

    :raises ParameterError, ToolError: with one sentence.
    """
    from hw.boards.platforms import BOARDS
    from sim.synth.fpga import DoesNotFit

    if arguments.board == "list":
        _list_boards(arguments.json)
        return 0
    require_one_of("board", arguments.board, [*BOARDS, "list"])
    if arguments.block is None:
        raise ParameterError("a block is needed, or --board list")
    board = BOARDS[arguments.board]
    if arguments.block == "all":
        if arguments.program or arguments.set:
            raise ParameterError("--program and --set need one block, not 'all'")
        chosen = [block for block in blocks() if not block.synthesizable_as]
    else:
        chosen = [find(arguments.block)]
    check_writable(arguments.output)
    built = []
    for block in chosen:
        try:
            built.append(_build(block, board, arguments))
        except DoesNotFit as error:
            if arguments.block != "all":
                raise
            print(error, file=sys.stderr)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(one) for one in built], indent=2))
    else:
        _print(built, board)
    return 0 if built and all(one.meets_timing for one in built) else 1


def _build(block: Block, board: "FpgaBoard", arguments) -> "Built":
    from hw.boards.design import BoardParameters, board_design
    from sim.core.result import configuration_name, settings_of
    from sim.synth import fpga

    preset = block.parameters_class.preset_name(arguments.preset)
    parameters = block.parameters_class.preset(preset).replace_from_text(arguments.set)
    divisor = round(board.clock_mhz * 1e6 / (arguments.baud or board.baud))
    link = BoardParameters(
        divisor=divisor, memory_rows=arguments.memory_rows, multiplier=arguments.multiplier
    )

    def step(text: str) -> None:
        if not arguments.json:
            print(f"{text} …", file=sys.stderr)

    step(f"{block.name}: elaborating")
    design = board_design(block, parameters, link)
    target = "" if link.multiplier == "dsp" else link.multiplier
    module = module_name(block, parameters, target or "columns")
    folder = arguments.output / f"{module}_{board.name}"
    name = configuration_name(preset, settings_of(block, preset, parameters))
    name += f", {target}" if target else ""
    name += f", seed {arguments.seed}" if arguments.seed != 1 else ""
    built = fpga.build(design, name, board, folder, step, arguments.seed)
    if arguments.program:
        step(f"{block.name}: programming")
        fpga.program_board(board, folder)
    return built


def _print(built: "list[Built]", board: "FpgaBoard") -> None:
    """A table, and a sentence for each design that misses the clock."""
    from sim.synth import report

    print_table(report.fpga_table(built, board))
    for one in built:
        print(one.bitstream)
        if not one.meets_timing:
            print(
                f"{one.block} works at {one.fmax_mhz} MHz, {board.name} has {one.clock_mhz:g} MHz",
                file=sys.stderr,
            )


def _list_boards(as_json: bool) -> None:
    from hw.boards.platforms import BOARDS

    if as_json:
        fields = ("name", "clock_mhz", "baud")
        print(
            json.dumps(
                [
                    {name: getattr(board, name) for name in fields}
                    | {"resources": dataclasses.asdict(board.resources)}
                    for board in BOARDS.values()
                ],
                indent=2,
            )
        )
        return
    for board in BOARDS.values():
        print(
            f"{board.name:12} {_words(board.resources)}, {board.clock_mhz:g} MHz, {board.baud} baud"
        )


def _words(resources: "Resources") -> str:
    return f"{resources.lut4} LUT4, {resources.dsp} multipliers, {resources.bram} block memories"
