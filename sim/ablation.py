"""Cycles of VEDA's attention without its array or its scheduling (VEDA, Fig. 8, centre)."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from golden.evaluation.plots import figure
from hw.catalogue import find
from hw.veda.veda_core import VedaCoreParameters
from sim.arguments import count
from sim.bench import Played, compare
from sim.benches.veda.veda_core import A, B, Steps
from sim.design import generate
from sim.harness import Harness
from sim.memory import FASTEST
from sim.stall import PATTERNS
from sim.tools import ToolError

PROMPT, GENERATED = 512, 1024
"""The paper's; latencies are averaged over the tokens generated so far."""

BASE = ("tree", "separate")
VARIANTS = {
    BASE: "adder tree, softmax apart",
    ("tree_double", "separate"): "the same, two tiles",
    ("tree", "element_serial"): "element-serial alone",
    ("tree_double", "element_serial"): "the same, two tiles",
    ("flexible", "separate"): "flexible product alone",
    ("flexible", "element_serial"): "both",
}
PAPER = {("flexible", "separate"): 25, ("flexible", "element_serial"): 60}
"""How many percent less than the base's latency."""


def variant(dataflow: str, scheduling: str, longest: int, **sizes) -> VedaCoreParameters:
    """A core with the paper's array, or another's `sizes`, for so many rows."""
    sizes = {"rows": 8, "columns": 8, "arrays": 2} | sizes
    capacity = 1 << (longest - 1).bit_length()
    options = {"dataflow": dataflow, "scheduling": scheduling}
    return VedaCoreParameters(**sizes, capacity=capacity, heads=1, kv_heads=1, **options)


def growing(p: VedaCoreParameters, longest: int, heads: int) -> Steps:
    """A sequence in which no row leaves: steps of 1, 2, 3, ... rows."""
    steps = Steps(p)
    rng = np.random.default_rng(5)
    job = {"vote": True, "evict": False, "target": 0, "protected": 0, "a": A, "b": B}
    for t in range(longest):
        rows = (rng.standard_normal((n, p.array.lanes)).astype(np.float16) for n in (heads, 1, 1))
        steps.add(*rows, restart=t == 0, **job)
    return steps


def head_cycles(played: Played, heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Of every step: cycles from its first key offered to the first o taken, and between heads."""
    offered = np.asarray(played.memories["cache"].offered)
    taken = np.asarray(played.cycles_of["o"]).reshape(-1, heads)
    lengths = np.arange(1, len(taken) + 1)
    first = np.cumsum(2 * heads * lengths) - 2 * heads * lengths
    key = offered[offered >= 0][first] + 2  # through the reader's slot
    return taken[:, 0] - key + 1, np.diff(taken, axis=1)


def measure(p: VedaCoreParameters, longest: int) -> np.ndarray:
    """Cycles of a head with 1 to `longest` rows, in the compiled RTL.

    :raises ToolError: if a result or a number of cycles is not the model's.
    """
    design = generate(find("veda.veda_core"), p)
    job = growing(p, longest, 1).job([])
    played = Harness(design).play(job, PATTERNS["none"], 1, FASTEST)
    wrong = played.failure or compare(job, played.outputs, design.outputs, played.cycles_of)
    if wrong:
        raise ToolError(f"{p.dataflow}, {p.scheduling}: {wrong}")
    cycles, _ = head_cycles(played, 1)
    formula = [p.head_cycles(slots) for slots in range(1, longest + 1)]
    if cycles.tolist() != formula or played.cycles != job.cycles:
        raise ToolError(f"{p.dataflow}, {p.scheduling}: the formula must give the cycles measured")
    return cycles


def averages(p: VedaCoreParameters) -> np.ndarray:
    """Mean cycles of a head over the first 1, 2, ... tokens generated after the prompt."""
    cycles = [p.head_cycles(PROMPT + token) for token in range(1, GENERATED + 1)]
    return np.cumsum(cycles) / np.arange(1, GENERATED + 1)


def draw(path: Path) -> None:
    import matplotlib  # takes a second, which other commands need not wait for

    drawn = figure(6.4, 3.6)
    axes = drawn.add_subplot()
    tokens = np.arange(1, GENERATED + 1)
    means = {options: averages(variant(*options, PROMPT + GENERATED)) for options in VARIANTS}
    for (dataflow, scheduling), name in VARIANTS.items():
        double = dataflow == "tree_double"
        share = 100 * means[dataflow, scheduling] / means[BASE]
        color = ["C0", "C1", "C2", "C3"][2 * (dataflow == "flexible") + (scheduling != BASE[1])]
        label = f"{name}{' (base)' if (dataflow, scheduling) == BASE else ''}"
        axes.plot(tokens, share, "--" if double else "-", color=color, label=label)
        if less := PAPER.get((dataflow, scheduling)):
            axes.axhline(100 - less, color=color, linestyle=":", label=f"the paper: {less} % less")
    axes.set_xlabel(f"tokens generated after a prompt of {PROMPT}")
    axes.set_ylabel("cycles of attention, % of the base")
    axes.set_ylim(0, 105)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="lower right", ncols=2)
    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        drawn.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def command(arguments) -> int:
    rows = []
    base = averages(variant(*BASE, PROMPT + GENERATED))
    for options, name in VARIANTS.items():
        print(f"{name}: {' '.join(options)} …", file=sys.stderr, flush=True)
        p = variant(*options, PROMPT + GENERATED)
        small = dataclasses.replace(p, capacity=variant(*options, arguments.longest).capacity)
        cycles = measure(small, arguments.longest)
        mean = averages(p)
        rows.append(
            {
                "dataflow": options[0],
                "scheduling": options[1],
                "measured": {n: int(cycles[n - 1]) for n in (8, 64, 129, arguments.longest)},
                "mean": round(float(mean[-1]), 1),
                "less_percent": [round(100 * (1 - float((mean / base)[n])), 1) for n in (0, -1)],
            }
        )
        if not arguments.json:
            print(rows[-1])
    if arguments.json:
        print(json.dumps(rows, indent=2))
    if arguments.output:
        draw(arguments.output)
    return 0


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    parser = commands.add_parser(
        "ablation",
        description=(
            "Measure the cycles of a head of 128 with 1 to --longest rows in RTL, for a fixed "
            "adder tree and for a softmax of its own, check the formulas, and average these over "
            "the paper's lengths. Takes minutes."
        ),
    )
    parser.add_argument("--longest", type=longest, default=140, metavar="L", help="(%(default)s)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.svg", help="draw a picture")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    parser.set_defaults(run=command)


def longest(text: str) -> int:
    if (value := count(text)) < 129:
        raise argparse.ArgumentTypeError(f"must be at least 129, not {text}")
    return value
