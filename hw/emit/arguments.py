"""Command-line arguments that ``python -m hw`` and ``python -m sim`` share."""

import argparse


def add_set(command: argparse.ArgumentParser, form: str = "NAME=VALUE") -> None:
    """Add ``--set``, whose values :meth:`hw.parameters.Parameters.replace_from_text` takes.

    form
        Form of a value, for the help.
    """
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar=form,
        help="change one parameter of the preset; may be repeated",
    )


def add_configuration(command: argparse.ArgumentParser, preset: str = "preset name") -> None:
    """Add the options ``--preset`` and ``--set``.

    preset
        What a preset's name may be, for the help.
    """
    command.add_argument("--preset", default="default", help=f"{preset} (default: %(default)s)")
    add_set(command)
