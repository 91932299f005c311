"""Length and capacitance of a placed netlist's wires, and the netlist with them.

A net's wire is ROUTED times as long as the shortest tree of horizontal and vertical lines that
joins its pins and branches at pins alone. Its capacitance is that length times a figure per µm, in
one lump; resistance is left out. A clock's wire is such a tree as well, without buffers.
"""

import dataclasses

import numpy as np

from sim.synth.liberty import Library
from sim.synth.netlist import Netlist
from sim.synth.placement import Placement

ROUTED = 0.92
"""What a router makes of a tree's length: it branches between pins, and pins have a width."""

FF_PER_UM = {"low": 0.055, "middle": 0.1, "high": 0.18}
"""Capacitance of wires at 45 nm: of the library's LEF, without neighbours; and with them."""

OHM_PER_UM = 3.6
"""Resistance of a narrow wire, 0.25 ohm a square and 0.07 µm wide in the library's LEF."""


@dataclasses.dataclass(frozen=True)
class Wired(Netlist):
    """A netlist whose nets have wires.

    wires
        Capacitance of each net's wire, fF.
    """

    wires: dict[int, float] = dataclasses.field(default_factory=dict)

    def loads(self, library: Library) -> dict[int, tuple[float, float]]:
        """As of a netlist, with the wires."""
        loads = super().loads(library)
        for net, wire in self.wires.items():
            rise, fall = loads.get(net, (0.0, 0.0))
            loads[net] = rise + wire, fall + wire
        return loads


def tree(points: np.ndarray) -> float:
    """Length of the shortest rectilinear tree that joins points (``float64[n, 2]``) at points."""
    points = np.unique(points, axis=0)
    near = np.abs(points - points[0]).sum(axis=1)
    outside = np.arange(1, len(points))
    total = 0.0
    while len(outside):
        at = near[outside].argmin()
        chosen = outside[at]
        total += float(near[chosen])
        outside = np.delete(outside, at)
        near = np.minimum(near, np.abs(points - points[chosen]).sum(axis=1))
    return total


@dataclasses.dataclass(frozen=True, eq=False)
class Wires:
    """Wires of a placement.

    lengths
        Length of each net that joins two places at least, in µm.
    """

    placement: Placement
    lengths: dict[int, float]

    @classmethod
    def of(cls, placement: Placement) -> "Wires":
        """The wires of a placement."""
        return cls(placement, {net: ROUTED * tree(pins) for net, pins in placement.pins.items()})

    def netlist(self, ff_per_um: float) -> Wired:
        """The netlist with these wires."""
        plain = self.placement.netlist
        fields = {field.name: getattr(plain, field.name) for field in dataclasses.fields(Netlist)}
        wires = {net: ff_per_um * length for net, length in self.lengths.items()}
        return Wired(**fields, wires=wires)

    def total(self, *, clocks: bool) -> float:
        """Length of the clocks' wires, or of all others, in µm."""
        found = self.placement.clocks
        return sum(length for net, length in self.lengths.items() if (net in found) == clocks)

    def longest(self) -> float:
        """Length of the longest wire that is no clock's, in µm; 0 without one."""
        clocks = self.placement.clocks
        return max((value for net, value in self.lengths.items() if net not in clocks), default=0.0)

    def resistive_delay(self, library: Library, ff_per_um: float) -> float:
        """An upper bound of what resistance, which is left out, would add to one net's delay, ps.

        The resistance of the whole wire times half its capacitance and all its pins' capacitance.
        """
        loads, worst = self.placement.netlist.loads(library), 0.0
        for net, length in self.lengths.items():
            if net not in self.placement.clocks:
                load = ff_per_um * length / 2 + max(loads.get(net, (0.0, 0.0)))
                worst = max(worst, OHM_PER_UM * length * load / 1000)
        return worst
