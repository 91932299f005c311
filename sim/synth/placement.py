"""Places the cells of a mapped netlist in rows, by Coloquinte: a quadratic placement, made legal.

A cell is as wide as its area says, in whole sites of a row; every pin is at the middle of its cell.
Ports are points around the core, at equal distances in the order of the netlist, inputs first.
Clocks pull at nothing: their tree is made after placement. There are no power straps, no fillers,
and cells are neither resized nor buffered for their place.
"""

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterator

import numpy as np

from sim.core.tools import ToolError
from sim.synth import SynthesisError
from sim.synth.liberty import Library
from sim.synth.netlist import Netlist, bit_name

EFFORT = 3
"""Coloquinte's effort, 1 to 9; from 1 to 9 wires become 3 % shorter."""

SPREADS = (0.9, 0.8, 0.6, 0.0)
"""Shares of the core that cells take with the space beside them; if there are few rows and wide
cells a smaller one is needed, and with 0 there is no such space."""

ROUNDING = 0.02
"""By how many sites the width of a cell may differ from a whole number."""


NANGATE45_LAYERS = (
    *(("metal1", "Y", 0.14, 0.07), ("metal2", "X", 0.19, 0.095), ("metal3", "Y", 0.14, 0.07)),
    *(("metal4", "X", 0.28, 0.095), ("metal5", "Y", 0.28, 0.07), ("metal6", "X", 0.28, 0.095)),
)
"""Through the middles of cells' pins, and every second place of the lower layers."""


@dataclasses.dataclass(frozen=True)
class Core:
    """The area that cells are placed in: rows of sites, which a Liberty file does not state.

    site
        Its name, for DEF files.
    width, height
        Size of a site, in µm, which LEF calls its SIZE. Rows are as high as sites.
    utilisation
        Share of the core that cells take.
    layers
        Metal layers, for DEF files: name, "X" for tracks one beside the other or "Y" for tracks
        one above the other, their distance and the place of one of them, in µm. Ports are on the
        third. None if that is not known.
    """

    site: str = "FreePDK45_38x28_10R_NP_162NW_34O"
    width: float = 0.19
    height: float = 1.4
    utilisation: float = 0.7
    layers: tuple[tuple[str, str, float, float], ...] | None = NANGATE45_LAYERS

    def sites(self, name: str, area: float) -> int:
        """Sites that a cell takes.

        :raises SynthesisError: if they are no whole number.
        """
        exact = area / self.height / self.width
        sites = round(exact)
        if sites < 1 or abs(exact - sites) > ROUNDING:
            raise SynthesisError(
                f"{name} of {area:g} um2 takes {exact:.2f} sites of {self.width:g} x "
                f"{self.height:g} um, no whole number: these are not the library's"
            )
        return sites


@dataclasses.dataclass(frozen=True)
class Port:
    """A bit of a port: its name, DEF's direction, its net and its place in µm."""

    name: str
    direction: str
    net: int
    x: float
    y: float


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """Where the cells of a netlist are, in µm from the core's lower left corner.

    rows
        Number of rows.
    width
        Width of the core, in µm.
    corners
        ``float64[cells, 2]``: lower left corners, in the netlist's order.
    widths
        ``float64[cells]``.
    turned
        Orientation of each cell, as DEF names it.
    ports
        Bits of ports.
    pins
        For each net that connects at least two things, clocks included: ``float64[pins, 2]``.
    clocks
        Nets that are clocks.
    """

    netlist: Netlist
    core: Core
    rows: int
    width: float
    corners: np.ndarray
    widths: np.ndarray
    turned: tuple[str, ...]
    ports: list[Port]
    pins: dict[int, np.ndarray]
    clocks: frozenset[int]

    @property
    def height(self) -> float:
        return self.rows * self.core.height


def place(
    netlist: Netlist,
    library: Library,
    core: Core,
    progress: Callable[[str], None] = lambda step: None,
) -> Placement:
    """Place a netlist in a core that is as high as it is wide, as far as rows and sites permit.

    progress
        Is told each step.

    :raises SynthesisError: if a cell does not fit the sites, or there is nothing to place.
    :raises ToolError: if there is no Coloquinte.
    """
    coloquinte = _coloquinte()
    netlist.check(library)
    if not netlist.cells:
        raise SynthesisError(f"{netlist.name} has no cell to place")
    widths = [core.sites(cell.kind, library.cells[cell.kind].area) for cell in netlist.cells]
    sites = sum(widths) / core.utilisation
    rows = max(1, round(math.sqrt(sites * core.width / core.height)))
    # No narrower than the widest cell, whatever the share.
    width = max(math.ceil(sites / rows), *widths)
    # Lengths are whole numbers to Coloquinte: a site wide and, as nearly as that, a row's part.
    high = round(core.height / core.width)
    clocks = netlist.clocks(library)
    ports = _ports(netlist, clocks)
    around = [_around((n + 0.5) / len(ports), width, rows * high) for n in range(len(ports))]
    cells = len(netlist.cells)

    circuit = coloquinte.Circuit(cells + len(ports))
    circuit.cell_height = [high] * cells + [0] * len(ports)
    circuit.cell_is_fixed = [False] * cells + [True] * len(ports)
    circuit.cell_is_obstruction = [True] * cells + [False] * len(ports)
    circuit.cell_x = [width // 2] * cells + [x for x, _ in around]
    circuit.cell_y = [rows * high // 2] * cells + [y for _, y in around]
    members = _members(netlist, [net for _, _, net in ports])
    for net, at in members.items():
        if net not in clocks:
            middle = [widths[n] // 2 if n < cells else 0 for n in at]
            circuit.add_net(at, middle, [high // 2 if n < cells else 0 for n in at])
    area = coloquinte.Rectangle(0, width, 0, rows * high)
    circuit.setup_rows(area, high, True, True)
    circuit.cell_row_polarity = [coloquinte.CellRowPolarity.SAME] * cells + [
        coloquinte.CellRowPolarity.ANY
    ] * len(ports)
    for spread in SPREADS:
        circuit.cell_width = widths + [0] * len(ports)
        # Or there would be clusters without a gap, which no router gets through.
        if spread:
            circuit.expand_cells_to_density(spread)
        try:
            _run(circuit, coloquinte.ColoquinteParameters(EFFORT), progress)
            break
        except RuntimeError:
            continue
    else:
        raise SynthesisError(
            f"{cells} cells of {netlist.name} find no place in a core {core.utilisation:.0%} full"
        )

    unit = np.array([core.width, core.height / high])
    at = np.stack([circuit.cell_x, circuit.cell_y], axis=1) * unit
    middles = at.copy()
    middles[:cells] += np.stack([widths, [high] * cells], axis=1) * unit / 2
    return Placement(
        netlist,
        core,
        rows,
        width * core.width,
        at[:cells],
        np.array(widths) * core.width,
        tuple(turn.name for turn in circuit.cell_orientation[:cells]),
        [Port(*bit, *spot) for bit, spot in zip(ports, at[cells:].tolist(), strict=True)],
        {net: middles[np.array(found)] for net, found in members.items()},
        frozenset(clocks),
    )


def _run(circuit, settings, progress: Callable[[str], None]) -> None:
    for step in ("place_global", "legalize", "place_detailed"):
        progress(f"place {circuit.nb_cells:,} cells and ports: {step.removeprefix('place_')}")
        with _silent():
            getattr(circuit, step)(settings)


def _ports(netlist: Netlist, clocks: set[int]) -> list[tuple[str, str, int]]:
    """Name, direction and net of each bit of a port that has a net and is no clock."""
    return [
        (bit_name(name, bit, len(nets)), direction, net)
        for direction, ports in (("INPUT", netlist.inputs), ("OUTPUT", netlist.outputs))
        for name, nets in ports.items()
        for bit, net in enumerate(nets)
        if net is not None and net not in clocks
    ]


def _around(share: float, width: int, height: int) -> tuple[int, int]:
    """The point at that share of the perimeter, against the clock from the lower left corner."""
    along = round(share * 2 * (width + height))
    if along < width:
        return along, 0
    if along < width + height:
        return width, along - width
    if along < 2 * width + height:
        return 2 * width + height - along, height
    return 0, 2 * (width + height) - along


def _members(netlist: Netlist, ports: list[int]) -> dict[int, list[int]]:
    """Cells of each net that connects two things at least, and ports, which follow the cells."""
    members: dict[int, dict[int, None]] = {}
    for number, cell in enumerate(netlist.cells):
        for net in cell.connections.values():
            if net is not None:
                members.setdefault(net, {})[number] = None
    for number, net in enumerate(ports, start=len(netlist.cells)):
        members.setdefault(net, {})[number] = None
    return {net: list(found) for net, found in members.items() if len(found) > 1}


def _coloquinte():
    try:
        import coloquinte
    except ModuleNotFoundError:
        raise ToolError(
            "placement needs coloquinte, for which PyPI has packages for Python 3.11 and 3.12: "
            "pip install coloquinte"
        ) from None
    return coloquinte


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without what Coloquinte prints on standard output, which it does from C++."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
