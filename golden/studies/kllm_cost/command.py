"""The command ``kllm-cost`` of ``python -m golden``."""

import argparse
from math import inf

from golden import InputError
from golden.algorithms.kllm.cost import MODELS, Core
from golden.lm.commands import at_least
from golden.studies.kllm_cost.page import NAME, study
from golden.studies.kllm_cost.rates import Setting
from golden.studies.study import add_output, show

MOST = 1 << 14
"""Bound of every whole number."""
LEAST_TILE = 128
NUMBERS = {
    "lanes": "PE lanes, columns at once",
    "counters": "counters of 16 inputs in a lane: words of 16 times as many positions",
    "macs": "bins that a lane reduces in a cycle",
    "entries": "R, outliers that a lane multiplies in a cycle",
    "tile": "longest column; longer ones are cut into tiles",
    "activation-bits": "of indices of activations and of scores, 2 to 6",
}
"""Options that are fields of a core."""


def register(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "kllm-cost",
        help="speed, energy and area of KLLM's accelerator by the formulas of its core",
        description="Compute the cycles of a decoded token of the paper's models on KLLM's core,"
        " and put a verdict on each figure that the paper's text states: Table I, Figs. 8 to 12.",
    )
    default = Setting()
    command.add_argument(
        "--model",
        choices=MODELS,
        default=default.model,
        metavar="NAME",
        help=f"for what is of one model: {', '.join(MODELS)} (default: %(default)s)",
    )
    for name, text in NUMBERS.items():
        command.add_argument(
            f"--{name}",
            type=at_least(LEAST_TILE if name == "tile" else 1),
            default=getattr(default.core, name.replace("-", "_")),
            metavar="N",
            help=f"{text} (default: %(default)s)",
        )
    command.add_argument(
        "--tokens",
        type=at_least(1),
        default=default.tokens,
        metavar="N",
        help="length of the output (default: %(default)s)",
    )
    command.add_argument(
        "--outliers",
        type=float,
        default=100 * default.core.share,
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
    fields = [name.replace("-", "_") for name in NUMBERS]
    for name in (*fields, "tokens"):
        if getattr(arguments, name) > MOST:
            raise InputError(f"--{name.replace('_', '-')}: it must be at most {MOST}")
    if not 2 <= arguments.activation_bits <= 6:
        raise InputError(f"--activation-bits: it must be 2 to 6, not {arguments.activation_bits}")
    # Also refuses NaN.
    if not 0 <= arguments.outliers <= 100:
        raise InputError(f"--outliers: it must be 0 to 100 percent, not {arguments.outliers:g}")
    if not (1 <= arguments.bandwidth <= 1e6 or arguments.bandwidth == inf):
        raise InputError(f"--bandwidth: it must be 1 to 1e6 GB/s, not {arguments.bandwidth:g}")
    core = Core(
        **{name: getattr(arguments, name) for name in fields},
        share=arguments.outliers / 100,
        bandwidth=1e9 * arguments.bandwidth,
    )
    return Setting(core, arguments.model, arguments.tokens)
