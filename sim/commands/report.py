"""``python -m sim report``: every block in every simulator, as a table and as one page."""

import base64
import dataclasses
import functools
import io
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from golden.files import file_sha256
from hw.catalogue import Block, configurations, find, select
from sim.commands.arguments import add_execution, count, execution
from sim.commands.page import in_words, write_page
from sim.commands.terminal import print_table
from sim.core import tools
from sim.core.design import Design, generate
from sim.core.jobs import executor
from sim.core.result import formula
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Outcome, ShownRun, Stimulus
from sim.drivers.cocotb.runner import SIMULATORS
from sim.drivers.harness.verilated import HUGE
from sim.drivers.run import RunResult, Simulation, add, load_testbench, load_trace, stimuli_of

SEED = 1


@dataclasses.dataclass
class Row:
    """One line of the table: a configuration in a simulator, under every stall pattern.

    cycles, predicted, fewest
        Cycles of the runs without stalls.
    seed
        Seed of the random data and stalls.
    picture
        Picture of the run with real data and no stalls: ``image``, ``caption``, ``parameters``.
    """

    block: str
    preset: str
    simulator: str
    driver: str
    vectors: int = 0
    mismatches: int = 0
    cycles: int = 0
    predicted: int | None = 0
    fewest: int | None = 0
    wall_s: float = 0.0
    verdict: str = "pass"
    reason: str = ""
    seed: int = SEED
    picture: dict | None = None

    @property
    def anchor(self) -> str:
        """Its name in links."""
        return f"{self.block}-{self.preset}-{self.simulator}"

    @property
    def formula(self) -> str:
        """Its cycles by the formula: one number, a band, or a dash without one."""
        return formula(self.fewest, self.predicted) or "–"

    def as_json(self) -> dict:
        """Everything but the picture."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k != "picture"}


def run_row(
    block: Block,
    preset: str,
    simulator: str,
    trace,
    vectors: int | None,
    driver: str = "cocotb",
    stalls: Sequence[str] = (),
) -> Row:
    """Real and random data in one simulator, under every stall pattern unless some are named."""
    lacking = not tools.has_cocotb()
    if lacking:
        driver = "harness"
    row = Row(block.name, preset, simulator, driver)
    if simulator == "icarus" and not tools.has_icarus():
        row.verdict, row.reason = "SKIPPED", f"Icarus is not installed; {tools.ICARUS_ADVICE}"
        return row
    if lacking:
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
    vectors = vectors or load_testbench(block).default_vectors(parameters)
    result = RunResult(block.name, preset, simulator, driver, SEED, "all")
    runs = list(
        itertools.product(stimuli_of(block, parameters, trace, vectors, SEED), stalls or PATTERNS)
    )
    outcomes = simulation.run(runs, SEED)
    for (stimulus, stall), outcome in zip(runs, outcomes, strict=True):
        add(result, stimulus, stall, *outcome)
    row.vectors, row.mismatches = result.transactions, result.mismatches
    row.cycles, row.predicted, row.fewest = result.cycles, result.predicted, result.fewest
    if not result.passed:
        said = [result.first_mismatch, *result.failures, "no transaction was compared"]
        row.verdict, row.reason = "FAIL", next(filter(None, said))
    elif simulator == "verilator":
        # The first run has real data and no stalls; its outputs are the model's, bit for bit.
        row.picture = picture(design, runs[0][0], outcomes[0][0])
    row.wall_s = round(time.monotonic() - started, 1)
    return row


def run_task(
    name: str,
    preset: str,
    simulator: str,
    driver: str,
    trace: Path | None,
    sha256: str,
    vectors: int | None,
) -> Row:
    """One task of a report: :func:`run_row` by names.

    trace
        Path of a file with the hash `sha256`; None for the one that ships.
    """
    return run_row(find(name), preset, simulator, _trace(trace), vectors, driver)


_trace = functools.cache(load_trace)


def picture(design: Design, stimulus: Stimulus, outcome: Outcome) -> dict | None:
    """A run's picture as an SVG data URI with caption and parameters; None if it has none."""
    testbench = load_testbench(design.block)
    if not hasattr(testbench, "shown"):
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    caption = testbench.shown(ShownRun.of(design, stimulus, outcome), figure)
    file = io.BytesIO()
    figure.savefig(file, format="svg")
    return {
        "image": "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode(),
        "caption": caption,
        "parameters": in_words(design.parameters),
    }


TITLE = "RTL against bit-exact models: real and random data, with and without stalls"


def print_rows(rows: list[Row], title: str = TITLE) -> None:
    table = Table(title=title)
    table.add_column("block", overflow="fold")
    for heading in ("preset", "simulator", "driver"):
        table.add_column(heading)
    for heading in ("vectors", "mismatches", "cycles", "formula"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in rows:
        colour = {"pass": "green", "FAIL": "bold red"}.get(row.verdict, "yellow")
        numbers = (row.vectors, row.mismatches, row.cycles, row.formula)
        table.add_row(
            row.block,
            row.preset,
            row.simulator,
            row.driver,
            *map(str, numbers),
            f"[{colour}]{row.verdict}[/]",
        )
    print_table(table)
    for reason in dict.fromkeys(row.reason for row in rows if row.reason):
        print(f"*** {reason}")


def affordable(block: Block, preset: str, simulator: str) -> bool:
    """Whether a report on all blocks runs it: huge designs only at first preset in Verilator."""
    first = preset == block.parameters_class.preset_name("first")
    if first and simulator == "verilator":
        return True
    return generate(block, block.parameters_class.preset(preset)).instances < HUGE


def report_command(arguments) -> int:
    trace = load_trace(arguments.trace)
    blocks = select(arguments.block)
    chosen = configurations(arguments.block, arguments.presets)
    runs = [(*configuration, simulator) for configuration in chosen for simulator in SIMULATORS]
    left_out = [] if len(blocks) == 1 else [run for run in runs if not affordable(*run)]
    runs = [run for run in runs if run not in left_out]
    output = arguments.output or tools.build_folder() / "report"
    tools.require_writable(output, folder=True)
    output.mkdir(parents=True, exist_ok=True)
    path, sha256 = arguments.trace, ""
    if path is not None:
        path = path.resolve()
        sha256 = file_sha256(path)
    tasks = []
    for block, preset, simulator in runs:
        # Icarus has no other driver.
        driver = arguments.driver if simulator == "verilator" else "cocotb"
        what = (block.name, preset, simulator, driver, path, sha256, arguments.vectors)
        tasks.append(executor.Task(f"{block.name} {preset} {simulator}", run_task, what))
    found, kept = {}, 0
    for outcome in executor.execute(
        tasks,
        keep=lambda row: row.verdict == "pass",
        quiet=arguments.json,
        **execution(arguments),
    ):
        found[outcome.task] = outcome.result()
        kept += outcome.kept
    rows = [found[task] for task in tasks]
    path = write_page(output, rows, blocks, trace.meta)
    if arguments.json:
        print(json.dumps([row.as_json() for row in rows], indent=2))
    else:
        print_rows(rows)
        if left_out:
            names = ", ".join(
                f"{block.name} {preset} in {tool}" for block, preset, tool in left_out
            )
            print(f"left out, taking minutes each (name the block to run it): {names}")
        if kept:
            print(f"{kept} of {len(rows)} rows were kept by an earlier run; --fresh repeats them")
        print(f"wrote {path}")
    failed = [row for row in rows if row.verdict == "FAIL"]
    return 1 if failed or not rows else 0


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "report",
        description=(
            "Run blocks in both simulators on real and random data, with and without stalls; "
            "print a table and write one self-contained HTML page with pictures. Exits 1 if an "
            "output differs from the golden model or a cycle count from the formula."
        ),
    )
    command.add_argument(
        "block",
        nargs="?",
        default="all",
        help="block name as in `python -m hw list`, or all (default)",
    )
    command.add_argument(
        "--presets",
        type=lambda text: text.split(","),
        default=["first"],
        metavar="P,Q",
        help="presets to run (default: first, the smallest; large ones compile for minutes)",
    )
    command.add_argument(
        "--driver",
        choices=("harness", "cocotb"),
        default="harness",
        help="driver for Verilator: the compiled harness, which compiles and runs faster "
        "(default), or cocotb, which is always used for Icarus",
    )
    add_execution(command)
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
        metavar="DIR",
        help="folder for index.html (default: report in the build folder)",
    )
    command.add_argument("--json", action="store_true", help="print JSON on standard output")
    command.set_defaults(run=report_command)
