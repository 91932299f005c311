"""Static timing of a mapped netlist.

Model: delays and transition times (slews) from the library's tables, linear between their points
and beyond them; the worst slew at each net and edge goes on. A net's load is the sum of its input
pins; there are no wires and no load at outputs. Primary inputs are driven by a cell given by name
(for example BUF_X1), whose input switches in no time: the net gets that cell's slew, and the part
of its delay that the load causes, as OpenSTA's ``set_driving_cell`` does. The clock is ideal: it
arrives everywhere at once and in no time. Registers start paths at clock-to-output and end them
with their setup time.

Left out: hold, clock skew, asynchronous set and reset, minimum pulse widths, false paths (a path
counts even where no values make it switch), wires.
"""

import dataclasses
import math

from sim.synth import SynthesisError
from sim.synth.liberty import Cell, Library
from sim.synth.netlist import Netlist, bit_name

RISE, FALL = 0, 1
EDGE = ("rise", "fall")


@dataclasses.dataclass(frozen=True)
class Step:
    """One net on a path: who drives it, the edge, arrival and slew in ps."""

    driver: str
    edge: str
    arrival: float
    slew: float


@dataclasses.dataclass(frozen=True)
class Path:
    """A path from an input or register to an output or register; `delay` includes setup (ps)."""

    start: str
    end: str
    delay: float
    steps: tuple[Step, ...]


@dataclasses.dataclass(frozen=True)
class Timing:
    """Worst paths by kind: ``input-output``, ``input-register``, ``register-register``, ..."""

    paths: dict[str, Path]

    @property
    def worst(self) -> Path | None:
        """The slowest path; None without a path."""
        return max(self.paths.values(), key=lambda path: path.delay, default=None)


class _Analysis:
    def __init__(self, netlist: Netlist, library: Library, driver: Cell | None):
        self.netlist = netlist
        self.library = library
        self.driver = driver
        self.load = netlist.loads(library)
        # (net, edge) -> slew, and for each kind of start (arrival, predecessor, driver's name)
        self.slew: dict[tuple[int, int], float] = {}
        self.arrival: dict[tuple[int, int, str], tuple] = {}

    def loads(self, net: int) -> tuple[float, float]:
        return self.load.get(net, (0.0, 0.0))

    def arrive(self, net, edge, kind, time, slew, previous, driver) -> None:
        key = (net, edge, kind)
        if key not in self.arrival or time > self.arrival[key][0]:
            self.arrival[key] = (time, previous, driver)
        # Extrapolated far beyond a table, a slew may even be negative.
        if slew > self.slew.get((net, edge), -math.inf):
            self.slew[net, edge] = slew

    def start_inputs(self) -> None:
        clocks = self.netlist.clocks(self.library)
        for name, nets in self.netlist.inputs.items():
            for bit, net in enumerate(nets):
                if net is None or net in clocks:
                    continue
                label = bit_name(name, bit, len(nets))
                for edge in (RISE, FALL):
                    time, slew = self.drive(edge, self.loads(net)[edge])
                    self.arrive(net, edge, "input", time, slew, None, label)

    def drive(self, edge: int, load: float) -> tuple[float, float]:
        times, slews = [0.0], [0.0]
        if self.driver is not None:
            for pin in self.driver.pins.values():
                for arc in pin.arcs if pin.direction == "output" else ():
                    delay, slew = arc.delay[edge], arc.slew[edge]
                    if delay and slew:
                        times.append(delay(0.0, load) - delay(0.0, 0.0))
                        slews.append(slew(0.0, load))
        return max(times), max(slews)

    def start_registers(self) -> None:
        for cell in self.netlist.cells:
            model = self.library.cells[cell.kind]
            if model.register is None:
                continue
            label = self.netlist.label(cell, self.library)
            for pin in model.pins.values():
                net = cell.connections.get(pin.name)
                if net is None or pin.direction != "output":
                    continue
                for arc in pin.arcs:
                    if not arc.kind.endswith("_edge"):
                        continue
                    for edge in (RISE, FALL):
                        delay, slews = arc.delay[edge], arc.slew[edge]
                        if delay:
                            load = self.loads(net)[edge]
                            slew = slews(0.0, load) if slews else 0.0
                            time = delay(0.0, load)
                            self.arrive(net, edge, "register", time, slew, None, label)

    def propagate(self) -> None:
        for cell in self.netlist.in_order(self.library):
            model = self.library.cells[cell.kind]
            for pin in model.pins.values():
                if pin.direction != "output":
                    continue
                net = cell.connections.get(pin.name)
                if net is None:
                    continue
                load = self.loads(net)
                for arc in pin.arcs:
                    source = cell.connections.get(arc.related)
                    if source is not None and arc.kind.startswith("combinational"):
                        self.through(cell.name, arc, source, net, load)

    def through(self, name, arc, source, net, load) -> None:
        for edge in (RISE, FALL):
            if not arc.delay[edge]:
                continue
            causes = {"positive_unate": (edge,), "negative_unate": (1 - edge,)}
            for cause in causes.get(arc.sense, (RISE, FALL)):
                slew = self.slew.get((source, cause))
                if slew is None:
                    continue
                delay = arc.delay[edge](slew, load[edge])
                after = arc.slew[edge](slew, load[edge]) if arc.slew[edge] else 0.0
                for kind in ("input", "register"):
                    before = self.arrival.get((source, cause, kind))
                    if before is not None:
                        self.arrive(
                            net, edge, kind, before[0] + delay, after, (source, cause, kind), name
                        )

    def ends(self):
        """(end kind, end name, net, setup as a function of edge and slew) of each path's end."""
        for name, nets in self.netlist.outputs.items():
            for bit, net in enumerate(nets):
                if net is not None:
                    label = bit_name(name, bit, len(nets))
                    yield "output", label, net, lambda edge, slew: 0.0
        for cell in self.netlist.cells:
            for pin in self.library.cells[cell.kind].data_pins:
                net = cell.connections.get(pin.name)
                if net is None:
                    continue
                setups = [arc for arc in pin.arcs if arc.kind.startswith("setup")]

                def setup(edge, slew, setups=setups):
                    tables = [arc.constraint[edge] for arc in setups if arc.constraint[edge]]
                    return max((table(slew, 0.0) for table in tables), default=0.0)

                label = self.netlist.label(cell, self.library)
                yield "register", f"{label} ({pin.name})", net, setup

    def trace(self, key: tuple) -> tuple[Step, ...]:
        steps = []
        while key is not None:
            time, previous, driver = self.arrival[key]
            steps.append(Step(driver, EDGE[key[1]], time, self.slew[key[:2]]))
            key = previous
        return tuple(reversed(steps))

    def worst_paths(self) -> dict[str, Path]:
        worst: dict[str, tuple] = {}
        for end_kind, label, net, setup in self.ends():
            for edge in (RISE, FALL):
                for kind in ("input", "register"):
                    found = self.arrival.get((net, edge, kind))
                    if found is None:
                        continue
                    delay = found[0] + setup(edge, self.slew[net, edge])
                    group = f"{kind}-{end_kind}"
                    if group not in worst or delay > worst[group][0]:
                        worst[group] = (delay, label, (net, edge, kind))
        paths = {}
        for group, (delay, label, key) in worst.items():
            steps = self.trace(key)
            paths[group] = Path(steps[0].driver, label, delay, steps)
        return paths


def analyse(netlist: Netlist, library: Library, driver: str | None = None) -> Timing:
    """The worst paths of a mapped netlist, with primary inputs driven by the cell `driver`.

    :raises SynthesisError: for a cell the library lacks, a latch, or a combinational loop.
    """
    if driver is not None and driver not in library.cells:
        raise SynthesisError(f"library {library.name} has no driving cell {driver}")
    netlist.check(library)
    analysis = _Analysis(netlist, library, library.cells[driver] if driver else None)
    analysis.start_inputs()
    analysis.start_registers()
    analysis.propagate()
    return Timing(analysis.worst_paths())
