"""`python -m hw package`: a block behind AXI, with all that a user of it needs."""

import argparse
from pathlib import Path
from typing import cast

from hw.bus.accelerator import BusParameters
from hw.bus.device import device_design
from hw.catalogue import find
from hw.emit.arguments import add_configuration
from hw.emit.export import check_writable
from hw.emit.progress import Progress
from hw.package.package import package, write_package

DESCRIPTION = """\
Write a block as a memory-mapped device: Verilog with an AXI4-Lite slave and AXI4
masters, a JSON sidecar, a C header, a Python driver, SystemRDL, IP-XACT, a FuseSoC
core, a LiteX module and a page about them. docs/buses.md says how a device works.
"""


def register(commands) -> None:
    """Add the command to the parser's."""
    command = commands.add_parser(
        "package",
        help="one block behind AXI: Verilog, C header, drivers, descriptions",
        description=DESCRIPTION,
        epilog="Example: python -m hw package veda.veda_core --preset small --bus data=128 -o veda",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("block", help="block name as in `python -m hw list`")
    add_configuration(command)
    command.add_argument(
        "--bus",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change one parameter of the AXI4 side: data, address, masters (one or each), burst,"
        " bursts, reads, writes; may be repeated",
    )
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for the files",
    )
    command.set_defaults(run=run)


def run(arguments) -> None:
    block = find(arguments.block)
    preset = block.parameters_class.preset_name(arguments.preset)
    parameters = block.parameters_class.preset(preset).replace_from_text(arguments.set)
    bus = cast(BusParameters, BusParameters().replace_from_text(arguments.bus))
    check_writable(arguments.output)
    with Progress(1) as progress:
        progress.step(f"{block.name}: writing Verilog")
        design = device_design(block, parameters, bus)
        for path in write_package(package(design), arguments.output):
            progress.print(str(path))
        progress.done()
