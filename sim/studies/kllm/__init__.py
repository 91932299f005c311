"""What KLLM's counting costs, and multiplication in its place (KLLM, sections III-B and IV-B)."""

import dataclasses
import functools
import json
import sys
from pathlib import Path

from golden.studies.study import prepare
from golden.trace import Trace
from sim.commands.arguments import count
from sim.drivers.run import load_trace
from sim.studies.kllm.designs import BITS, STEPS, data_of, designs
from sim.studies.kllm.errors import errors_of
from sim.studies.kllm.measured import Measured, measure
from sim.studies.kllm.noise import noise_of
from sim.studies.kllm.page import NAME, Results, study
from sim.synth import libraries

COUNTERS = (5,)
"""Number of counters of a step, as in the lane's preset `default`.

The 32 of `paper` are 700 000 cells.
"""

COLUMNS = 2
"""Number of columns of each run; the first fills the pipeline, the second is measured."""


def counting_command(arguments) -> int:
    if arguments.output:
        prepare(arguments.output)
    trace = load_trace(arguments.trace)
    library = libraries.find(arguments.liberty)
    errors, noise = errors_of(trace, BITS, (8, 12)), noise_of(trace)
    measured: list[Measured] = []
    for number, counters in enumerate(arguments.counters):
        columns = data_of(trace, STEPS * 16 * counters, COLUMNS)
        for design in designs(columns, counters):
            # Those that multiply grow with the step: one size of it says all.
            if number and not design.name.startswith("counting"):
                continue
            name = f"{design.name}, {design.positions} positions"
            measured.append(measure(design, library, COLUMNS, functools.partial(note, name)))
            if not arguments.json:
                print(summary(measured[-1]), flush=True)
    results = Results(measured, errors, noise, library.name, source(trace))
    if arguments.json:
        print(json.dumps(dataclasses.asdict(results), indent=1))
    if arguments.output:
        print(study(results).write(arguments.output), file=sys.stderr)
    return 0


def note(name: str, step: str) -> None:
    """Tell how far a design is."""
    print(f"{name}: {step} …", file=sys.stderr, flush=True)


def source(trace: Trace) -> str:
    """Model and text, a sentence."""
    parts = [str(trace.meta[name]) for name in ("model", "text") if name in trace.meta]
    return f"{', '.join(parts) or 'A trace without a name'}."


def summary(m: Measured) -> str:
    return (
        f"{m.name}, {m.positions} positions: {m.smallest} µm² a position, {m.clocked} for"
        f" {m.clocked_delay} ps; {m.settled} fJ, glitches {m.glitches}, clock {m.clock},"
        f" leakage {m.leakage}"
    )


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    parser = commands.add_parser(
        "counting",
        description=(
            "Map KLLM's counters and reduction, lanes that multiply fixed-point centroids, and FP16"
            " multipliers and adders to a cell library; report area, delay and switching energy a"
            " position, the errors of the products, and the noise of K-Means and of uniform levels."
            " Takes about 8 minutes and 1 GB."
        ),
    )
    parser.add_argument("--trace", type=Path, metavar="FILE.npz", help="default: the shipped one")
    parser.add_argument(
        "--counters",
        type=count,
        nargs="+",
        default=list(COUNTERS),
        metavar="N",
        help="counters of 16 positions in a step; multipliers have the first (%(default)s)",
    )
    parser.add_argument(
        "--liberty",
        default=libraries.NANGATE45,
        metavar="FILE.lib",
        help="cell library with internal power (%(default)s)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help=f"write {NAME}.md and {NAME}.json here"
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    parser.set_defaults(run=counting_command)
