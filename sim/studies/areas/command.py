"""``python -m sim areas``: the pages of all papers' areas by unit."""

import json
from pathlib import Path

from golden.studies.study import prepare
from sim.core.tools import ROOT, require_checkout
from sim.studies.areas import kllm, lad, topick, veda

PAGES = (kllm.PAGE, veda.PAGE, topick.PAGE, lad.PAGE)


def read() -> list[dict]:
    """Areas that are kept in ``docs/results/synthesis.json``."""
    require_checkout("sim areas")
    return json.loads((ROOT / "docs" / "results" / "synthesis.json").read_text())


def areas_command(arguments) -> int:
    prepare(arguments.output)
    rows = read()
    # All pages are made before one is written: a row that lacks leaves them as they are.
    for study in [page.study(rows) for page in PAGES]:
        print(study.write(arguments.output))
    return 0


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    names = ", ".join(f"{page.name}_area" for page in PAGES)
    parser = commands.add_parser(
        "areas",
        description=(
            "Put the areas of each paper's core by unit beside the paper's table, from rows of "
            "docs/results/synthesis.json that `python -m sim synth --hierarchy --json` printed and "
            "`python -m sim tables --add` kept."
        ),
    )
    parser.add_argument(
        *("-o", "--output"),
        type=Path,
        required=True,
        metavar="FOLDER",
        help=f"write {names}, each as .md and .json, into this folder",
    )
    parser.set_defaults(run=areas_command)
