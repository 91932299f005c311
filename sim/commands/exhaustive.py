"""``python -m sim exhaustive``: all pairs of 16-bit operands of six units."""

import os

import numpy as np

from hw.parameters import ParameterError, require
from sim.checks.exhaustive.exhaustive import FORMATS, OPERATIONS, VALUES, Exhaustive, Outcome
from sim.commands.arguments import count, whole


def exhaustive_command(arguments) -> int:
    names = list(OPERATIONS) if arguments.block == "all" else [arguments.block]
    first, number = arguments.first, arguments.count
    require(first < VALUES, f"--first must be below {VALUES}", first)
    most = VALUES - first
    number = most if number is None else number
    require(number <= most, f"--count must be between 1 and {most}", number)
    firsts, threads = np.arange(first, first + number), arguments.threads or os.cpu_count() or 1
    if names[0] not in OPERATIONS:
        raise ParameterError(f"block must be all or one of {', '.join(OPERATIONS)}")
    passed = True
    for name in names:
        for format in [arguments.format] if arguments.format else FORMATS:
            compiled = Exhaustive(name, format, arguments.flush)
            outcome = compiled.run(firsts, threads, compiled.label)
            print(describe(compiled.label, outcome), flush=True)
            passed &= outcome.difference is None
    return 0 if passed else 1


def describe(label: str, outcome: Outcome) -> str:
    rate = outcome.compared / max(outcome.seconds, 1e-9)
    verdict = "all equal" if outcome.difference is None else f"FAIL: {outcome.difference}"
    return (
        f"{label}: {outcome.compared} operations compared in {outcome.seconds:.1f} s "
        f"({rate:.2g} a second), {verdict}"
    )


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "exhaustive",
        description=(
            "Compare all 2^32 pairs of operands, through the gates of the combinational unit, with "
            "the same operation of the processor, rounded to the format. Takes seconds for each "
            "unit. Conversions are of all FP32 numbers. Exits 1 at the first difference, and "
            "shows it."
        ),
    )
    command.add_argument("block", nargs="?", default="all", help=f"{', '.join(OPERATIONS)} or all")
    command.add_argument("--format", choices=FORMATS, help="default: both")
    command.add_argument(
        "--flush", action="store_true", help="the units that flush subnormals to zero"
    )
    command.add_argument(
        "--first", type=whole, default=0, metavar="A", help="first operand's bits to begin with"
    )
    command.add_argument(
        "--count", type=count, metavar="N", help="number of first operands (default: all)"
    )
    command.add_argument("--threads", type=count, help="default: one for each processor core")
    command.set_defaults(run=exhaustive_command)
