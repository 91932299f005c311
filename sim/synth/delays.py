"""Delays of a mapped netlist's cells, as a simulation uses them: one for each output and edge.

A delay is the library's at the output's load, the mean over the arcs of the pins that something
drives, their conditions and the edges that cause it; slews go through the netlist in the same way.
Inputs and the clock change with SLEW. The slowest arc and slew, which :mod:`sim.synth.timing`
takes, would not do: energy is what a netlist takes on average.
"""

from collections.abc import Iterator

from sim.synth.liberty import Arc, Library
from sim.synth.netlist import Instance, Netlist
from sim.synth.timing import FALL, RISE

SLEW = 40.0
"""Transition time at inputs, ps; a typical one of a 45 nm netlist."""

FEMTOSECONDS = 1000
"""Number of femtoseconds in a picosecond."""

Edges = tuple[float, float]
"""Times of a rising and of a falling edge."""


def delays(netlist: Netlist, library: Library) -> dict[tuple[str, str], tuple[int, int]]:
    """By cell and output pin: delay of a rising and of a falling output, in whole femtoseconds.

    A register's are from its clock. None is below one, so that no pulse has no width.

    :raises SynthesisError: if there is a combinational loop.
    """
    loads = netlist.loads(library)
    registers = [cell for cell in netlist.cells if library.cells[cell.kind].register is not None]
    slews: dict[int, Edges] = {}
    found = {}
    for cell in [*registers, *netlist.in_order(library)]:
        for pin in library.cells[cell.kind].pins.values():
            net = cell.connections.get(pin.name)
            if net is None or pin.direction != "output":
                continue
            both = []
            for edge in (RISE, FALL):
                load = loads.get(net, (0.0, 0.0))[edge]
                means = [0.0, 0.0]
                causes = list(_causes(cell, pin.arcs, edge, slews))
                for arc, slew in causes:
                    for which, table in enumerate((arc.delay[edge], arc.slew[edge])):
                        means[which] += table(slew, load) / len(causes) if table else 0.0
                both.append(means)
            (rise, slew_rise), (fall, slew_fall) = both
            slews[net] = max(0.0, slew_rise), max(0.0, slew_fall)
            found[cell.name, pin.name] = _whole(rise), _whole(fall)
    return found


def _causes(
    cell: Instance, arcs: tuple[Arc, ...], edge: int, slews: dict[int, Edges]
) -> Iterator[tuple[Arc, float]]:
    """Each arc that can make that edge of an output, with the slew of each edge that causes it."""
    for arc in arcs:
        source = cell.connections.get(arc.related)
        if source is None or arc.delay[edge] is None:
            continue
        if arc.kind.endswith("_edge"):
            yield arc, SLEW
        elif arc.kind.startswith("combinational"):
            causes = {"positive_unate": (edge,), "negative_unate": (1 - edge,)}
            for cause in causes.get(arc.sense, (RISE, FALL)):
                yield arc, slews.get(source, (SLEW, SLEW))[cause]


def _whole(delay: float) -> int:
    return max(1, round(delay * FEMTOSECONDS))
