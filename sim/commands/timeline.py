"""``python -m sim timeline``: when the beats of a block's streams move, as a table or a picture."""

import argparse
import dataclasses
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.commands.arguments import add_configuration, configuration, vectors, whole
from sim.core.stalls import PATTERNS
from sim.core.tools import require_icarus, require_writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hw.catalogue import Block
    from sim.drivers.timeline.watch import WatchedStream

FORMATS = ("svg", "png", "pdf")
MOST = 160
"""Cycles of a run that are kept of each block."""


@dataclasses.dataclass(frozen=True)
class Mark:
    """A moment to number in the picture: a beat of a stream, counted from 0 in the cycles shown."""

    stream: str
    beat: int
    text: str

    @classmethod
    def of(cls, text: str) -> "Mark":
        """From ``STREAM[:BEAT]=TEXT``, as an argparse type."""
        found = re.fullmatch(r"([\w.]+)(?::(\d+))?=(.+)", text)
        if found is None:
            raise argparse.ArgumentTypeError(f"must be STREAM[:BEAT]=TEXT, not {text}")
        return cls(found[1], int(found[2] or 0), found[3])


def span(text: str) -> tuple[int, int]:
    """First cycle and the one after the last, as an argparse type."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise argparse.ArgumentTypeError(f"must be FIRST:END with FIRST below END, not {text}")
    return int(found[1]), int(found[2])


def timeline_command(arguments) -> int:
    from golden.studies.study import save
    from hw.parameters import ParameterError
    from sim.core.design import generate
    from sim.core.dram.timing import parse_timing
    from sim.core.memory import FASTEST
    from sim.core.result import configuration_name, settings_of
    from sim.drivers.run import load_testbench, load_trace
    from sim.drivers.timeline.watch import TimelineSimulation, streams_of

    if arguments.block == "all":
        return every_block(arguments)
    block, parameters = configuration(arguments)
    output = arguments.output
    if output is not None:
        if output.suffix[1:] not in FORMATS:
            raise ParameterError(f"-o must end in .{', .'.join(FORMATS)}, not {output}")
        require_writable(output)
    require_icarus()
    timing = parse_timing(arguments.memory, arguments.seed) if arguments.memory else FASTEST
    testbench = load_testbench(block)
    trace = None if arguments.random else load_trace(arguments.trace)
    count = arguments.vectors or min(4, testbench.default_vectors(parameters))
    stimulus = testbench.stimulus(parameters, trace, count, arguments.seed)
    design = generate(block, parameters)
    kinds = chosen(streams_of(design, arguments.depth), arguments.streams)
    for mark in arguments.mark:
        if mark.stream not in kinds:
            raise ParameterError(f"--mark: {mark.stream} is no stream that is shown")
    watched = TimelineSimulation(design).watch(
        stimulus, arguments.stall, arguments.seed, kinds, timing
    )
    first, end = arguments.cycles or (0, 1 + max(int(max(s.beats, default=0)) for s in watched))
    shown = [within(stream, first, end) for stream in watched]
    for mark in arguments.mark:
        beats = sum(len(stream.beats) for stream in shown if stream.name == mark.stream)
        if mark.beat >= beats:
            raise ParameterError(f"--mark: {mark.stream} has {beats} beats in these cycles")
    if output is not None:
        preset = block.parameters_class.preset_name(arguments.preset)
        name = configuration_name(preset, settings_of(block, preset, parameters))
        title = f"{block.name}, {name}, {'random' if trace is None else 'real'} data"
        drawn = picture(shown, (first, end), title, arguments.mark)
        save(drawn, output, salt=block.name)
    if arguments.json:
        lanes = [
            {"stream": s.name, "kind": s.kind, "beats": s.beats.tolist(), "waits": runs(s.waits)}
            for s in shown
        ]
        print(json.dumps({"block": block.name, "cycles": [first, end], "streams": lanes}))
    elif output is None:
        _print(shown, first, end)
    return 0


def every_block(arguments) -> int:
    """The first preset of every block, as JSON in a file; a page of the site has each."""
    from hw.catalogue import blocks
    from hw.parameters import ParameterError

    given = [arguments.streams, arguments.mark, arguments.cycles, arguments.set, arguments.json]
    if arguments.output is None or arguments.output.suffix != ".json" or any(given):
        raise ParameterError("all needs -o FILE.json, and takes no other option but --seed")
    require_writable(arguments.output)
    require_icarus()
    found = {}
    for number, block in enumerate(blocks(), 1):
        print(f"{number}: {block.name} …", file=sys.stderr, flush=True)
        found[block.name] = first_run(block, arguments.seed)
    text = ",\n".join(f'"{name}": {json.dumps(run)}' for name, run in found.items())
    arguments.output.write_text(f"{{\n{text}\n}}\n")
    return 0


def first_run(block: "Block", seed: int) -> dict[str, Any]:
    """A few transactions of a block's first preset: beats and waits of its streams.

    They are runs of cycles, as :func:`runs` has them, of the first MOST cycles.
    """
    from sim.core.design import generate
    from sim.drivers.run import load_testbench, load_trace
    from sim.drivers.timeline.watch import TimelineSimulation, streams_of

    parameters = block.parameters_class.preset("first")
    testbench = load_testbench(block)
    count = min(4, testbench.default_vectors(parameters))
    stimulus = testbench.stimulus(parameters, load_trace(None), count, seed)
    design = generate(block, parameters)
    watched = TimelineSimulation(design).watch(stimulus, "none", seed, streams_of(design, depth=0))
    end = 1 + max(int(max(stream.beats, default=0)) for stream in watched)
    shown = [within(stream, 0, min(end, MOST)) for stream in watched]
    lanes = [
        {"stream": s.name, "kind": s.kind, "beats": runs(s.beats), "waits": runs(s.waits)}
        for s in shown
    ]
    preset = block.parameters_class.preset_name("first")
    return {"preset": preset, "transactions": count, "cycles": end, "streams": lanes}


def kept_picture(name: str, run: Mapping[str, Any]) -> str:
    """The picture of a run that was kept by :func:`every_block`, as the text of an SVG file."""
    from golden.studies.study import save
    from sim.drivers.timeline.watch import WatchedStream

    def cycles(of: list) -> np.ndarray:
        parts = [np.arange(first, first + length) for first, length in of]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    shown = [
        WatchedStream(s["stream"], s["kind"], cycles(s["beats"]), cycles(s["waits"]))
        for s in run["streams"]
    ]
    title = f"{name}, {run['preset']}, real data"
    drawn = picture(shown, (0, min(run["cycles"], MOST)), title, [])
    with tempfile.TemporaryDirectory(prefix="timeline_") as folder:
        path = Path(folder) / "run.svg"
        save(drawn, path, salt=name)
        return path.read_text()


def chosen(kinds: dict[str, str], names: Sequence[str]) -> dict[str, str]:
    """Kinds of the streams that are named, in that order; of all, if none is.

    :raises ParameterError: for a stream that there is not.
    """
    from hw.parameters import ParameterError

    for name in names:
        if name not in kinds:
            raise ParameterError(f"--streams: there is no {name}; known: {', '.join(kinds)}")
    return {name: kinds[name] for name in names or kinds}


def within(stream: "WatchedStream", first: int, end: int) -> "WatchedStream":
    """The same in some cycles alone."""
    beats, waits = (of[(of >= first) & (of < end)] for of in (stream.beats, stream.waits))
    return dataclasses.replace(stream, beats=beats, waits=waits)


def _print(shown: "Sequence[WatchedStream]", first: int, end: int) -> None:
    from rich.table import Table

    from sim.commands.terminal import print_table

    table = Table(title=f"Cycles {first} to {end - 1}")
    for column in ("stream", "is", "beats", "first", "last", "waits"):
        table.add_column(column, justify="left" if column in ("stream", "is") else "right")
    for stream in shown:
        ends = [f"{stream.beats[at]}" for at in (0, -1)] if len(stream.beats) else ["", ""]
        count, waits = len(stream.beats), len(stream.waits)
        table.add_row(stream.name, stream.kind, f"{count}", *ends, f"{waits}")
    print_table(table)


def runs(cycles: np.ndarray) -> list[tuple[int, int]]:
    """First cycle and length of each run of neighbouring cycles."""
    parts = np.split(cycles, np.flatnonzero(np.diff(cycles) > 1) + 1) if len(cycles) else []
    return [(int(part[0]), len(part)) for part in parts]


def picture(
    shown: "Sequence[WatchedStream]", cycles: tuple[int, int], title: str, marks: Sequence[Mark]
) -> "Figure":
    """A lane for each stream: cycles with a beat are full, those in which one waits are pale."""
    from golden.evaluation.plots import figure
    from sim.drivers.timeline.watch import INPUT, INSIDE, OUTPUT

    colours = {INPUT: "C0", INSIDE: "C7", OUTPUT: "C2"}
    drawn = figure(8, 1.2 + 0.26 * len(shown) + 0.16 * len(marks))
    axes = drawn.subplots()
    for lane, stream in enumerate(shown):
        for of, alpha in ((stream.beats, 1.0), (stream.waits, 0.25)):
            axes.broken_barh(
                runs(of), (lane - 0.36, 0.72), color=colours[stream.kind], alpha=alpha, linewidth=0
            )
    lanes = [stream.name for stream in shown]
    for number, mark in enumerate(marks, 1):
        lane = lanes.index(mark.stream)
        at = (shown[lane].beats[mark.beat] + 0.5, lane - 0.36)
        axes.annotate(
            f"{number}",
            at,
            (0, 9),
            textcoords="offset points",
            ha="center",
            size=8,
            bbox={"boxstyle": "circle,pad=0.15", "fc": "white", "ec": "C3"},
            arrowprops={"arrowstyle": "-", "color": "C3"},
        )
    axes.set_yticks(range(len(lanes)), lanes, size=8)
    axes.set_ylim(len(lanes) - 0.5, -1.2)
    axes.set_xlim(*cycles)
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(title, size=10)
    told = [f"{number}  {mark.text}" for number, mark in enumerate(marks, 1)]
    below = ["cycle; full: a beat moves, pale: one is offered and waits", *told]
    axes.set_xlabel("\n".join(below), loc="left", size=9)
    return drawn


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "timeline",
        description=(
            "Show in which cycles beats move on the streams of a block and of its sub-blocks, "
            "in a run of Icarus: a table, or a picture with -o. Without --streams inputs come "
            "first, then outputs of sub-blocks, then outputs. With --json a stream has the cycles "
            "of its beats, and first cycle and length of each wait. Outputs are not compared: "
            "`python -m sim run` does that. With all, the first preset of every block, into -o "
            "FILE.json."
        ),
    )
    add_configuration(command, preset="first", everything=True)
    command.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="picture, .svg, .png or .pdf"
    )
    command.add_argument(
        "--vectors", type=vectors, metavar="N", help="transactions (default: 4 at most)"
    )
    command.add_argument(
        "--random", action="store_true", help="random data in place of real data of a trace"
    )
    command.add_argument(
        "--trace", type=Path, metavar="FILE.npz", help="real data (default: the trace that ships)"
    )
    command.add_argument(
        "--stall",
        choices=list(PATTERNS),
        default="none",
        help="stalls of producers and consumers (default: %(default)s)",
    )
    command.add_argument(
        "--memory",
        metavar="TIMING",
        help="timing of the block's memories, as of `python -m sim run` (default: a cycle)",
    )
    command.add_argument(
        "--streams",
        nargs="+",
        default=[],
        metavar="NAME",
        help="show these alone, in this order; one of a sub-block as INSTANCE.STREAM",
    )
    command.add_argument(
        "--depth",
        type=whole,
        default=1,
        metavar="N",
        help="levels of sub-blocks that are looked into (default: %(default)s)",
    )
    command.add_argument("--cycles", type=span, metavar="FIRST:END", help="show these alone")
    command.add_argument(
        "--mark",
        type=Mark.of,
        action="append",
        default=[],
        metavar="STREAM[:BEAT]=TEXT",
        help="number a moment in the picture, a beat of a stream counted from 0, and say what it"
        " is below; may be repeated",
    )
    command.set_defaults(run=timeline_command)
