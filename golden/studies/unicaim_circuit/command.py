"""The command ``unicaim-circuit`` of ``python -m golden``."""

import argparse
import dataclasses

from golden import InputError
from golden.studies.options import add_output, show
from golden.studies.study import prepare
from golden.studies.unicaim_circuit.measure import measure
from golden.studies.unicaim_circuit.page import NAME, study
from golden.studies.unicaim_circuit.setting import Setting
from golden.unicaim.sense_line import LineParameters

SET = [field for field in dataclasses.fields(LineParameters) if field.type is float]
"""Constants that may be chosen; the study tries both rules, with cells of 1 and 3 bits."""
MOST_MV = 1000.0


def register(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser's."""
    listed = "\n".join(f"  {field.name} = {field.default:g}" for field in SET)
    command = commands.add_parser(
        "unicaim-circuit",
        help="UniCAIM's sense line as a circuit: currents, times, linearity, recall",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Draw Figs. 5 to 9 of UniCAIM by a circuit of its sense line, and tell what"
        " spread of devices,\ndetectors and a late stop cost on a real model's keys. Takes a"
        " minute.",
        epilog="constants of the line (--set NAME=VALUE), in V, A, F and 1/V, and defaults:\n"
        + listed,
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value of a constant, once for each",
    )
    for name, text in (
        ("spread-mv", "standard deviation of the devices' thresholds, mV"),
        ("detector-mv", "standard deviation of the detectors' thresholds, mV"),
    ):
        default = getattr(Setting(), name.replace("-", "_"))
        command.add_argument(
            f"--{name}",
            type=float,
            default=default,
            metavar="MV",
            help=f"{text} (default: {default:g})",
        )
    add_output(command, NAME)
    command.set_defaults(run=run_circuit)


def run_circuit(arguments: argparse.Namespace) -> None:
    """Print tables or JSON, and write the page. Raises ``InputError`` or ``OSError``."""
    spread, detector = arguments.spread_mv, arguments.detector_mv
    if not 0 < spread <= MOST_MV:
        raise InputError(f"--spread-mv: it must be above 0 and at most {MOST_MV:g}, not {spread:g}")
    if not 0 <= detector <= MOST_MV:
        raise InputError(f"--detector-mv: it must be 0 to {MOST_MV:g}, not {detector:g}")
    setting = Setting(parse_line(arguments.set), spread, detector)
    if arguments.output is not None:
        prepare(arguments.output)
    try:
        data = measure(setting)
    except ValueError as error:
        raise InputError(f"this circuit does not work: {error}") from None
    show(study(data), arguments, "Claims of the paper")


def parse_line(assignments: list[str]) -> LineParameters:
    """Constants of which some are given as NAME=VALUE. Raises ``InputError``."""
    known = [field.name for field in SET]
    given: dict[str, float] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set: give NAME=VALUE, not {text}")
        if name not in known:
            raise InputError(f"--set: there is no constant {name}; known: {', '.join(known)}")
        try:
            given[name] = float(value)
        except ValueError:
            raise InputError(f"--set: {name} must be a number, not {value}") from None
    try:
        return LineParameters(**given)  # type: ignore[arg-type]
    except ValueError as error:
        raise InputError(f"--set: {error}") from None
