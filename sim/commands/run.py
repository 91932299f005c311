"""``python -m sim run``: simulate a block against its golden model."""

import dataclasses
import json
import logging
import sys
from pathlib import Path

from sim.commands.arguments import add_configuration, add_verilog, count, vectors, whole
from sim.core.stalls import PATTERNS
from sim.core.tools import DRIVERS, PROGRESS, SIMULATORS, TIMEOUT_S, require_writable


def run_command(arguments) -> int:
    from hw.catalogue import configurations
    from hw.parameters import ParameterError
    from sim.core.dram.timing import parse_timing
    from sim.core.result import configuration_name, settings_of
    from sim.drivers.run import run

    one = (arguments.verilog, arguments.waves, arguments.memory)
    if arguments.block == "all" and any(one):
        raise ParameterError("--verilog, --waves and --memory need one block, not 'all'")
    choice = board_choice(arguments)
    if arguments.waves:
        require_writable(arguments.waves)
    if not arguments.json:
        show_progress()
    timing = None if choice else arguments.memory
    memory = parse_timing(timing, arguments.seed) if timing else None
    results = []
    for block, preset in configurations(arguments.block, [arguments.preset]):
        parameters = block.parameters_class.preset(preset).replace_from_text(arguments.set)
        if not arguments.json:
            name = configuration_name(preset, settings_of(block, preset, parameters))
            where = "on a board" if choice else f"in {arguments.simulator}"
            print(f"{block.name} ({name}) {where} …", file=sys.stderr)
        if choice:
            results.append(
                result := run_through_cable(choice, block, preset, parameters, arguments)
            )
            if not arguments.json:
                describe(result)
            continue
        result = run(
            block,
            preset,
            parameters,
            simulator=arguments.simulator,
            driver=arguments.driver,
            trace=arguments.trace,
            vectors=arguments.vectors,
            seed=arguments.seed,
            stall=arguments.stall,
            memory=memory,
            verilog=arguments.verilog,
            trust=arguments.trust,
            waves=arguments.waves,
            timeout=arguments.timeout,
        )
        results.append(result)
        if not arguments.json:
            describe(result)
    if arguments.json:
        listed = [as_json(result) for result in results]
        print(json.dumps(listed if arguments.block == "all" else listed[0], indent=2))
    return 0 if all(result.passed for result in results) else 1


NOT_ON_BOARDS = ("simulator", "driver", "stall", "verilog", "trust", "waves", "timeout")
"""Options that say how to simulate."""


def board_choice(arguments):
    """The board that the command line chooses, or None.

    :raises ParameterError: for options that need or exclude a board.
    """
    from hw.parameters import ParameterError

    if arguments.board is None:
        refuse_without_board(arguments, "multiplier")
        return None
    for name in NOT_ON_BOARDS:
        if getattr(arguments, name) != arguments.defaults[name]:
            raise ParameterError(f"--board and --{name} do not go together")
    if arguments.block == "all":
        raise ParameterError("--board needs one block, not 'all'")
    return make_choice(arguments)


def refuse_without_board(arguments, *also: str) -> None:
    """:raises ParameterError: for options of a board without one, `also` among them."""
    from hw.boards.design import MEMORIES
    from hw.parameters import ParameterError

    if arguments.memory in MEMORIES:
        raise ParameterError(f"--memory {arguments.memory} needs --board")
    for name in ("baud", "clock", "memory_rows", *also):
        if getattr(arguments, name) is not None:
            raise ParameterError(f"--{name.replace('_', '-')} needs --board")


def make_choice(arguments):
    """The board of --board, --baud, --clock, --memory, --memory-rows and --multiplier."""
    from hw.boards.design import MEMORIES
    from hw.boards.uart import divisor_of
    from hw.parameters import ParameterError
    from sim.drivers.board.run import BoardChoice
    from sim.drivers.board.serial_port import BAUD

    baud = arguments.baud or BAUD
    clock = arguments.clock or BOARD_CLOCK
    divisor = divisor_of(clock, baud)
    rows = -1 if arguments.memory_rows is None else arguments.memory_rows
    if arguments.memory not in (None, *MEMORIES):
        known = " or ".join(MEMORIES)
        raise ParameterError(f"--board has --memory {known}, not {arguments.memory!r}")
    return BoardChoice(
        arguments.board,
        baud,
        divisor,
        rows,
        arguments.multiplier or "dsp",
        arguments.memory or MEMORIES[0],
        int(1e6 / clock),
    )


def run_through_cable(choice, block, preset: str, parameters, arguments):
    """The testbench on a board, with progress on standard error."""
    from sim.drivers.board.run import run_on_board

    def progress(text: str) -> None:
        if not arguments.json:
            print(f"  {text}", file=sys.stderr)

    return run_on_board(
        *(block, preset, parameters, choice),
        trace=arguments.trace,
        vectors=arguments.vectors,
        seed=arguments.seed,
        progress=progress,
    )


def show_progress() -> None:
    """Print what is compiled, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    PROGRESS.handlers = [handler]
    PROGRESS.setLevel(logging.INFO)
    PROGRESS.propagate = False


def as_json(result) -> dict:
    return {**dataclasses.asdict(result), "passed": result.passed}


def describe(result) -> None:
    """A result for people to read."""
    from sim.core.result import formula

    for note in result.notes:
        print(note)
    for stall, timing in (result.memory or {}).items():
        print(f"Memory under stall {stall}: {timing}.")
        for name, figures in (result.dram or {}).get(stall, {}).items():
            print(f"  {name}: {dram_sentence(figures)}.")
    cycles = formula(result.fewest, result.predicted)
    predicted = f" (formula: {cycles})" if cycles else ""
    print(
        f"{result.block} {result.configuration}, {result.simulator}, stall {result.stall}, "
        f"seed {result.seed}: {result.transactions} transactions, "
        f"{result.mismatches} mismatches, {result.cycles} cycles{predicted}, {result.wall_s} s: "
        f"{'pass' if result.passed else 'FAIL'}"
    )
    for sentence in filter(None, [result.first_mismatch, *result.failures]):
        print(f"  {sentence}")
    if result.reproduce:
        print(f"  to repeat: {result.reproduce}")


def dram_sentence(figures: dict) -> str:
    """A DRAM's figures, from a result."""
    bursts = max(1, figures["reads"] + figures["writes"])
    return (
        f"{figures['bytes']} bytes in {figures['cycles']} clocks of {figures['tck_ns']} ns, "
        f"{figures['achieved']:.1%} of the peak, {figures['row_hits'] / bursts:.1%} row hits, "
        f"{figures['activations']} activations, {sum(figures['energy_nj'].values()):.0f} nJ"
    )


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "run",
        description=(
            "Build a block's Verilog, drive it with real data from a trace and with corner cases "
            "and random data, and compare every output beat with the golden model. Exits 1 on a "
            "mismatch, a broken stream rule, a hang or a cycle count other than the formula's."
        ),
    )
    add_configuration(command, everything=True)
    command.add_argument(
        "--simulator", choices=SIMULATORS, default="verilator", help="default: %(default)s"
    )
    command.add_argument(
        "--driver",
        choices=DRIVERS,
        default="cocotb",
        help="cocotb, or the compiled harness for millions of cycles (Verilator only)",
    )
    command.add_argument(
        "--trace", type=Path, metavar="FILE.npz", help="real data (default: the trace that ships)"
    )
    command.add_argument(
        "--vectors", type=vectors, metavar="N", help="transactions of each kind, real and random"
    )
    command.add_argument(
        "--stall",
        choices=list(PATTERNS),
        help="stalls of producers and consumers (default: every pattern, one after another)",
    )
    add_verilog(command)
    command.add_argument(
        "--memory",
        metavar="TIMING",
        help=(
            "timing of the block's memories: any of latency=1..80,order=in|any,interval=2,seed=3; "
            "or a DRAM, hbm2, lpddr4_3200, ddr3_1600 or sdr_133, and any of channels=4,clock=1000 "
            "(the core's, in MHz),map=row:bank:column:channel,hash=on,window=64,order=in|any "
            "(default: a different timing for each stall pattern); with --board what holds the "
            "rows, block or sdram (default: block)"
        ),
    )
    command.add_argument("--waves", type=Path, metavar="FILE.fst", help="write waves to this file")
    command.add_argument(
        "--timeout",
        type=count,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=(
            "end a run after this time without a simulated cycle, as in an endless loop of "
            "combinational logic (default: %(default)s)"
        ),
    )
    add_board(command)
    defaults = {name: command.get_default(name) for name in NOT_ON_BOARDS}
    command.set_defaults(run=run_command, defaults=defaults)


BOARD_CLOCK = 25.0
"""MHz of a board's clock, unless told otherwise."""


def add_board(command, multiplier: str = "") -> None:
    """The arguments that choose a board.

    multiplier
        Help of ``--multiplier``, where it is not only for boards.
    """
    command.add_argument(
        "--board",
        metavar="PORT",
        help="run on the board at this serial port, such as /dev/ttyUSB0, that "
        "`python -m hw fpga` has made with the same parameters; or `simulated`: the board's whole "
        "design behind a pseudo-terminal",
    )
    command.add_argument(
        "--baud", type=count, metavar="N", help="of the board's line (default: 1000000)"
    )
    command.add_argument("--clock", type=float, metavar="MHZ", help="of the board (default: 25)")
    command.add_argument(
        "--memory-rows",
        type=whole,
        metavar="N",
        help="rows of each memory on the board, 0: the memories' beats go over the cable "
        "(default: as many as addresses reach; 1024 at most in block memory)",
    )
    command.add_argument(
        "--multiplier",
        metavar="M",
        help=multiplier
        or "what the board's multipliers are for, as it was made: dsp or dsp_shifts (default: dsp)",
    )
