"""The command ``kllm-cost`` of ``python -m golden``."""

import argparse
from math import inf

from golden import InputError
from golden.algorithms.kllm.cost import MODELS, Core
from golden.studies.kllm_cost.page import NAME, study
from golden.studies.kllm_cost.rates import Setting
from golden.studies.options import add_numbers, add_output, check_numbers, show

MOST = 1 << 14
"""Bound of every whole number."""
DEFAULT = Setting()
CORE = {
    "lanes": (1, DEFAULT.core.lanes, "PE lanes, columns at once"),
    "counters": (
        1,
        DEFAULT.core.counters,
        "counters of 16 inputs in a lane: words of 16 times as many positions",
    ),
    "macs": (1, DEFAULT.core.macs, "bins that a lane reduces in a cycle"),
    "entries": (1, DEFAULT.core.entries, "R, outliers that a lane multiplies in a cycle"),
    "tile": (128, DEFAULT.core.tile, "longest column; longer ones are cut into tiles"),
    "activation-bits": (
        1,
        DEFAULT.core.activation_bits,
        "of indices of activations and of scores, 2 to 6",
    ),
}
"""Options that are fields of a core."""
NUMBERS = CORE | {"tokens": (1, DEFAULT.tokens, "length of the output")}


def register(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "kllm-cost",
        help="speed, energy and area of KLLM's accelerator by the formulas of its core",
        description="Compute the cycles of a decoded token of the paper's models on KLLM's core,"
        " and put a verdict on each figure that the paper's text states: Table I, Figs. 8 to 12.",
    )
    command.add_argument(
        "--model",
        choices=MODELS,
        default=DEFAULT.model,
        metavar="NAME",
        help=f"for what is of one model: {', '.join(MODELS)} (default: %(default)s)",
    )
    add_numbers(command, NUMBERS)
    command.add_argument(
        "--outliers",
        type=float,
        default=100 * DEFAULT.core.share,
        metavar="PERCENT",
        help="outliers of a vector, both ends together (default: %(default)g)",
    )
    command.add_argument(
        "--bandwidth",
        type=float,
        default=inf,
        metavar="GB/S",
        help="of the memory (default: it always keeps up)",
    )
    add_output(command, NAME)
    command.set_defaults(run=run_cost)


def run_cost(arguments: argparse.Namespace) -> None:
    """Print tables or JSON, and write the page. Raises ``InputError`` or ``OSError``."""
    show(study(_setting(arguments)), arguments, "What the paper's text states")


def _setting(arguments: argparse.Namespace) -> Setting:
    check_numbers(arguments, NUMBERS, MOST)
    if not 2 <= arguments.activation_bits <= 6:
        raise InputError(f"--activation-bits: it must be 2 to 6, not {arguments.activation_bits}")
    # Also refuses NaN.
    if not 0 <= arguments.outliers <= 100:
        raise InputError(f"--outliers: it must be 0 to 100 percent, not {arguments.outliers:g}")
    if not (1 <= arguments.bandwidth <= 1e6 or arguments.bandwidth == inf):
        raise InputError(f"--bandwidth: it must be 1 to 1e6 GB/s, not {arguments.bandwidth:g}")
    core = Core(
        **{name: getattr(arguments, name) for name in (x.replace("-", "_") for x in CORE)},
        share=arguments.outliers / 100,
        bandwidth=1e9 * arguments.bandwidth,
    )
    return Setting(core, arguments.model, arguments.tokens)
