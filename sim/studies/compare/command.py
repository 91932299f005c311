"""``python -m sim compare``: designs on equal terms, a decode step of one layer of each."""

import argparse
import json
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path

from sim.commands.arguments import count
from sim.commands.dram_cores import FINE

MEMORY = f"lpddr4_3200,{FINE}"
CLOCK = "1000"


def run_command(arguments) -> int:
    from sim.studies.compare.data import Shape, layer_data
    from sim.studies.compare.designs import choose, chosen_designs, require_known
    from sim.studies.compare.rows import ideal, measure

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    heads = arguments.heads, arguments.kv_heads
    shapes = [Shape(arguments.d, n, *heads) for n in arguments.over or [arguments.n]]
    settings = [setting_of(arguments, shape) for shape in shapes]
    require_known(arguments.set)
    # Everything is checked before anything takes long.
    chosen = []
    left: dict[str, str] = {}
    for setting in settings:
        names, out = chosen_designs(arguments.design, setting.shape)
        chosen.append(
            [choose(name, setting.shape, setting.channels, arguments.set) for name in names]
        )
        left |= out
    if arguments.output is not None:
        from golden.lm.commands import check_output

        check_output(arguments.output)
    rows: list[dict] = []
    about = []
    for setting, designs in zip(settings, chosen, strict=True):
        data = layer_data(setting.shape, arguments.trace, say)
        about.append(data.about)
        reference = ideal(setting)
        rows += [] if reference is None else [reference]
        rows += [measure(design, setting, data, arguments.set, say) for design in designs]
    shape = shapes[0]
    result = {
        "settings": {
            **{name: getattr(shape, name) for name in ("d", "heads", "kv_heads")},
            "n": [shape.n for shape in shapes],
            "layers": 1,
            "memory": str(settings[0].timing),
            "clock_mhz": settings[0].clock,
            "data": about,
        },
        "rows": rows,
        "left_out": left,
    }
    text = json.dumps(result, indent=1)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    print(text) if arguments.json else describe(result)
    return 0


def setting_of(arguments, shape):
    """The memory and the clock that all designs have.

    :raises ParameterError: if the memory's text gives another clock.
    """
    from hw.parameters import ParameterError, require
    from sim.core.dram.timing import DramTiming, parse_timing
    from sim.core.memory import FASTEST
    from sim.studies.compare.rows import Setting

    try:
        clock = Decimal(arguments.clock)
    except InvalidOperation:
        clock = Decimal("nan")
    fits = clock.is_finite() and 0 < clock <= 10_000
    require(fits, "clock must be a number of MHz above 0, at most 10000", arguments.clock)
    text = arguments.memory
    if text == "ideal":
        return Setting(shape, FASTEST, text, float(clock), arguments.trace)
    timing = parse_timing(text)
    if isinstance(timing, DramTiming):
        if ",clock=" in text:
            raise ParameterError("--memory: give the clock by --clock")
        timing = parse_timing(f"{text},clock={clock:f}")
    return Setting(shape, timing, text, float(clock), arguments.trace)


def describe(result: dict) -> None:
    """A table for people to read."""
    from sim.commands.terminal import print_table
    from sim.studies.compare.table import table_of

    s = result["settings"]
    print(f"Attention of one layer's step: {s['heads']} heads over {s['kv_heads']} of {s['d']}")
    tokens = ", ".join(map(str, s["n"]))
    print(f"elements, {tokens} tokens in view; designs at {s['clock_mhz']:g} MHz.")
    print(f"Memory: {s['memory']}.")
    for about in dict.fromkeys(s["data"]):
        print(f"Data: {about}.")
    print_table(table_of(result["rows"]))
    for name, why in result["left_out"].items():
        print(f"{name}: {why}.")
    print("RTL, every output equal to its bit-exact model's. Energy is the DRAM's alone.")


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
        default=MEMORY,
        metavar="TIMING",
        help="ideal, or as in `sim run`; several memories of a design divide the channels "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--clock", default=CLOCK, metavar="MHZ", help="of the designs (default: %(default)s)"
    )
    command.add_argument(
        "--design",
        action="append",
        default=[],
        metavar="NAME",
        help="block to compare; may be repeated (default: all)",
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="DESIGN.NAME=VALUE",
        help="change a setting (kept, threshold, lanes, rows, top_k) or a parameter of a design; "
        "may be repeated",
    )
    command.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="queries, keys and values (default: of the language model if d is 64, else made)",
    )
    command.add_argument("--json", action="store_true", help="print JSON on standard output")
    command.add_argument(
        "-o", "--output", type=Path, metavar="FILE.json", help="write the JSON into a file"
    )
    command.set_defaults(run=run_command)
