"""Toggles of a mapped netlist: 64 runs at once, one in each bit of a word.

Gates have the inertial delays of :mod:`sim.synth.delays`, so that inputs that arrive at different
times make glitches, of which short ones are swallowed (:mod:`sim.synth.inertial`). The toggles
between settled values count apart: what a netlist without glitches would have. Inputs change at the
clock edge, registers after their delay; a cycle is as long as everything takes to settle.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from sim.synth import SynthesisError, function
from sim.synth.delays import delays
from sim.synth.inertial import PINS, Gates, Waveforms
from sim.synth.liberty import Library
from sim.synth.netlist import Instance, Netlist

RUNS = 64


@dataclasses.dataclass(frozen=True)
class _Output:
    """An output of a cell: the function that it takes, of the cell's inputs, and its net."""

    cell: Instance
    pin: str
    net: int
    logic: tuple


@dataclasses.dataclass(frozen=True, eq=False)
class _Kind:
    """All outputs of a kind: their function of the pins' nets, and the nets that they drive."""

    logic: tuple
    inputs: dict[str, np.ndarray]
    output: np.ndarray

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return _evaluate(self.logic, {name: values[at] for name, at in self.inputs.items()})


class Activity:
    """Simulates a netlist cycle by cycle, and counts.

    toggles, settled
        ``int64`` toggles of each net in the cycles that count, with glitches and without, of all
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
        self.toggles = np.zeros(len(self._values), np.int64)
        self.settled = np.zeros(len(self._values), np.int64)
        delay = delays(netlist, library)
        registers = [out for cell in netlist.cells for out in _registered(cell, library)]
        self._registers = [(self._kind(outs), _edges(outs, delay)) for outs in _by_kind(registers)]
        self._levels = []
        for level in _levels(netlist, library):
            kinds = _by_kind(level)
            self._levels.append(([self._kind(outs) for outs in kinds], self._gates(kinds, delay)))
        self._settle()

    def cycle(
        self, inputs: dict[str, np.ndarray], counted: bool = True, glitches: bool = True
    ) -> None:
        """A clock edge, at which `inputs` change: port to ``bool[runs, bits]``.

        counted, glitches
            Whether its toggles count, and those with glitches as well, which takes ten times as
            long.
        """
        before = self._values.copy()
        changed = [(kind.output, kind(before), edges) for kind, edges in self._registers]
        for name, bits in inputs.items():
            nets = self._netlist.inputs[name]
            at = np.array([self.row[net] for net in nets if net is not None])
            changed.append((at, _words(bits), np.zeros((len(at), 2), np.int64)))
        for at, after, _ in changed:
            self._values[at] = after
        self._settle()
        if counted and glitches:
            waves = Waveforms(before)
            for at, after, edges in changed:
                waves.start(at, after, edges)
            for _, gates in self._levels:
                waves.through(gates)
            self.toggles += waves.count
        if counted:
            self.settled += np.bitwise_count(self._values ^ before)

    def output(self, name: str) -> np.ndarray:
        """``bool[runs, bits]``: an output port, settled."""
        nets = self._netlist.outputs[name]
        at = [
            self._constants[(name, bit) in self._netlist.high] if net is None else self.row[net]
            for bit, net in enumerate(nets)
        ]
        words = self._values[at]
        rows = words.astype("<u8").view(np.uint8).reshape(-1, 8)
        return np.unpackbits(rows, axis=1, bitorder="little").T.astype(bool)

    def _settle(self) -> None:
        for kinds, _ in self._levels:
            for kind in kinds:
                self._values[kind.output] = kind(self._values)

    def _kind(self, outputs: list[_Output]) -> _Kind:
        logic = outputs[0].logic
        inputs = {
            pin: np.array([self._at(out.cell, pin) for out in outputs]) for pin in _pins(logic)
        }
        return _Kind(logic, inputs, np.array([self.row[out.net] for out in outputs]))

    def _gates(self, kinds: list[list[_Output]], delay: dict) -> Gates:
        """All gates of a level."""
        pins, tables = [], []
        for outputs in kinds:
            names = _pins(outputs[0].logic)
            if len(names) > PINS:
                raise SynthesisError(f"{outputs[0].cell.kind} has more than {PINS} inputs")
            tables.append(_table(outputs[0].logic, names))
            spare = [self._constants[0]] * (PINS - len(names))
            pins += [[self._at(out.cell, pin) for pin in names] + spare for out in outputs]
        return Gates(
            np.array(pins),
            np.repeat(np.arange(len(kinds)), [len(outputs) for outputs in kinds]),
            np.array(tables),
            np.concatenate([_edges(outputs, delay) for outputs in kinds]),
            np.array([self.row[out.net] for outputs in kinds for out in outputs]),
        )

    def _at(self, cell: Instance, pin: str) -> int:
        """Where the value of a cell's input is."""
        net = cell.connections.get(pin)
        if net is None:
            return self._constants[(cell.name, pin) in self._netlist.ones]
        return self.row[net]


def _outputs(cell: Instance, library: Library) -> Iterator[_Output]:
    """The outputs of a gate that drive a net."""
    for pin in library.cells[cell.kind].pins.values():
        net = cell.connections.get(pin.name)
        if pin.direction == "output" and net is not None:
            yield _Output(cell, pin.name, net, function.parse(pin.function or ""))


def _registered(cell: Instance, library: Library) -> Iterator[_Output]:
    """The outputs of a register, with what they become at the clock edge; of a gate none."""
    model = library.cells[cell.kind]
    if model.register is None or model.state is None:
        return
    if {"clear", "preset"} & model.register.keys():
        raise SynthesisError(f"{cell.kind} has an asynchronous set or reset")
    following = function.parse(model.register["next_state"])
    for out in _outputs(cell, library):
        inverted = out.logic == ("pin", model.state[1])
        yield dataclasses.replace(out, logic=("!", following) if inverted else following)


def _levels(netlist: Netlist, library: Library) -> list[list[_Output]]:
    """The outputs of gates, each level after those that drive it."""
    depth: dict[int, int] = {}
    levels: dict[int, list[_Output]] = {}
    for cell in netlist.in_order(library):
        outputs = list(_outputs(cell, library))
        nets = cell.connections.values()
        at = max((depth[net] + 1 for net in nets if net in depth), default=0)
        levels.setdefault(at, []).extend(outputs)
        depth.update((out.net, at) for out in outputs)
    return [levels[at] for at in sorted(levels) if levels[at]]


def _by_kind(outputs: list[_Output]) -> list[list[_Output]]:
    kinds: dict[tuple[str, str], list[_Output]] = {}
    for out in outputs:
        kinds.setdefault((out.cell.kind, out.pin), []).append(out)
    return list(kinds.values())


def _edges(outputs: list[_Output], delay: dict[tuple[str, str], tuple[int, int]]) -> np.ndarray:
    """``int64[outputs, 2]``: delay of a falling and a rising output."""
    return np.array([delay[out.cell.name, out.pin][::-1] for out in outputs])


def _words(bits: np.ndarray) -> np.ndarray:
    """``uint64[bits]`` of ``bool[64, bits]``."""
    packed = np.packbits(np.asarray(bits, bool).T, axis=1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u8")[:, 0]


def _pins(tree: tuple) -> list[str]:
    """Names in a function, in order."""
    kind, *parts = tree
    if kind == "pin":
        return [parts[0]]
    return sorted({pin for part in parts for pin in _pins(part)}) if kind != "constant" else []


def _table(logic: tuple, pins: list[str]) -> np.ndarray:
    """``bool[2**PINS]``: a function by its pins, the first in the lowest bit."""
    code = np.arange(1 << PINS)
    values = {pin: (code >> at & 1).astype(bool) for at, pin in enumerate(pins)}
    return np.broadcast_to(_evaluate(logic, values), code.shape)


def _evaluate(tree: tuple, values: dict[str, np.ndarray]) -> np.ndarray:
    kind, *parts = tree
    if kind == "pin":
        return values[parts[0]]
    results = [_evaluate(part, values) for part in parts]
    if kind == "!":
        return ~results[0]
    return {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}[kind](*results)
