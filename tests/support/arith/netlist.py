"""An arithmetic unit as a netlist of gates that NumPy evaluates for 64 operations at once.

Yosys reduces the unit to AND gates, inverters and flip-flops. One bit of every operation makes up
an array of 64-bit words, so that all 65 536 values of a 16-bit operand take milliseconds, without
compiling anything.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
from amaranth.hdl import Shape

from hw.emit.export import to_rtlil
from sim.core.yosys import yosys

_SCRIPT = [
    "read_rtlil unit.il",
    "hierarchy -top unit",
    "proc",
    "flatten",
    "opt",
    "memory",
    "opt",
    "techmap",
    "opt",
    "simplemap",
    "setattr -unset init w:*",
    "dfflegalize -cell $_DFF_P_ x",
    "aigmap",
    "opt_clean -purge",
    "write_json unit.json",
]


class Netlist:
    """A unit, purely combinational or with one clock and no resets.

    Flip-flops hold random bits at first, different ones in each operation's lane.
    """

    def __init__(self, unit, seed: int = 0, multiplier: str = "columns"):
        with tempfile.TemporaryDirectory() as folder:
            text = to_rtlil(unit, "unit", multiplier=multiplier)
            (Path(folder) / "unit.il").write_text(text)
            yosys(_SCRIPT, Path(folder), "reduce the unit to gates")
            text = (Path(folder) / "unit.json").read_text()
        module = json.loads(text)["modules"]["unit"]
        self._ports = {
            name: (port["direction"], port["bits"])
            for name, port in module["ports"].items()
            if name not in ("clk", "rst")
        }
        members = unit.signature.members
        self._signed = {n: Shape.cast(members[n].shape).signed for n in self._ports}
        cells = module["cells"].values()
        self._flipflops = [c["connections"] for c in cells if c["type"] == "$_DFF_P_"]
        gates = {c["connections"]["Y"][0]: c for c in cells if c["type"] != "$_DFF_P_"}
        assert {gate["type"] for gate in gates.values()} <= {"$_AND_", "$_NOT_"}
        self._order = self._sorted(gates)
        self._state: dict[int, np.ndarray] = {}
        self._rng = np.random.default_rng(seed)

    @property
    def flipflops(self) -> int:
        return len(self._flipflops)

    def __call__(self, **operands: np.ndarray) -> dict[str, np.ndarray]:
        """Results by port name for one array of integers for each operand, then a clock edge."""
        count = len(next(iter(operands.values())))
        results = self.evaluate(self.slices(operands))
        return {name: self._number(name, bits, count) for name, bits in results.items()}

    def slices(self, ports: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Integers of ports as ``uint64[width, words]``: one bit of 64 operations in each word.

        An array port has one row of integers for each operation; lanes left over are zero.
        """
        return {name: _slices(array, len(self._ports[name][1])) for name, array in ports.items()}

    def evaluate(self, operands: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Results by port name, both as :meth:`slices` makes them, then a clock edge."""
        words = next(iter(operands.values())).shape[1]
        zero = np.zeros(words, np.uint64)
        values: dict[str | int, np.ndarray] = {"0": zero, "1": ~zero, "x": zero}
        for flipflop in self._flipflops:
            random: np.ndarray = self._rng.integers(0, 1 << 64, (words,), dtype=np.uint64)
            bit = flipflop["Q"][0]
            values[bit] = self._state.get(bit, random)
        for name, operand in operands.items():
            direction, bits = self._ports[name]
            assert direction == "input"
            values.update(zip(bits, operand, strict=True))
        for output, (first, second) in self._order:
            inverted = ~values[first] if second is None else values[first] & values[second]
            values[output] = inverted
        self._state = {f["Q"][0]: values[f["D"][0]] for f in self._flipflops}
        return {
            name: np.stack([values[bit] for bit in bits])
            for name, (direction, bits) in self._ports.items()
            if direction == "output"
        }

    def _number(self, name: str, bits: np.ndarray, count: int) -> np.ndarray:
        number = np.zeros(count, np.int64)
        for place, bit in enumerate(bits):
            number |= unpacked(bit, count) << place
        if self._signed[name]:
            number -= (number >> len(bits) - 1) << len(bits)
        return number

    def _sorted(self, gates: dict) -> list:
        """Gates as (output, (input, other input or None)), in topological order."""
        order, placed = [], set()

        def place(output):
            waiting = [output]
            while waiting:
                bit = waiting[-1]
                if bit in placed or bit not in gates:
                    waiting.pop()
                    continue
                connections = gates[bit]["connections"]
                inputs = [connections[pin][0] for pin in ("A", "B") if pin in connections]
                missing = [i for i in inputs if i in gates and i not in placed]
                waiting += missing
                if not missing:
                    order.append((bit, (inputs[0], inputs[1] if len(inputs) > 1 else None)))
                    placed.add(bit)
                    waiting.pop()

        for output in gates:
            place(output)
        return order


def _slices(numbers: np.ndarray, width: int) -> np.ndarray:
    columns = np.asarray(numbers).astype(np.int64)
    columns = columns.T if columns.ndim == 2 else columns[None]
    width //= len(columns)
    return np.stack([_packed(column >> place & 1) for column in columns for place in range(width)])


def _packed(bits: np.ndarray) -> np.ndarray:
    padded = np.zeros(-(-len(bits) // 64) * 64, np.uint8)
    padded[: len(bits)] = bits
    return np.packbits(padded, bitorder="little").view(np.uint64)


def unpacked(words: np.ndarray, count: int) -> np.ndarray:
    """The bits of `count` operations."""
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:count].astype(np.int64)
