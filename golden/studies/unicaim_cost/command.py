"""The command ``unicaim-cost`` of ``python -m golden``."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from golden import InputError
from golden.algorithms.unicaim.cost import ArrayShape, Constants, delay_ns, energy_pj
from golden.files import json_text
from golden.studies.options import add_numbers, add_output, check_numbers, show
from golden.studies.unicaim_cost.page import NAME, study
from golden.studies.unicaim_cost.report import difference, read_counts
from golden.studies.unicaim_cost.sweeps import Setting

MOST = 1 << 17
"""Bound of every number of tokens, rows, elements, heads or steps."""

DEFAULT = Setting()
NUMBERS = {
    "prompt": (0, DEFAULT.prompt, "length of the input"),
    "generated": (1, DEFAULT.generated, "length of the output"),
    "heavy": (0, DEFAULT.shape.heavy, "rows for the prompt with static pruning"),
    "reserved": (0, DEFAULT.shape.reserved, "rows for generated tokens with static pruning"),
    "d": (1, DEFAULT.shape.d, "elements of a key"),
    "kept": (0, DEFAULT.kept, "percent of the rows in use that dynamic pruning selects"),
    "heads": (1, DEFAULT.heads, "query heads that share the array"),
    "search-steps": (1, DEFAULT.search_steps, "steps of a head's search; digital array: 11"),
}


def register(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser's."""
    listed = "\n".join(
        f"  {field.name} = {field.default:g} {field.metadata['unit']}".rstrip()
        + f" ({field.metadata['basis']})"
        for field in dataclasses.fields(Constants)
    )
    command = commands.add_parser(
        "unicaim-cost",
        help="devices, energy and delay of UniCAIM's array by an analytical model",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Compute UniCAIM's device counts, energy and delay of a decode step from counts"
        "\nof rows, conversions, search steps and writes, with static and dynamic pruning, and\n"
        "compare them with the ratios that the paper's text states.",
        epilog=f"constants (--set NAME=VALUE) and where they come from:\n{listed}",
    )
    add_numbers(command, NUMBERS)
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value of a constant, once for each",
    )
    command.add_argument(
        "--counts",
        type=Path,
        metavar="FILE",
        help="energy and delay for the counts of the core's reports: a JSON list of objects with"
        " rows, heads, search_steps, conversions and, if wanted, written, evicted, k",
    )
    add_output(command, NAME)
    command.set_defaults(run=run_cost)


def run_cost(arguments: argparse.Namespace) -> None:
    """Print tables or JSON, and write the page. Raises ``InputError`` or ``OSError``."""
    setting = _setting(arguments)
    if arguments.counts is not None:
        if arguments.output is not None:
            raise InputError("--counts: it writes no page; give --counts or --output")
        _print_report(arguments, setting)
        return
    show(study(setting), arguments, "Ratios that the paper's text states")


def _setting(arguments: argparse.Namespace) -> Setting:
    if not 1 <= arguments.kept <= 100:
        raise InputError(f"--kept: it must be 1 to 100 percent, not {arguments.kept}")
    check_numbers(arguments, NUMBERS, MOST)
    try:
        shape = ArrayShape(heavy=arguments.heavy, reserved=arguments.reserved, d=arguments.d)
    except ValueError as error:
        raise InputError(str(error)) from None
    given = ("prompt", "generated", "kept", "heads", "search_steps")
    return Setting(
        shape=shape,
        constants=parse_constants(arguments.set),
        **{name: getattr(arguments, name) for name in given},
    )


def parse_constants(assignments: list[str]) -> Constants:
    """Constants of which some are given as NAME=VALUE. Raises ``InputError``."""
    fields = {field.name: field for field in dataclasses.fields(Constants)}
    given: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set: give NAME=VALUE, not {text}")
        if name not in fields:
            raise InputError(f"--set: there is no constant {name}; known: {', '.join(fields)}")
        try:
            given[name] = int(value) if fields[name].type is int else float(value)
        except ValueError:
            kind = "whole number" if fields[name].type is int else "number"
            raise InputError(f"--set: {name} must be a {kind}, not {value}") from None
    try:
        return Constants(**given)
    except ValueError as error:
        raise InputError(f"--set: {error}") from None


def _print_report(arguments: argparse.Namespace, setting: Setting) -> None:
    counts, k = read_counts(arguments.counts)
    energy = energy_pj(counts, setting.shape, setting.constants)
    delay = delay_ns(counts, setting.shape, setting.constants)
    result = {
        "steps": len(energy),
        "conversions": int(np.sum(counts.conversions)),
        "search_steps": int(np.sum(counts.search_steps)),
        "written": int(np.sum(counts.written)),
        "evicted": int(np.sum(counts.evicted)),
        "energy_pj": float(energy.mean()),
        "delay_ns": float(delay.mean()),
        "difference": None if k is None else difference(counts, k, setting.search_steps),
    }
    if arguments.json:
        print(json_text(result))
        return
    print(
        f"{result['steps']} steps: {result['conversions']} conversions, {result['search_steps']}"
        f" search steps, {result['written']} rows written, {result['evicted']} evicted;"
        f" mean {result['energy_pj']:.0f} pJ, {result['delay_ns']:.0f} ns"
    )
    if k is not None:
        print(result["difference"] or "conversions and search steps are those of the formula")
