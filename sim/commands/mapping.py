"""What `sim energy` and `sim layout` share: a block mapped in pieces, and the core of its cells."""

import argparse
import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.commands.arguments import count
from sim.synth.flow import MODES
from sim.synth.placement import Core

if TYPE_CHECKING:
    from sim.synth.flow import Mapped

PIECES = 1000
MODE = "speed"
"""Without buffers, as for the smallest area, a net of large fan-out takes so long that neither
glitches nor wires say anything about a design at its clock."""


def add_mapping(command: argparse.ArgumentParser) -> None:
    """The arguments that say how to map a block."""
    command.add_argument(
        "--liberty",
        default="nangate45",
        metavar="FILE.lib",
        help="cell library; nangate45 is fetched once (default: %(default)s)",
    )
    command.add_argument(
        "--mode",
        choices=MODES,
        default=MODE,
        help="mapping, as of `sim synth` (default: %(default)s)",
    )
    command.add_argument(
        "--pieces",
        type=count,
        default=PIECES,
        metavar="GATES",
        help="map sub-modules of at least this many gates separately (default: %(default)s)",
    )


@functools.cache
def library_of(name: str) -> tuple[str, str]:
    """Path and hash of a cell library."""
    from golden.files import file_sha256
    from sim.synth import libraries

    path = libraries.find(name).path
    return str(path), file_sha256(path)


@functools.lru_cache(maxsize=1)
def mapped(
    name: str, parameters: Any, library: str, sha256: str, mode: str, pieces: int
) -> "Mapped":
    """A block mapped in pieces.

    sha256
        Hash of the library's content.
    pieces
        Gates from which on a sub-module is one.

    :raises SynthesisError: if it cannot be mapped.
    """
    from hw.catalogue import find
    from hw.emit.export import to_rtlil
    from sim.synth import liberty
    from sim.synth.flow import Mapper

    rtlil = to_rtlil(find(name, parts=True).create(parameters), "unit")
    with tempfile.TemporaryDirectory(prefix="mapped_") as scratch:
        cells = liberty.read(Path(library))
        return Mapper(rtlil, "unit", cells, Path(scratch), pieces).map(mode)


def add_core(command: argparse.ArgumentParser) -> None:
    """The arguments that describe the area that cells are placed in."""
    plain = Core()
    command.add_argument(
        "--utilisation",
        type=share,
        default=plain.utilisation,
        metavar="SHARE",
        help="of the core that cells take, 0.1 to 0.95 (default: %(default)s)",
    )
    command.add_argument(
        "--site",
        type=site,
        metavar="NAME=WIDTHxHEIGHT",
        help="site of the library's rows, in um, as its LEF file has it; needed for a --liberty"
        f" other than nangate45, whose site is {plain.width:g}x{plain.height:g}",
    )


def core_of(arguments) -> Core:
    """
    :raises ParameterError: for another library than nangate45 without its site.
    """
    from hw.parameters import ParameterError
    from sim.synth.libraries import NANGATE45

    if arguments.site is None and arguments.liberty != NANGATE45:
        raise ParameterError(f"--liberty {arguments.liberty} needs --site: a library does not say")
    core = arguments.site or Core()
    return dataclasses.replace(core, utilisation=arguments.utilisation)


def share(text: str) -> float:
    """A share of the core, as an argparse type."""
    return _number(text, 0.1, 0.95, "a share from 0.1 to 0.95")


def capacitance(text: str) -> float:
    """Capacitance of wires in fF per µm, as an argparse type."""
    return _number(text, 0.0, 10.0, "fF per um from 0 to 10")


def site(text: str) -> Core:
    """Name and size of a site, as an argparse type."""
    name, _, size = text.partition("=")
    width, _, height = size.partition("x")
    what = "a name and um, such as unithd=0.46x2.72"
    if not name or any(character.isspace() for character in name):
        raise argparse.ArgumentTypeError(f"must be {what}, not {text}")
    sizes = [_number(number, 0.01, 100.0, what) for number in (width, height)]
    return Core(name, sizes[0], sizes[1], layers=None)


def _number(text: str, least: float, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"must be {what}, not {text or 'nothing'}")
    return value
