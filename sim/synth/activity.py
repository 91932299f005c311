"""Toggles of a mapped netlist: 64 runs at once, one in each bit of a word.

Every gate has a delay of one unit, so that inputs that arrive at different times make glitches, all
of which count; real gates swallow short ones. The toggles between settled values count apart: what
a netlist without glitches would have. Registers and inputs change at the clock edge.
"""

import dataclasses

import numpy as np

from sim.synth import SynthesisError, function
from sim.synth.liberty import Library
from sim.synth.netlist import Instance, Netlist

RUNS = 64
LONGEST = 10_000
"""Gate delays after which a netlist is said to oscillate."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Gates:
    """All gates of a kind: their function of the pins' nets, and the nets that they drive."""

    logic: tuple
    inputs: dict[str, np.ndarray]
    output: np.ndarray

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return _evaluate(self.logic, {name: values[at] for name, at in self.inputs.items()})


class Activity:
    """Simulates a netlist cycle by cycle, and counts.

    toggles, settled
        ``int64`` toggles of each net since the last `clear`, with glitches and without, of all
        runs together; net n of the netlist is at ``row[n]``, the last two are constants.
    """

    def __init__(self, netlist: Netlist, library: Library):
        netlist.check(library)
        ports = [*netlist.inputs.values(), *netlist.outputs.values()]
        found = {net for cell in netlist.cells for net in cell.connections.values()}
        nets = sorted(net for net in found.union(*ports) if net is not None)
        self.row = {net: number for number, net in enumerate(nets)}
        self._netlist = netlist
        # Two more values are the constants.
        self._constants = len(nets), len(nets) + 1
        self._values = np.zeros(len(nets) + 2, np.uint64)
        self._values[-1] = ~np.uint64(0)
        self.clear()
        self._gates = self._grouped(library, registers=False)
        self._registers = self._grouped(library, registers=True)
        self._settle()
        self._before = self._values.copy()
        self.clear()

    def clear(self) -> None:
        self.toggles = np.zeros(len(self._values), np.int64)
        self.settled = np.zeros(len(self._values), np.int64)

    def cycle(self, inputs: dict[str, np.ndarray]) -> None:
        """A clock edge, after which `inputs` change: port to ``bool[runs, bits]``."""
        changed = [(gates.output, gates(self._values)) for gates in self._registers]
        for name, bits in inputs.items():
            nets = self._netlist.inputs[name]
            at = np.array([self.row[net] for net in nets if net is not None])
            changed.append((at, _words(bits)))
        self._apply(changed)
        self._settle()
        self.settled += np.bitwise_count(self._values ^ self._before)
        self._before = self._values.copy()

    def output(self, name: str) -> np.ndarray:
        """``bool[runs, bits]``: an output port, settled."""
        nets = self._netlist.outputs[name]
        words = np.array([self._values[self.row[net]] if net is not None else 0 for net in nets])
        rows = words.astype("<u8").view(np.uint8).reshape(-1, 8)
        return np.unpackbits(rows, axis=1, bitorder="little").T.astype(bool)

    def _settle(self) -> None:
        for _ in range(LONGEST):
            if not self._apply([(gates.output, gates(self._values)) for gates in self._gates]):
                return
        raise SynthesisError(f"{self._netlist.name} does not settle")

    def _apply(self, changed: list[tuple[np.ndarray, np.ndarray]]) -> bool:
        """Change values all at once, and count; returns whether one differs."""
        found = False
        for at, after in changed:
            toggled = np.bitwise_count(after ^ self._values[at])
            if toggled.any():
                found = True
                self.toggles[at] += toggled
                self._values[at] = after
        return found

    def _grouped(self, library: Library, registers: bool) -> list[_Gates]:
        """Gates, or registers with their next state, by kind and output."""
        instances: dict[tuple[str, str], list] = {}
        for cell in self._netlist.cells:
            model = library.cells[cell.kind]
            if (model.register is not None) == registers:
                for pin in model.pins.values():
                    if pin.direction == "output" and cell.connections.get(pin.name) is not None:
                        instances.setdefault((cell.kind, pin.name), []).append(cell)
        groups = []
        for (kind, output), cells in instances.items():
            model = library.cells[kind]
            logic = function.parse(model.pins[output].function or "")
            if model.register is not None and model.state is not None:
                if {"clear", "preset"} & model.register.keys():
                    raise SynthesisError(f"{kind} has an asynchronous set or reset")
                inverted = logic == ("pin", model.state[1])
                logic = function.parse(model.register["next_state"])
                logic = ("!", logic) if inverted else logic
            pins = sorted(_pins(logic))
            inputs = {pin: np.array([self._at(cell, pin) for cell in cells]) for pin in pins}
            outputs = np.array([self.row[cell.connections[output]] for cell in cells])
            groups.append(_Gates(logic, inputs, outputs))
        return groups

    def _at(self, cell: Instance, pin: str) -> int:
        """Where the value of a cell's input is."""
        net = cell.connections.get(pin)
        if net is None:
            return self._constants[(cell.name, pin) in self._netlist.ones]
        return self.row[net]


def _words(bits: np.ndarray) -> np.ndarray:
    """``uint64[bits]`` of ``bool[64, bits]``."""
    packed = np.packbits(np.asarray(bits, bool).T, axis=1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u8")[:, 0]


def _pins(tree: tuple) -> set[str]:
    kind, *parts = tree
    if kind == "pin":
        return {parts[0]}
    return set().union(*(_pins(part) for part in parts)) if kind != "constant" else set()


def _evaluate(tree: tuple, values: dict[str, np.ndarray]) -> np.ndarray:
    kind, *parts = tree
    if kind == "pin":
        return values[parts[0]]
    results = [_evaluate(part, values) for part in parts]
    if kind == "!":
        return ~results[0]
    return {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}[kind](*results)
