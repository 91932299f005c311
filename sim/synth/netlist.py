"""A mapped netlist: cells of a library and the nets between them, from Yosys' JSON."""

import dataclasses
import json

from sim.synth import SynthesisError
from sim.synth.liberty import Library


@dataclasses.dataclass(frozen=True)
class Instance:
    """A cell of the netlist; `connections` gives each pin's net, None for a constant."""

    name: str
    kind: str
    connections: dict[str, int | None]


def bit_name(name: str, bit: int, width: int) -> str:
    """One bit of a wire or port, as Verilog writes it."""
    return name if width == 1 else f"{name}[{bit}]"


@dataclasses.dataclass(frozen=True)
class Netlist:
    """One flat module.

    inputs, outputs
        The nets of each port, lowest bit first.
    names
        A net's name in the design, for those that have kept one.
    ones
        Cell and pin of the inputs that are the constant 1; other constants are 0 or unknown.
    high
        Output port and bit of those that are the constant 1.
    """

    name: str
    cells: list[Instance]
    inputs: dict[str, list[int | None]]
    outputs: dict[str, list[int | None]]
    names: dict[int, str] = dataclasses.field(default_factory=dict)
    ones: frozenset[tuple[str, str]] = frozenset()
    high: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def from_json(cls, text: str, top: str) -> "Netlist":
        """Read what Yosys' ``write_json`` wrote."""
        module = json.loads(text)["modules"][top]

        def net(bit) -> int | None:
            return bit if isinstance(bit, int) else None

        cells = [
            Instance(name, cell["type"], {pin: net(bits[0]) for pin, bits in pins.items() if bits})
            for name, cell in module["cells"].items()
            if cell["type"] != "$scopeinfo"
            for pins in [cell["connections"]]
        ]
        ports: dict[str, dict[str, list[int | None]]] = {"input": {}, "output": {}}
        for name, port in module["ports"].items():
            ports[port["direction"]][name] = [net(bit) for bit in port["bits"]]
        names: dict[int, str] = {}
        for name, wire in module["netnames"].items():
            for bit, at in enumerate(() if wire["hide_name"] else wire["bits"]):
                names.setdefault(at, bit_name(name, bit, len(wire["bits"])))
        ones = frozenset(
            (name, pin)
            for name, cell in module["cells"].items()
            for pin, bits in cell["connections"].items()
            if bits == ["1"]
        )
        high = frozenset(
            (name, at)
            for name in ports["output"]
            for at, bit in enumerate(module["ports"][name]["bits"])
            if bit == "1"
        )
        return cls(top, cells, ports["input"], ports["output"], names, ones, high)

    def check(self, library: Library) -> None:
        """
        :raises SynthesisError: if a cell is not the library's, or is a latch.
        """
        for cell in self.cells:
            if cell.kind not in library.cells:
                raise SynthesisError(
                    f"{self.name} keeps a {cell.kind}, for which {library.name} has no cell"
                )
            if library.cells[cell.kind].is_latch:
                raise SynthesisError(f"{self.name} has a latch ({cell.name}), which has no timing")

    def label(self, cell: Instance, library: Library) -> str:
        """A cell's name in messages: the name of the net it drives, if the design names it."""
        for pin in library.cells[cell.kind].pins.values():
            net = cell.connections.get(pin.name)
            if pin.direction == "output" and net in self.names:
                return self.names[net]
        return cell.name

    def clocks(self, library: Library) -> set[int]:
        """Nets at the clock pins of registers."""
        nets = set()
        for cell in self.cells:
            model = library.cells[cell.kind]
            for pin in model.pins.values() if model.register else ():
                for arc in pin.arcs:
                    net = cell.connections.get(arc.related)
                    if arc.kind.endswith("_edge") and net is not None:
                        nets.add(net)
        return nets

    def loads(self, library: Library) -> dict[int, tuple[float, float]]:
        """Capacitance of the input pins at each net that has any, at a rising and a falling edge.

        In fF. There are no wires, and no load at outputs.
        """
        loads: dict[int, tuple[float, float]] = {}
        for cell in self.cells:
            pins = library.cells[cell.kind].pins
            for name, net in cell.connections.items():
                if net is not None and pins[name].direction == "input":
                    rise, fall = pins[name].capacitance
                    before = loads.get(net, (0.0, 0.0))
                    loads[net] = before[0] + rise, before[1] + fall
        return loads

    def in_order(self, library: Library) -> list[Instance]:
        """Cells without registers, each after those that drive it.

        :raises SynthesisError: if there is a combinational loop.
        """
        gates = [cell for cell in self.cells if library.cells[cell.kind].register is None]
        readers: dict[int, list[int]] = {}
        driven = set()
        for cell in gates:
            pins = library.cells[cell.kind].pins
            for name, net in cell.connections.items():
                if net is not None and pins[name].direction == "output":
                    driven.add(net)
        waiting = []
        for at, cell in enumerate(gates):
            pins = library.cells[cell.kind].pins
            nets = {
                net
                for name, net in cell.connections.items()
                if pins[name].direction == "input" and net in driven
            }
            waiting.append(len(nets))
            for net in nets:
                readers.setdefault(net, []).append(at)
        ready = [at for at, count in enumerate(waiting) if count == 0]
        order = []
        while ready:
            cell = gates[ready.pop()]
            order.append(cell)
            pins = library.cells[cell.kind].pins
            for name, net in cell.connections.items():
                if net is None or pins[name].direction != "output":
                    continue
                for reader in readers.get(net, ()):
                    waiting[reader] -= 1
                    if waiting[reader] == 0:
                        ready.append(reader)
        if len(order) != len(gates):
            raise SynthesisError(f"{self.name} has a combinational loop")
        return order
