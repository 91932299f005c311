"""``python -m sim layout``: cells of a block in rows, and what their wires do to its delay."""

import argparse
import dataclasses
import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from golden.files import replacing
from sim.commands.arguments import add_configuration, configuration
from sim.commands.mapping import (
    add_core,
    add_mapping,
    capacitance,
    core_of,
    library_of,
    mapped,
)
from sim.commands.stages import Stages
from sim.core.result import configuration_name
from sim.core.tools import require_writable
from sim.synth.placement import Placement, place
from sim.synth.wires import FF_PER_UM, Wires

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.synth.flow import Mapped
    from sim.synth.liberty import Library

FORMATS = ("png", "svg", "pdf")
COLOURS = 9
"""Number of sub-modules with a colour; smaller ones share the last."""


def layout_command(arguments) -> int:
    """Run the command.

    :raises ToolError: for a library, a core or a file that cannot be used.
    """
    from hw.parameters import ParameterError
    from sim.synth import def_file, liberty

    block, parameters = configuration(arguments)
    if block.synthesizable_as:
        raise ParameterError(
            f"{block.name} is for simulation only, place {block.synthesizable_as} instead"
        )
    if arguments.picture and arguments.picture.suffix[1:] not in FORMATS:
        raise ParameterError(f"--picture must end in one of {', '.join(FORMATS)}")
    for path in filter(None, (arguments.picture, arguments.def_file)):
        require_writable(path)
    core = core_of(arguments)
    path, sha256 = library_of(arguments.liberty)
    library = liberty.read(Path(path))
    title = f"{block.name} {configuration_name(arguments.preset, arguments.set)}"
    with Stages(quiet=arguments.json) as stages:
        stages(f"map {title}")
        found = mapped(block.name, parameters, path, sha256, arguments.mode, arguments.pieces)
        placed = place(found.netlist, library, core, stages)
        stages("measure the wires")
        wires = Wires.of(placed)
        row = {
            "block": block.name,
            "preset": configuration_name(arguments.preset, arguments.set),
            "parameters": dataclasses.asdict(parameters),
            **measured(found, wires, arguments.wires, library),
        }
    if arguments.def_file:
        with replacing(arguments.def_file) as file:
            file.write(def_file.text(placed, library).encode())
    if arguments.picture:
        save_picture(placed, library, arguments.picture, title)
    print(json.dumps([row], indent=1)) if arguments.json else describe(row)
    return 0


def measured(
    found: "Mapped", wires: Wires, capacitances: list[float], library: "Library"
) -> dict[str, Any]:
    """What the command says of a placed design; lengths in mm, but the core and one wire in µm."""
    from sim.synth import flow
    from sim.synth.timing import analyse

    placed, driver = wires.placement, flow.driver(library)
    pins = sum(sum(edges) / 2 for edges in found.netlist.loads(library).values())
    rows = []
    for ff_per_um in capacitances:
        worst = analyse(wires.netlist(ff_per_um), library, driver).worst
        rows.append(
            {
                "ff_per_um": ff_per_um,
                "wires_pf": round(ff_per_um * sum(wires.lengths.values()) / 1e3, 4),
                "delay_ps": round(worst.delay, 1) if worst else 0.0,
                "resistance_ps": round(wires.resistive_delay(library, ff_per_um), 2),
            }
        )
    return {
        "library": library.name,
        "mode": found.mode,
        "cells": len(found.netlist.cells),
        "flipflops": found.flipflops,
        "area_um2": round(found.area, 1),
        "utilisation": placed.core.utilisation,
        "width_um": round(placed.width, 2),
        "height_um": round(placed.height, 2),
        "nets": len(wires.lengths),
        "wires_mm": round(wires.total(clocks=False) / 1e3, 4),
        "clock_mm": round(wires.total(clocks=True) / 1e3, 4),
        "longest_um": round(wires.longest(), 1),
        "pins_pf": round(pins / 1e3, 4),
        "delay_ps": round(found.delay, 1),
        "with_wires": rows,
    }


def describe(row: dict[str, Any]) -> None:
    """What was measured, for people to read."""
    from rich.table import Table

    from sim.commands.terminal import print_table

    print(
        f"{row['block']} {row['preset']}, {row['library']}, mapped for {row['mode']}: "
        f"{row['cells']:,} cells, {row['area_um2']:,.0f} um2, {row['flipflops']:,} flip-flops."
    )
    print(f"Core of {row['width_um']} x {row['height_um']} um, {row['utilisation']:.0%} full.")
    print(
        f"{row['nets']:,} nets; wires of {row['wires_mm']:.2f} mm and of {row['clock_mm']:.2f} mm"
        f" for clocks, the longest but clocks {row['longest_um']:.0f} um."
    )
    table = Table()
    for name in ("wires, fF/um", "wires, pF", "pins, pF", "delay, ps", "of without", "R, ps"):
        table.add_column(name, justify="right")
    without = row["delay_ps"]
    table.add_row("none", "", f"{row['pins_pf']:.2f}", f"{without:.0f}", "1.000", "")
    for wires in row["with_wires"]:
        table.add_row(
            f"{wires['ff_per_um']:g}",
            f"{wires['wires_pf']:.2f}",
            "",
            f"{wires['delay_ps']:.0f}",
            f"{wires['delay_ps'] / without:.3f}" if without else "",
            f"{wires['resistance_ps']:.1f}",
        )
    print_table(table)
    print("Cells are neither resized nor buffered for their wires. R: what resistance, left out,")
    print("would add to a net at most.")


def save_picture(placed: Placement, library: "Library", path: Path, title: str) -> None:
    """Write a picture of the placed cells, coloured by sub-module."""
    from golden.studies.study import save

    save(picture(placed, library, title), path, title)


def picture(placed: Placement, library: "Library", title: str) -> "Figure":
    """Cells in their rows; a separately mapped sub-module has a colour, a flip-flop a frame."""
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    cells = placed.netlist.cells
    of = [submodule(cell.name) for cell in cells]
    names = [name for name, _ in Counter(of).most_common()]
    colours = [colormaps["tab10"](at) for at in range(COLOURS + 1)]
    colour = {name: colours[min(at, COLOURS)] for at, name in enumerate(names)}
    registers = np.array([library.cells[cell.kind].register is not None for cell in cells])
    x, y = placed.corners.T
    right, top = x + placed.widths, y + placed.core.height
    boxes = np.stack([x, y, right, y, right, top, x, top], axis=1).reshape(-1, 4, 2)
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    faces = [colour[name] for name in of]
    edges = ["black" if register else "white" for register in registers]
    line = min(0.3, 25 / len(cells) ** 0.5)  # or thousands of frames would hide the colours
    axes.add_collection(
        PolyCollection(list(boxes), facecolors=faces, edgecolors=edges, linewidths=line)
    )
    ports = np.array([(port.x, port.y) for port in placed.ports]).reshape(-1, 2)
    axes.plot(*ports.T, "k.", markersize=2, clip_on=False)
    axes.set(xlim=(0, placed.width), ylim=(0, placed.height), aspect="equal", title=title)
    axes.set(xlabel="µm")
    shown = [*names[:COLOURS], *(["smaller ones"] if len(names) > COLOURS else [])]
    axes.legend(
        [Patch(color=colours[at]) for at in range(len(shown))],
        [name or "top" for name in shown],
        loc="center left",
        bbox_to_anchor=(1, 0.5),
        frameon=False,
    )
    return figure


def submodule(cell: str) -> str:
    """Instance of a design that a cell is in; empty if that is not known."""
    found = re.match(r"(?:\$flatten)?\\?([^$.\\]+)\.", cell)
    return found[1] if found else ""


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command: argparse.ArgumentParser = commands.add_parser(
        "layout",
        description=(
            "Map a block to a cell library, place its cells in rows, and say how long their wires "
            "are and what their capacitance does to the delay. A picture has a colour for each "
            "sub-module that was mapped separately. `python -m sim energy --wires` has energies."
        ),
    )
    add_configuration(command)
    add_mapping(command)
    add_core(command)
    command.add_argument(
        "--wires",
        type=capacitance,
        nargs="+",
        default=[*FF_PER_UM.values()],
        metavar="FF_PER_UM",
        help="capacitance of wires, fF per um (default: %(default)s)",
    )
    command.add_argument(
        "--picture", type=Path, metavar="FILE", help=f"draw the cells: {', '.join(FORMATS)}"
    )
    command.add_argument(
        "--def",
        dest="def_file",
        type=Path,
        metavar="FILE.def",
        help="write the placement for other layout tools",
    )
    command.set_defaults(run=layout_command)
