"""``python -m sim compare``: designs on equal terms, a decode step of one layer of each."""

import argparse
import json
import sys
from pathlib import Path

from sim.commands.arguments import add_execution, count, execution
from sim.commands.dram_cores import FINE

MEMORY = f"lpddr4_3200,{FINE}"
CLOCK = "1000"


def run_command(arguments) -> int:
    from golden.lm.commands import check_output
    from golden.studies.study import prepare
    from hw.parameters import ParameterError
    from sim.studies.compare.cases import cases_of, compare, with_logic, with_prices
    from sim.studies.compare.page import kept, study_of

    if arguments.kept is not None:
        print(study_of(kept(arguments.kept)).write(arguments.kept))
        return 0
    # Everything is checked before anything takes long.
    if arguments.missing and (arguments.page is None or arguments.trace is not None):
        # A row's command names a trace, but not what is in it.
        raise ParameterError("--missing needs --page and takes no --trace")
    before = kept(arguments.page) if arguments.missing else {}
    cases = cases_of(arguments)
    if arguments.output is not None:
        check_output(arguments.output)
    if arguments.page is not None:
        prepare(arguments.page)
    result = compare(cases, before.get("rows", ()), **execution(arguments))
    if arguments.logic:
        result = with_logic(cases, result, **execution(arguments))
    elif "units" in before:
        result = with_prices(result, before["units"])
    if arguments.page is not None:
        print(study_of(result).write(arguments.page), file=sys.stderr)
    text = json.dumps(result, indent=1)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    print(text) if arguments.json else describe(result)
    return 0


def describe(result: dict) -> None:
    """A table for people to read."""
    from sim.commands.terminal import print_table
    from sim.studies.compare.designs import ALGORITHMS
    from sim.studies.compare.table import table_of

    s = result["settings"]
    print(f"Attention of one layer's step: {s['heads']} heads over {s['kv_heads']} of {s['d']}")
    tokens = ", ".join(map(str, s["n"]))
    print(f"elements, {tokens} tokens in view; designs at {s['clock_mhz']:g} MHz.")
    for memory in s["memories"]:
        print(f"Memory: {memory}.")
    for about in s["data"]:
        print(f"Data: {about}.")
    print_table(table_of(result["rows"]))
    for of in result["left_out"]:
        where = f" at {of['n']} tokens" if len(s["n"]) > 1 else ""
        print(f"{of['design']}{where}: {of['why']}.")
    print("RTL, every output equal to its bit-exact model's. µJ: the DRAM's.")
    if any(row["design"] in ALGORITHMS for row in result["rows"]):
        print(f"{', '.join(ALGORITHMS)}: no core, the memory's time alone.")
    if "units" in result:
        print("Chip: 45 nm, logic mapped by hierarchy, and memories; energy without glitches and")
        print("wires, and with both, an estimate (docs/compare.md).")


def lengths(text: str) -> list[int]:
    """Numbers of tokens, typed as ``n=256,1024``, as an argparse type."""
    name, _, numbers = text.partition("=")
    if name != "n" or not numbers:
        raise argparse.ArgumentTypeError(f"must have the form n=256,1024, not {text}")
    return [count(number) for number in numbers.split(",")]


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command: argparse.ArgumentParser = commands.add_parser(
        "compare",
        description=(
            "Simulate one layer's decode step in the RTL of several designs, at one shape and on "
            "one memory, compare every output with the bit-exact model, and say cycles, bytes, "
            "activations, energy of the DRAM, and what limits each design."
        ),
    )
    command.add_argument(
        "--d", type=count, default=64, metavar="N", help="elements of a head (default: %(default)s)"
    )
    command.add_argument(
        "--n",
        type=count,
        default=512,
        metavar="N",
        help="tokens in view, the new one included (default: %(default)s)",
    )
    command.add_argument(
        "--over",
        type=lengths,
        metavar="n=N,N",
        help="several numbers of tokens in place of --n, as n=256,1024",
    )
    for name, default, what in (("heads", 9, "query heads"), ("kv-heads", 3, "heads of K and V")):
        command.add_argument(
            f"--{name}",
            type=count,
            default=default,
            metavar="N",
            help=f"{what} (default: %(default)s)",
        )
    command.add_argument(
        "--memory",
        action="append",
        default=[],
        metavar="TIMING",
        help="ideal, or as in `sim run`; may be repeated; several memories of a design divide the "
        f"channels (default: {MEMORY})",
    )
    command.add_argument(
        "--quality",
        type=float,
        nargs="+",
        default=[],
        metavar="KL",
        help="give each design the setting at which the language model's next token differs from "
        "dense attention's by at most this KL, in nats: 0.003, 0.018 or 0.06 (default: the "
        "designs' own settings)",
    )
    command.add_argument(
        "--clock", default=CLOCK, metavar="MHZ", help="of the designs (default: %(default)s)"
    )
    command.add_argument(
        "--design",
        action="append",
        default=[],
        metavar="NAME",
        help="block to compare, or spatten, an algorithm without a core; may be repeated (default: "
        "all but lad.lad_system)",
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="DESIGN.NAME=VALUE",
        help="change a setting (kept, threshold, lanes, rows, top_k; spatten: keep, values) or a "
        "parameter of a design; "
        "may be repeated",
    )
    command.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="queries, keys and values (default: of the language model if d is 64, else made)",
    )
    command.add_argument(
        "--logic",
        action="store_true",
        help="also map each design to 45 nm cells by hierarchy, and estimate what logic and"
        " memories cost in the step (ten minutes more for each design)",
    )
    command.add_argument("--json", action="store_true", help="print JSON on standard output")
    command.add_argument(
        "-o", "--output", type=Path, metavar="FILE.json", help="write the JSON into a file"
    )
    command.add_argument(
        "--page",
        type=Path,
        metavar="DIR",
        help="write a page with tables and pictures, and its JSON, into a folder",
    )
    command.add_argument(
        "--kept",
        type=Path,
        metavar="DIR",
        help="run nothing: write the page in a folder again from its JSON",
    )
    command.add_argument(
        "--missing",
        action="store_true",
        help="with --page: run only designs whose command is in no row of the page's JSON, and "
        "keep the other rows as they are, even if their RTL has changed",
    )
    add_execution(command)
    command.set_defaults(run=run_command)
