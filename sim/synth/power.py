"""Energies of a library's cells, and of the toggles of a mapped netlist.

A toggle of a net costs half of C V², C being the pins that it drives, and the internal energy of
the cell that drives it, from the library's ``internal_power`` tables at SLEW and that load, the
mean over rising and falling edges, related pins and conditions. A flip-flop adds the energies of
its clock pin, one rise and one fall a cycle, and of a toggle of its data pins. Both of its outputs
count, connected or not.

Leakage is each cell's, the mean over the states of its inputs.

Left out: wires, the clock tree, and gates whose inputs toggle while their output does not.
"""

import dataclasses
import functools
import re
from pathlib import Path

import numpy as np

from sim.synth import SynthesisError
from sim.synth.delays import SLEW
from sim.synth.liberty import Group, Library, Reader, Table, read_group
from sim.synth.netlist import Netlist

WATTS = {"w": 1e6, "mw": 1e3, "uw": 1.0, "nw": 1e-3, "pw": 1e-6}
"""µW of Liberty's units."""

FEMTOJOULES = 1e-3
"""Energy of a microwatt in a picosecond, in femtojoules."""


@dataclasses.dataclass(frozen=True)
class CellPower:
    """What a cell takes.

    tables
        Of ``internal_power`` by pin: rising and falling, fJ over slew (ps) and load (fF).
    leakage
        µW, the mean over the states of the inputs; 0 if the library states none.
    """

    tables: dict[str, list[tuple[Table, ...]]]
    leakage: float

    def energy(self, pin: str, load: float) -> float:
        """fJ of one toggle of the pin, the mean of all its tables; 0 without one."""
        tables = self.tables.get(pin, [])
        values = [sum(t(SLEW, load) for t in pair) / 2 for pair in tables]
        return float(np.mean(values)) if values else 0.0


@dataclasses.dataclass(frozen=True)
class Power:
    """What a library says of power: `voltage` in V, and its cells."""

    voltage: float
    cells: dict[str, CellPower]


@functools.cache
def read(path: Path) -> Power:
    """Read the power of a Liberty file, whose unit of internal power is the unit of C V².

    :raises SynthesisError: if it has none, or states no voltage or an unknown unit.
    """
    library = read_group(path)
    reader = Reader(library)
    voltage = float(library.attributes.get("nom_voltage", 0))
    unit = re.fullmatch(
        r"(\d+)([munp]?w)", library.attributes.get("leakage_power_unit", "1nW"), re.I
    )
    if unit is None:
        raise SynthesisError(f"{path} has a leakage_power_unit that cannot be read")
    watts = float(unit[1]) * WATTS[unit[2].lower()]
    cells = {group.arguments[0]: _cell(reader, group, watts) for group in library.of("cell")}
    if not voltage or not any(cell.tables for cell in cells.values()):
        raise SynthesisError(f"{path} has no voltage or no internal_power")
    return Power(voltage, cells)


def _cell(reader: Reader, cell: Group, watts: float) -> CellPower:
    tables: dict[str, list[tuple[Table, ...]]] = {}
    for pin in cell.of("pin"):
        for power in pin.of("internal_power"):
            pair = tuple(
                table
                for kind in ("rise_power", "fall_power")
                for group in power.of(kind)
                if (table := reader.table(group, 1.0)) is not None
            )
            for name in pin.arguments:
                tables.setdefault(name, []).append(pair)
    states = [float(state.attributes["value"]) for state in cell.of("leakage_power")]
    mean = float(np.mean(states)) if states else 0.0
    return CellPower(tables, watts * float(cell.attributes.get("cell_leakage_power", mean)))


@dataclasses.dataclass(frozen=True)
class Energies:
    """Energies of one netlist.

    net
        fJ of one toggle of each net that something drives or reads.
    cycle
        fJ of a clock cycle, all registers together.
    leakage
        µW.
    """

    net: dict[int, float]
    cycle: float
    leakage: float

    def idle(self, clock: float) -> float:
        """fJ that leak in a clock period (ps)."""
        return self.leakage * clock * FEMTOJOULES


def energies(netlist: Netlist, library: Library, power: Power) -> Energies:
    """What toggles and cycles of a mapped netlist cost."""
    half = power.voltage**2 / 2
    load = {at: sum(edges) / 2 for at, edges in netlist.loads(library).items()}
    clocks = netlist.clocks(library)
    net = {at: half * sum_ for at, sum_ in load.items() if at not in clocks}
    cycle = sum(2 * half * load.get(at, 0.0) for at in clocks)
    for cell in netlist.cells:
        kind, tables = library.cells[cell.kind], power.cells[cell.kind]
        outputs = [pin.name for pin in kind.pins.values() if pin.direction == "output"]
        connected = [name for name in outputs if cell.connections.get(name) is not None]
        for name, at in cell.connections.items():
            if at is None:
                continue
            if name in connected:
                net[at] = net.get(at, 0.0) + tables.energy(name, load.get(at, 0.0))
            elif kind.register and at in clocks:
                cycle += 2 * tables.energy(name, 0.0)
            elif kind.register:
                net[at] += tables.energy(name, 0.0)
        if kind.register and connected:
            # Both outputs toggle; the one without a net has no load.
            others = sum(tables.energy(name, 0.0) for name in outputs if name not in connected)
            net[cell.connections[connected[0]]] += others  # type: ignore[index]
    leakage = sum(power.cells[cell.kind].leakage for cell in netlist.cells)
    return Energies(net, cycle, leakage)
