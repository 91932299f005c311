"""``python -m sim clean``: remove generated and compiled designs from the cache."""

from sim.commands.arguments import whole
from sim.core.cache import DAY_S, prune
from sim.core.tools import build_folder


def clean_command(arguments) -> int:
    removed = prune(0, arguments.days * DAY_S)
    size = sum(entry.size for entry in removed)
    print(f"removed {len(removed)} entries, {size / 1e6:.1f} MB, from {build_folder()}")
    return 0


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "clean",
        description=(
            "Remove generated and compiled designs that were not used lately. The simulator "
            "removes them itself after a month, or above SENBAZURU_BUILD_LIMIT (default: 2G). "
            "`make clean` removes all of them."
        ),
    )
    command.add_argument(
        "--days",
        type=whole,
        default=1,
        metavar="N",
        help="keep what was used within N days (default: %(default)s); 0 removes everything, so "
        "no other command may be running",
    )
    command.set_defaults(run=clean_command)
