"""`python -m sim demo`: a text through the RTL, the papers' blocks beside it, and their page."""

import contextlib
import sys
from pathlib import Path

from golden import InputError
from sim.commands.generate import Teller, add_story, request_of, summary

CAPACITY = 24
"""Rows kept, few enough that the demo's text is longer."""
VECTORS = 20
"""Transactions of each kind in each run of a block."""
COSTLY = {"kllm.kllm_core": "compiles for a minute"}
"""Main blocks that the demo leaves out, and why."""


def demo_command(arguments) -> int:
    from hw.catalogue import blocks, find
    from sim.commands.engines.speak import Speaker
    from sim.commands.page import write_page
    from sim.commands.report import print_rows, run_task
    from sim.commands.tables import OVERVIEW
    from sim.core import tools
    from sim.core.jobs.background import Background
    from sim.core.jobs.executor import Task
    from sim.drivers.run import load_trace

    output = arguments.output or tools.build_folder() / "report"
    tools.require_writable(output, folder=True)
    request = request_of(arguments)
    if request.more:
        raise InputError("the demo tells one text: give --prompt or --chat once")
    names = [row.block for row in OVERVIEW if row.block not in COSTLY]
    tasks = []
    for name in names:
        preset = find(name).parameters_class.preset_name("first")
        what = (name, preset, "verilator", "harness", None, "", VECTORS)
        tasks.append(Task(name, run_task, what))
    with Background(
        tasks, jobs=1, fresh=arguments.fresh, keep=lambda row: row.verdict == "pass"
    ) as background:
        teller = Teller()

        def status(text: str) -> None:
            teller.status(f"{text} (blocks: {background.done} of {len(tasks)})")

        with teller:
            speaker = Speaker(request, status)
            teller.begin(speaker)
            story = speaker.speak(teller.piece)
        print(f"\n{summary(story.result)}\n", flush=True)
        found = {}
        for outcome in background.outcomes():
            found[outcome.task] = outcome.result()
            say(f"block {len(found)} of {len(tasks)}: {outcome.task.name}")
    rows = [found[task] for task in tasks]
    title = "Blocks of the papers, smallest preset: real and random data, with and without stalls"
    print_rows(rows, title)
    left_out = [
        f"{name} {why}, so it is left out: .venv/bin/python -m sim report {name}"
        for name, why in COSTLY.items()
    ]
    output.mkdir(parents=True, exist_ok=True)
    path = write_page(output, rows, blocks(), load_trace(None).meta, story, left_out=left_out)
    print("\n".join([*left_out, "", WHERE_NEXT, f"The page of this run: {path}"]))
    return int(any(row.verdict == "FAIL" for row in rows))


WHERE_NEXT = """\
Where to look next:
  make test                                          the whole test suite
  make sim                                           every block, in both simulators
  .venv/bin/python -m sim generate --prompt "…"      your own text; --linear kllm.kllm_core: the
                                                     matrix products in RTL too
  .venv/bin/python -m hw show veda.veda_core         a block's parameters and ports
  .venv/bin/python -m hw verilog veda.veda_core -o build/verilog
"""


def say(text: str) -> None:
    """Progress, on standard error."""
    end = "\r" if sys.stderr.isatty() else "\n"
    with contextlib.suppress(BrokenPipeError):
        print(f"\033[2K{text}" if end == "\r" else text, end=end, file=sys.stderr, flush=True)


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "demo",
        description=(
            "Continue a text by a language model whose attention is RTL; meanwhile run the papers'"
            " blocks; print both and write a page about them. Exits 1 if a bit or a cycle differs."
        ),
    )
    add_story(command)
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="folder for index.html (default: report in the build folder)",
    )
    command.add_argument(
        "--fresh", action="store_true", help="run every block again, even if its result is kept"
    )
    command.set_defaults(
        run=demo_command,
        capacity=CAPACITY,
        check="all",
        verilog=[],
        trust=False,
    )
