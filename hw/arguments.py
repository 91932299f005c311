"""Command-line arguments that ``python -m hw`` and ``python -m sim`` share."""

import argparse


def add_set(command: argparse.ArgumentParser) -> None:
    """Add ``--set``, whose values :meth:`hw.parameters.Parameters.replace_from_text` takes."""
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change one parameter of the preset; may be repeated",
    )
