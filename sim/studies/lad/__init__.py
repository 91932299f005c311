"""Cycles of LAD's tile beside dense attention (LAD, eq. 7, Fig. 7 and Fig. 8 right)."""

import sys
from pathlib import Path

from tqdm import tqdm

from golden.studies.study import prepare
from golden.trace import TraceError
from hw.catalogue import find
from hw.lad.tile_parameters import LadTileParameters
from sim.commands.arguments import count
from sim.core.design import generate
from sim.drivers.harness.runner import Harness
from sim.drivers.run import load_trace
from sim.studies.lad.measured import STEPS, Measured, measure
from sim.studies.lad.page import NAME, kept_rows, study
from sim.testbenches.decode import layers_of

POSITIONS = 64, 125, 250, 500


def tile(longest: int, heads: int, kv_heads: int) -> LadTileParameters:
    """The default tile, for `heads` query heads and up to `longest` positions."""
    positions = 1 << (longest + STEPS - 1).bit_length()
    return LadTileParameters(positions=positions, heads=heads, kv_heads=kv_heads)


def locality_command(arguments) -> int:
    if arguments.output:
        prepare(arguments.output)
    rows = kept_rows()
    trace = load_trace(arguments.trace)
    if trace.q is None or trace.k is None:
        raise TraceError("the trace holds no q, k and v")
    room = trace.q.shape[2] - STEPS + 1
    positions = sorted(set(arguments.positions))
    if positions[-1] > room:
        raise TraceError(f"--positions must be at most {room}, the trace's less {STEPS - 1}")
    p = tile(positions[-1], trace.q.shape[1], trace.k.shape[1])
    design = generate(find("lad.lad_tile"), p)
    harness = Harness(design)
    q, k, v, _ = layers_of(p, trace)
    measured: list[Measured] = []
    for layer in tqdm(range(len(q)), desc="layers", unit="layer", disable=None):
        for made in measure(harness, p, design, (q[layer], k[layer], v[layer]), positions):
            measured.append(made)
            print(made, file=sys.stderr, flush=True)
    page = study(measured, rows)
    if arguments.output:
        print(page.write(arguments.output), file=sys.stderr)
    print(page.json() if arguments.json else page.markdown(), end="")
    return 0


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    parser = commands.add_parser(
        "locality",
        description=(
            "Measure the cycles of LAD's tile in RTL at different numbers of positions, every bit "
            "checked, and put them, and the rows of docs/results/lad.json, beside dense attention "
            "and the paper's figures. Compiles a tile and steps its exact model through all "
            "earlier positions, which takes minutes."
        ),
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="q, k and v (default: the trace that ships)"
    )
    parser.add_argument(
        "--positions",
        type=count,
        nargs="+",
        metavar="N",
        default=list(POSITIONS),
        help=f"(default: {' '.join(map(str, POSITIONS))}); python -m golden trace writes longer"
        " traces",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help=f"write {NAME}.md, .svg and .json into this folder",
    )
    parser.set_defaults(run=locality_command)
