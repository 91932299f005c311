"""Cycles of VEDA's attention without its array, its scheduling or its eviction (VEDA, Fig. 8).

And the throughput that follows from them (Table II).
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from golden.evaluation.plots import figure
from golden.studies.study import CLOSE, Claim, Study, Table, Verdict, close, save
from hw.catalogue import find
from hw.veda.veda_core_parameters import VedaCoreParameters
from sim.commands.arguments import count
from sim.core.design import generate
from sim.core.memory import FASTEST
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Outcome, compare
from sim.core.tools import ToolError
from sim.drivers.harness.runner import Harness
from sim.studies.veda_cycles import (
    BASE,
    CLOCK,
    GENERATED,
    PROMPT,
    STEPS,
    averages,
    step_cycles,
    tokens_per_second,
    variant,
)
from sim.studies.veda_paper import paper_claims
from sim.testbenches.veda.veda_core import A, B, Steps

VARIANTS = {
    BASE: "adder tree, softmax apart",
    ("tree_double", "separate"): "the same, two tiles",
    ("tree", "element_serial"): "element-serial alone",
    ("tree_double", "element_serial"): "the same, two tiles",
    ("flexible", "separate"): "flexible product alone",
    ("flexible", "element_serial"): "both",
}
PAPER = {("flexible", "separate"): 25, ("flexible", "element_serial"): 60}
"""Percent less than the base's latency."""


def growing(p: VedaCoreParameters, longest: int, heads: int) -> Steps:
    """A sequence without evictions: steps of 1, 2, 3, ... rows."""
    steps = Steps(p)
    rng = np.random.default_rng(5)
    command: dict[str, Any] = {"vote": True, "evict": False, "target": 0, "protected": 0}
    for t in range(longest):
        rows = (rng.standard_normal((n, p.d)).astype(np.float16) for n in (heads, 1, 1))
        steps.add(*rows, restart=t == 0, a=A, b=B, **command)
    return steps


def head_cycles(outcome: Outcome) -> np.ndarray:
    """Cycles of every step of one head, from its first key offered to its o."""
    offered = np.asarray(outcome.memories["memory"].offered)
    taken = np.asarray(outcome.cycles_of["o"])
    lengths = np.arange(1, len(taken) + 1)
    first = np.cumsum(2 * lengths) - 2 * lengths
    key = offered[offered >= 0][first] + 2  # two cycles in the reader
    return taken - key + 1


def measure(p: VedaCoreParameters, longest: int) -> np.ndarray:
    """Cycles of a head with 1 to `longest` rows, in the compiled RTL.

    :raises ToolError: if a result or a number of cycles differs from the model's.
    """
    design = generate(find("veda.veda_core"), p)
    stimulus = growing(p, longest, 1).stimulus([])
    outcome = Harness(design).run(stimulus, PATTERNS["none"], 1, FASTEST)
    wrong = outcome.failure or compare(stimulus, outcome.outputs, design.outputs, outcome.cycles_of)
    if wrong:
        raise ToolError(f"{p.dataflow}, {p.scheduling}: {wrong}")
    cycles = head_cycles(outcome)
    formula = [p.head_cycles(slots) for slots in range(1, longest + 1)]
    if cycles.tolist() != formula or outcome.cycles != stimulus.cycles:
        raise ToolError(f"{p.dataflow}, {p.scheduling}: the formula must give the cycles measured")
    return cycles


RATIOS = 0.5, 0.4, 0.3, 0.2
"""Rows kept, as a share of the prompt. The paper does not say which; these give its range."""

LENGTHS = 128, 256, 512, 1024
"""Tokens generated, the paper's."""


def speedup(p: VedaCoreParameters, generated: int, ratio: float) -> float:
    """How much faster steps are with `ratio` of the prompt kept than with a cache that grows.

    The new token's row is in view in addition to those kept.
    """
    growing = step_cycles(p, tuple(range(PROMPT + 1, PROMPT + generated + 1)), 0)
    return growing / step_cycles(p, (int(PROMPT * ratio) + 1,) * STEPS, 1)


def rows_ratio(generated: int, ratio: float) -> float:
    """The ratio of rows in view, without new tokens' rows: an upper bound of the speedup."""
    return (PROMPT + (generated + 1) / 2) / (PROMPT * ratio)


def gops(p: VedaCoreParameters, length: int) -> float:
    """Operations a nanosecond in a head of l = `length` rows.

    Two products, each of l d additions and multiplications.
    """
    return 4 * p.d * length / p.head_cycles(length)


def ablation_claims() -> list[Claim]:
    """What the flexible product and element-serial scheduling take off the base's latency."""
    base = averages(variant(*BASE, PROMPT + GENERATED))
    claims = []
    for (dataflow, scheduling), theirs in PAPER.items():
        p = variant(dataflow, scheduling, PROMPT + GENERATED)
        less = 100 * (1 - averages(p) / base)
        serial = scheduling == "element_serial"
        claims.append(
            Claim(
                f"{'about' if serial else 'over'} {theirs} % less latency of attention with the"
                f" flexible product{' and element-serial scheduling' * serial} (Fig. 8, centre)",
                f"{less.min():.1f} to {less.max():.1f} % over the tokens generated",
                Verdict.of(*(x > (1 - CLOSE) * theirs for x in (less.min(), less.max()))),
                f"a head of {p.d} on {p.rows * p.columns * p.arrays} multipliers, beside an adder"
                " tree whose softmax waits for all scores",
            )
        )
    paper = variant("flexible", "element_serial", PROMPT + GENERATED)
    lengths = PROMPT + 1, PROMPT + GENERATED
    extra = [paper.head_cycles(n) - 2 * n for n in lengths]
    return [
        *claims,
        Claim(
            "softmax takes a time that does not depend on the length, O(1) in place of O(N)"
            " (abstract, IV-B)",
            f"{extra[0]} cycles of a head beside its products at {lengths[0]} rows, {extra[1]} at"
            f" {lengths[1]}",
            Verdict.of(extra[0] == extra[1]),
            "a head's two products take a cycle for each row",
        ),
    ]


def speed_study() -> Study:
    """The paper's speeds beside ours, from the cycle formulas alone."""
    p = VedaCoreParameters.presets()["paper"]
    table = {ratio: [speedup(p, n, ratio) for n in LENGTHS] for ratio in RATIOS}
    slowest, fastest = table[RATIOS[0]][0], table[RATIOS[-1]][-1]
    ideal = rows_ratio(LENGTHS[0], RATIOS[0]), rows_ratio(LENGTHS[-1], RATIOS[-1])
    first, last = PROMPT + 1, PROMPT + GENERATED
    steps = [
        4e-9 * CLOCK * p.d * p.heads * length / step_cycles(p, (length,) * STEPS, 0)
        for length in (first, last)
    ]
    heads = gops(p, first), gops(p, last)
    bare, whole = tokens_per_second(p)
    turn = p.attention.turn(0, [first] * p.parallel)
    idle = turn.next_key / p.parallel - 2 * first
    claims = [
        *ablation_claims(),
        Claim(
            "eviction makes attention 2.3 to 10.0 times as fast (Fig. 8, right)",
            f"{slowest:.2f} to {fastest:.2f} times; by rows in view {ideal[0]:.2f} to"
            f" {ideal[1]:.2f}",
            Verdict.of(close(slowest, 2.3), close(fastest, 10)),
            f"the paper's range is the rows'; a head takes {idle:.1f} cycles beside two for each"
            " row, and a step the end of its votes, which weigh more with few rows",
        ),
        Claim(
            "245 GOPS (Table II)",
            f"{heads[0]:.0f} to {heads[1]:.0f} in a head alone, {steps[0]:.0f} to {steps[1]:.0f}"
            " with all of a step of 32 heads, of 256",
            Verdict.of(*(close(value, 245) for value in (*heads, *steps))),
            f"attention with {first} to {last} rows in view; the paper does not say which product"
            " its figure is of",
        ),
        Claim(
            "18.6 tokens/s of Llama-2-7B",
            f"{whole:.1f} with attention, {bare:.1f} without",
            Verdict.of(close(whole, 18.6)),
            "all products, norms and attention on the core, by its formula of cycles, one job after"
            " another; the host's part is not counted",
        ),
        *paper_claims(),
    ]
    rows = [
        [f"{ratio:.1f}", str(int(PROMPT * ratio)), *(f"{value:.2f}" for value in values)]
        for ratio, values in table.items()
    ]
    return Study(
        "veda_speed",
        "VEDA: speed and power (Fig. 8, centre and right, Tables I and II)",
        f"From the `paper` core's cycle formula, which the RTL meets on every cycle measured: 128"
        f" PEs, 32 heads with a kv head each, a memory that keeps up, 1 GHz. A prompt of"
        f" {PROMPT}, then up to {GENERATED} tokens, every one of which votes; with eviction S of"
        " the prompt's rows are kept and each step sees S + 1. Where a figure is not the formula's,"
        " it is said whose: the paper's other figures, or energies in"
        " `docs/results/equal_terms.json`. `python -m sim ablation --speed FOLDER` writes this"
        " page.",
        claims,
        [
            Table(
                "Speedup over a growing cache, averaged over the tokens generated",
                ["S / prompt", "S", *(f"{n} tokens" for n in LENGTHS)],
                rows,
            )
        ],
    )


def draw(path: Path) -> None:
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
    save(drawn, path, path.name)


def ablation_command(arguments) -> int:
    if arguments.speed:
        print(speed_study().write(arguments.speed))
        return 0
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
    parser.add_argument(
        "--speed",
        type=Path,
        metavar="FOLDER",
        help="only write the page on speedup by eviction, GOPS and tokens/s, from the formulas,"
        " and its data",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    parser.set_defaults(run=ablation_command)


def longest(text: str) -> int:
    if (value := count(text)) < 129:
        raise argparse.ArgumentTypeError(f"must be at least 129, not {text}")
    return value
