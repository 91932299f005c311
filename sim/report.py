"""`python -m sim report`: every block in every simulator, as a table and as one HTML page."""

import base64
import concurrent.futures
import dataclasses
import datetime
import importlib.metadata
import io
import itertools
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import jinja2
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from golden.files import replacing
from hw.catalogue import BLOCKS, Block, configurations, select
from sim import tools
from sim.arguments import count
from sim.cocotb_runner import SIMULATORS
from sim.design import generate
from sim.run import RunResult, Simulation, add, bench_of, jobs_of, load_trace
from sim.stall import PATTERNS
from sim.verilated import HUGE

TEMPLATE = Path(__file__).with_name("report.html")


@dataclasses.dataclass
class Row:
    """One line of the table: a configuration in a simulator, under every stall pattern.

    cycles, predicted
        Of the runs without stalls.
    """

    block: str
    preset: str
    simulator: str
    vectors: int = 0
    mismatches: int = 0
    cycles: int = 0
    predicted: int = 0
    wall_s: float = 0.0
    verdict: str = "pass"
    reason: str = ""


def run_row(block: Block, preset: str, simulator: str, trace, vectors: int | None) -> Row:
    """Real and random data under every stall pattern in one simulator."""
    row = Row(block.name, preset, simulator)
    driver = "cocotb" if tools.has_cocotb() else "harness"
    if simulator == "icarus" and not tools.has_icarus():
        row.verdict, row.reason = "SKIPPED", f"Icarus is not installed; {tools.ICARUS_ADVICE}"
        return row
    if driver == "harness":
        row.reason = (
            f"cocotb lacks {tools.LIBPYTHON}, so Verilator ran by the compiled harness and Icarus "
            f"not at all; {tools.COCOTB_ADVICE}"
        )
        if simulator == "icarus":
            row.verdict = "SKIPPED"
            return row
    started = time.monotonic()
    parameters = block.parameters_class.preset(preset)
    design = generate(block, parameters)
    simulation = Simulation(design, simulator, driver)
    vectors = vectors or bench_of(block).default_vectors(parameters)
    result = RunResult(block.name, preset, simulator, driver, 1, "all")
    plays = list(itertools.product(jobs_of(block, parameters, trace, vectors, seed=1), PATTERNS))
    for (job, stall), outcome in zip(plays, simulation.play(plays, seed=1), strict=True):
        add(result, job, stall, *outcome)
    row.vectors, row.mismatches = result.transactions, result.mismatches
    row.cycles, row.predicted = result.cycles, result.predicted
    if not result.passed:
        said = [result.first_mismatch, *result.failures, "no transaction was compared"]
        row.verdict, row.reason = "FAIL", next(filter(None, said))
    row.wall_s = round(time.monotonic() - started, 1)
    return row


def run_rows(jobs: list[tuple[Block, str, str]], trace, vectors: int | None, processes: int):
    """The rows of (block, preset, simulator) as they are done, each with its place in `jobs`."""
    if processes == 1:
        for place, job in enumerate(jobs):
            yield place, run_row(*job, trace, vectors)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context) as pool:
        # Not all at once, or an interrupt would wait for them all.
        waiting = enumerate(jobs)
        running = {}
        while True:
            for place, job in itertools.islice(waiting, processes - len(running)):
                running[pool.submit(run_row, *job, trace, vectors)] = place
            if not running:
                return
            done, _ = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
            for future in done:
                yield running.pop(future), future.result()


def picture(block: Block, trace) -> tuple[str, str]:
    """A block's picture on the default preset as an SVG data URI, and its caption."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    parameters = block.parameters_class.preset("default")
    caption = bench_of(block).picture(parameters, trace, figure)
    file = io.BytesIO()
    figure.savefig(file, format="svg")
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode(), caption


def write_page(rows: list[Row], blocks: list[Block], trace, folder: Path) -> Path:
    """The self-contained page ``index.html``."""
    pictures = []
    for block in blocks:
        image, caption = picture(block, trace)
        pictures.append({"block": block, "image": image, "caption": caption})
    versions = {
        name: importlib.metadata.version(name) for name in ("amaranth", "cocotb", "verilator")
    }
    page = jinja2.Template(TEMPLATE.read_text(), autoescape=True).render(
        rows=rows,
        pictures=pictures,
        versions=versions,
        trace=trace.meta,
        date=datetime.date.today().isoformat(),
    )
    path = folder / "index.html"
    with replacing(path) as file:
        file.write(page.encode())
    return path


def print_table(rows: list[Row]) -> None:
    table = Table(title="RTL against golden models: real and random data, with and without stalls")
    for heading in ("block", "preset", "simulator"):
        table.add_column(heading)
    for heading in ("vectors", "mismatches", "cycles", "formula"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in rows:
        colour = {"pass": "green", "FAIL": "bold red"}.get(row.verdict, "yellow")
        numbers = (row.vectors, row.mismatches, row.cycles, row.predicted)
        table.add_row(
            row.block,
            row.preset,
            row.simulator,
            *map(str, numbers),
            f"[{colour}]{row.verdict}[/]",
        )
    # Never narrower than the table, or piped output would lose columns.
    console = Console()
    Console(width=max(console.width, 110)).print(table)
    for reason in dict.fromkeys(row.reason for row in rows if row.reason):
        print(f"*** {reason}")


def affordable(block: Block, preset: str, simulator: str) -> bool:
    """Whether a report on all blocks has it: huge designs only at first preset, in Verilator."""
    first = preset == block.parameters_class.preset_name("first")
    if first and simulator == "verilator":
        return True
    return generate(block, block.parameters_class.preset(preset)).instances < HUGE


def report_command(arguments) -> int:
    trace = load_trace(arguments.trace)
    blocks = select(arguments.block)
    chosen = configurations(arguments.block, arguments.presets)
    jobs = [(*configuration, simulator) for configuration in chosen for simulator in SIMULATORS]
    left_out = [] if len(blocks) == 1 else [job for job in jobs if not affordable(*job)]
    jobs = [job for job in jobs if job not in left_out]
    arguments.output.mkdir(parents=True, exist_ok=True)
    found = {}
    processes = max(1, min(arguments.jobs, len(jobs)))
    with tqdm(total=len(jobs), unit="run", disable=arguments.json or None, file=sys.stderr) as bar:
        for place, row in run_rows(jobs, trace, arguments.vectors, processes):
            found[place] = row
            bar.set_description(f"{row.block} {row.preset} {row.simulator}")
            bar.update()
    rows = [found[place] for place in sorted(found)]
    path = write_page(rows, blocks, trace, arguments.output)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    else:
        print_table(rows)
        if left_out:
            names = ", ".join(
                f"{block.name} {preset} in {tool}" for block, preset, tool in left_out
            )
            print(f"left out, taking minutes each (name the block to run it): {names}")
        print(f"wrote {path}")
    failed = [row for row in rows if row.verdict == "FAIL"]
    return 1 if failed or not rows else 0


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "report",
        help="run every block in every simulator and write a page about it",
        description=(
            "Run blocks in both simulators on real and random data, with and without stalls; "
            "print a table and write one self-contained HTML page with pictures. Exits 1 if "
            "anything differs from the golden model or from the cycle formula."
        ),
    )
    names = ", ".join(block.name for block in BLOCKS)
    command.add_argument("block", nargs="?", default="all", help=f"all, or one of {names}")
    command.add_argument(
        "--presets",
        type=lambda text: text.split(","),
        default=["first"],
        metavar="P,Q",
        help="presets to run (default: first, the smallest; large ones compile for minutes)",
    )
    command.add_argument(
        "--jobs",
        type=count,
        default=os.cpu_count(),
        metavar="N",
        help="runs at a time (default: %(default)s, the processors)",
    )
    command.add_argument(
        "--trace", type=Path, metavar="FILE.npz", help="real data (default: the trace that ships)"
    )
    command.add_argument(
        "--vectors", type=count, metavar="N", help="transactions of each kind in each run"
    )
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        default=tools.build_folder() / "report",
        metavar="DIR",
        help="folder for index.html (default: build/report)",
    )
    command.add_argument("--json", action="store_true", help="print JSON on standard output")
    command.set_defaults(run=report_command)
