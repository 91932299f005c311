"""Cycles and traffic of Token-Picker's core, with pruning and without (Token-Picker, Fig. 10 b)."""

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from golden.studies.study import prepare
from golden.trace import Trace, TraceError
from hw.topick.core_parameters import TopickCoreParameters
from sim.commands.arguments import count
from sim.drivers.run import load_trace
from sim.studies.topick.measured import SIZES, Measured, summary, text
from sim.studies.topick.page import FEWER, NAME, study
from sim.studies.topick.rtl import Core, Traces, core, length_of
from sim.studies.topick.together import measure_together, summary_together

TOKENS = 64, 125, 250, 500, 1000
LANES_PER_HEAD = 1, 4, 16
BUFFER = 512
MILDER = (3e-4,)
"""Thresholds that are also run with the fewest lanes a head."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A core to compile, and the thresholds that it runs with."""

    parameters: TopickCoreParameters
    thresholds: Sequence[float]
    doubled: bool = False


def plans(trace: Trace, arguments: argparse.Namespace) -> list[Plan]:
    """Each number of lanes a head; then, with the fewest, fewer slots, buffers and twice the d.

    Fewer slots also with the most lanes.
    """
    assert trace.q is not None
    most, lanes_per_head = max(arguments.tokens), sorted(arguments.lanes_per_head)
    chosen = [arguments.threshold]
    made = []
    fewest = [*chosen, *(x for x in MILDER if x < arguments.threshold)]
    for lanes in lanes_per_head:
        thresholds = fewest if lanes == lanes_per_head[0] else chosen
        made += [
            Plan(core(trace, lanes, most, pruning=False), chosen),
            Plan(core(trace, lanes, most), thresholds),
        ]
    made += [
        Plan(core(trace, lanes, most, entries=FEWER), chosen)
        for lanes in sorted({lanes_per_head[0], lanes_per_head[-1]})
    ]
    lanes = lanes_per_head[0]
    kept = min(BUFFER, core(trace, lanes, most).tokens)
    made.append(Plan(core(trace, lanes, most, buffer_tokens=kept), chosen))
    made += [
        Plan(core(trace, lanes, most, pruning=pruning, d=2 * trace.q.shape[3]), thresholds, True)
        for pruning, thresholds in ((False, chosen), (True, fewest))
    ]
    return made


def measure(traces: Traces, plan: Plan, tokens: Sequence[int], memory: int) -> Iterator[Measured]:
    """A core with jobs of each number of `tokens`, at each threshold."""
    p = plan.parameters
    compiled = Core(p)
    for threshold in plan.thresholds:
        for n in tokens:
            jobs = traces.jobs(n, doubled=plan.doubled)
            yield Measured(
                source=traces.source(n),
                **{name: getattr(p, name) for name in SIZES},
                tokens=n,
                threshold=threshold,
                memory=memory,
                jobs=[compiled.run(job, threshold, memory) for job in jobs],
            )


def pruning_command(arguments) -> int:
    if arguments.output:
        prepare(arguments.output)
    longer = None if arguments.longer is None else load_trace(arguments.longer)
    traces = Traces(load_trace(arguments.trace), longer)
    if arguments.tokens is None:
        arguments.tokens = [n for n in TOKENS if n <= traces.longest] or [traces.longest]
    if max(arguments.tokens) > traces.longest:
        raise TraceError(f"--tokens must be at most {traces.longest}, the trace's")
    arguments.tokens = sorted(set(arguments.tokens))
    measured = []
    for plan in plans(traces.trace, arguments):
        p = plan.parameters
        print(f"{describe(p)} …", file=sys.stderr, flush=True)
        for made in measure(traces, plan, arguments.tokens, arguments.memory):
            measured.append(made)
            if not arguments.json:
                print(summary(made), flush=True)
    together = []
    if arguments.beside:
        print("several texts …", file=sys.stderr, flush=True)
        beside = [load_trace(path) for path in arguments.beside]
        # Where all texts have as many tokens.
        tokens = [n for n in arguments.tokens if n <= min(map(length_of, beside))]
        sizes = tokens, arguments.threshold, arguments.memory
        for each in measure_together(traces, beside, *sizes):
            together.append(each)
            if not arguments.json:
                print(summary_together(each), flush=True)
    if arguments.json:
        print(text(measured), end="")
    if arguments.output:
        print(study(measured, together).write(arguments.output), file=sys.stderr)
    return 0


def describe(p: TopickCoreParameters) -> str:
    parts = [f"{p.lanes_per_head} of {p.lanes} lanes a head", f"d = {p.d}"]
    parts += [f"{p.entries} slots"] if p.pruning else ["reads everything"]
    parts += [f"{p.buffer_tokens} tokens buffered"] if p.buffer_tokens else []
    return ", ".join(parts)


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    parser = commands.add_parser(
        "pruning",
        description=(
            "Measure the cycles of Token-Picker's core in RTL with pruning and without, for "
            "different numbers of tokens, of lanes of a head and of scoreboard slots, and what "
            "its memories read, on all layers of a trace. Compiles eleven cores, which takes "
            "minutes the first time."
        ),
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="q, k and v (default: the trace that ships)"
    )
    parser.add_argument(
        "--longer",
        type=Path,
        metavar="FILE",
        help="a trace for the numbers of tokens that the first does not have, of the same layers"
        " and heads; python -m golden trace --tokens 1024 writes one",
    )
    parser.add_argument(
        "--beside",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="traces of other texts, of the same layers and heads, whose sequences are contexts of"
        " one core together with the first's; compiles two more cores",
    )
    parser.add_argument(
        "--tokens",
        type=count,
        nargs="+",
        metavar="N",
        help=f"of a sequence (default: those of {' '.join(map(str, TOKENS))} that the traces have)",
    )
    parser.add_argument(
        "--lanes-per-head",
        type=count,
        nargs="+",
        default=list(LANES_PER_HEAD),
        metavar="N",
        help=f"powers of two (default: {' '.join(map(str, LANES_PER_HEAD))})",
    )
    parser.add_argument(
        "--threshold",
        type=probability,
        default=1e-3,
        metavar="P",
        help="tokens that are certain to have at most this probability are pruned (%(default)s)",
    )
    parser.add_argument(
        "--memory",
        type=count,
        default=50,
        metavar="CYCLES",
        help="from each request to its response (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help=f"write {NAME}.md, .svg and .json into this folder",
    )
    parser.set_defaults(run=pruning_command)


def probability(text: str) -> float:
    """A number above 0 and below 1, as an argparse type."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text}") from None
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and below 1, not {text}")
    return value
