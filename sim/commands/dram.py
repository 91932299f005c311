"""``python -m sim dram``: what a DRAM makes of a list of addresses."""

import json
import sys
from pathlib import Path

from sim.commands.arguments import count


def run_command(arguments) -> int:
    from hw.parameters import ParameterError

    if arguments.cores:
        return run_cores(arguments.json)
    if arguments.standard is None:
        raise ParameterError("give either --standard or --cores")
    from sim.core.dram.requests import measure, pattern, read_requests
    from sim.core.dram.standards import find_standard
    from sim.core.dram.timing import DramTiming, parse_timing

    find_standard(arguments.standard)
    settings = [arguments.standard, f"window={arguments.window}"]
    settings += [f"channels={arguments.channels}"] if arguments.channels else []
    settings += [f"map={arguments.map}"] if arguments.map else []
    settings += ["hash=on"] if arguments.hash else []
    timing = parse_timing(",".join(settings))
    assert isinstance(timing, DramTiming)
    if (arguments.addresses is None) == (arguments.pattern is None):
        raise ParameterError("give either --addresses or --pattern")
    if arguments.addresses is not None:
        requests, what = read_requests(arguments.addresses), str(arguments.addresses)
    else:
        what = arguments.pattern
        requests = pattern(what, timing.standard, arguments.count, arguments.seed)
    use = measure(timing, requests)
    fields = arguments.map or timing.standard.address_map
    settings_used = {"window": timing.window, "map": fields, "hash": timing.hashed}
    if arguments.json:
        print(json.dumps({**use.as_json(), "requests": len(requests), **settings_used}))
        return 0
    describe(use, what, settings_used)
    return 0


def run_cores(as_json: bool) -> int:
    """The table of every core on every memory."""
    from sim.commands.dram_cores import measure_cores, table_of

    rows = list(measure_cores(lambda text: print(text, file=sys.stderr)))
    print(json.dumps(rows, indent=1) if as_json else "\n".join(table_of(rows)))
    return 0


def describe(use, what: str, settings: dict) -> None:
    """A table for people to read."""
    from rich.table import Table

    from sim.commands.terminal import print_table

    s, counts, energy = use.standard, use.counts, use.energy()
    bursts = max(1, counts.reads + counts.writes)
    rate = use.achieved * s.peak_gb_s
    table = Table("figure", "value")
    rows = {
        "clocks": f"{use.clocks} of {s.tck_ps / 1000} ns",
        "bytes": f"{use.bytes_moved}",
        "rate": f"{rate:.2f} of {s.peak_gb_s:.2f} GB/s, {use.achieved:.1%}",
        "row hits": f"{counts.row_hits} of {bursts} bursts, {counts.row_hits / bursts:.1%}",
        "activations": f"{counts.activations}",
        "refreshes": f"{counts.refreshes}",
        **{f"energy, {kind}": f"{value / 1000:.2f} µJ" for kind, value in energy.items()},
        "energy a bit": (
            f"{1000 * sum(energy.values()) / (8 * use.bytes_moved):.2f} pJ, within a factor of two"
        ),
    }
    for figure, value in rows.items():
        table.add_row(figure, value)
    hashed = ", hashed" if settings["hash"] else ""
    print(f"{what} on {s.name}, {s.channels} channels of {s.line}-byte bursts, window of")
    print(f"{settings['window']} bursts, map {settings['map']}{hashed}:")
    print_table(table)


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "dram",
        description=(
            "Offer requests to a DRAM as fast as its controller accepts them, and say how long it "
            "takes, how many row hits and activations there are, and what energy it needs."
        ),
    )
    command.add_argument(
        "--standard",
        metavar="NAME",
        help="hbm2, lpddr4_3200, ddr3_1600 or sdr_133, whose burst is a request's line",
    )
    command.add_argument(
        "--cores",
        action="store_true",
        help="in place of requests: each core's testbench on each standard, beside an ideal memory",
    )
    command.add_argument(
        "--addresses",
        type=Path,
        metavar="FILE",
        help="text with a line `R ADDRESS` or `W ADDRESS` for each request, in hexadecimal bytes; "
        "addresses wrap at the capacity",
    )
    command.add_argument(
        "--pattern",
        metavar="PATTERN",
        help="in place of a file: sequential, random, runs:N of N lines, streams:N that read 8 "
        "lines in turn from bases a power of two apart, or staggered:N with the bases moved",
    )
    command.add_argument(
        "--count",
        type=count,
        default=10_000,
        metavar="N",
        help="requests of a pattern (default: %(default)s)",
    )
    command.add_argument("--seed", type=int, default=1, help="of a pattern (default: 1)")
    command.add_argument(
        "--window",
        type=count,
        default=64,
        metavar="N",
        help="requests that wait for a place in the channels' queues (default: %(default)s)",
    )
    command.add_argument(
        "--channels", type=count, metavar="N", help="a power of two (default: the standard's)"
    )
    command.add_argument(
        "--map",
        metavar="FIELDS",
        help="of an address, most significant first, as row:bank:column:channel "
        "(default: the standard's)",
    )
    command.add_argument(
        "--hash",
        action="store_true",
        help="XOR banks with rows, and channels with both, so that streams do not collide",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run_command)
