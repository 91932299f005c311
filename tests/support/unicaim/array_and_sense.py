# amaranth: UnusedElaboratable=no
# (a component is also created only to read its ports)
"""An array and the top-k sense, connected as in a design; the testbench of all arrays."""

import dataclasses

import numpy as np
from amaranth.hdl import Module, unsigned
from amaranth.lib import wiring

from golden.algorithms.unicaim.selection import top_k
from golden.unicaim.cells import query_planes
from hw.catalogue import Block
from hw.component import Component
from hw.parameters import Parameters
from hw.ports import Ports, stream_in, stream_out
from hw.unicaim.cell_array import CellArray, CellArrayParameters
from hw.unicaim.digital_array import DigitalArray, DigitalArrayParameters
from hw.unicaim.serial_array import SerialArray, SerialArrayParameters
from hw.unicaim.topk_sense import TopkSense, TopkSenseParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.unicaim.array_testbench import BitLines

ARRAYS = {
    "digital": (DigitalArray, DigitalArrayParameters),
    "serial": (SerialArray, SerialArrayParameters),
    "cell": (CellArray, CellArrayParameters),
}


@dataclasses.dataclass(frozen=True)
class ArrayAndSenseParameters(Parameters):
    kind: str = "digital"
    rows: int = 8
    d: int = 4
    query_bits: int = 1

    @property
    def array(self):
        parallel = {"parallel": 4} if self.kind == "serial" else {}
        sizes = {"rows": self.rows, "d": self.d, "query_bits": self.query_bits}
        return ARRAYS[self.kind][1](**sizes, **parallel)

    @property
    def sense(self) -> TopkSenseParameters:
        return TopkSenseParameters(rows=self.rows)

    @property
    def latency(self) -> int:
        return self.array.steps + 1


class ArrayAndSense(Component[ArrayAndSenseParameters]):
    """Bit lines and k in, addresses and scores out."""

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.array.input_layout),
            "k": stream_in(range(p.rows + 1)),
            "values": stream_out(p.array.values_layout),
            "o": stream_out(p.sense.output_layout),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.array = array = ARRAYS[p.kind][0](p.array)
        m.submodules.sense = sense = TopkSense(p.sense)
        wiring.connect(m, array.lines, sense.i)
        wiring.connect(m, sense.too_many, array.too_many)
        wiring.connect(m, wiring.flipped(self.i), array.i)
        wiring.connect(m, wiring.flipped(self.k), sense.k)
        wiring.connect(m, array.values, wiring.flipped(self.values))
        wiring.connect(m, sense.o, wiring.flipped(self.o))
        return m


BLOCK = Block(ArrayAndSense)


class Queries(BitLines):
    """Rows written and queries; expected outputs are the golden model's top k."""

    def __init__(self, parameters: ArrayAndSenseParameters):
        super().__init__(parameters.array)
        self.sense = parameters.sense
        self.selected: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        self.k: list[int] = []

    def query(self, levels: np.ndarray, k: int) -> None:
        self.apply(query_planes(levels, self.parameters.query_bits))
        scores = self.keys @ levels
        self.values.append(np.where(self.used, scores, 0))
        self.k.append(k)
        selected = top_k(scores, k, self.used) if k else np.zeros_like(self.used)
        self.selected.append(np.flatnonzero(selected))

    def stimulus(self) -> Stimulus:
        array = self.parameters
        sizes = [max(1, len(rows)) for rows in self.selected]
        owners = np.arange(len(sizes))
        addresses = {
            "row": np.concatenate([rows if len(rows) else [0] for rows in self.selected]),
            "present": np.repeat([len(rows) > 0 for rows in self.selected], sizes),
            "last": np.concatenate([np.arange(size) == size - 1 for size in sizes]),
        }
        return Stimulus(
            inputs={
                "i": self.payloads(),
                "k": payload.pack(unsigned(array.rows.bit_length()), {"payload": np.array(self.k)}),
            },
            outputs={
                "values": payload.pack(array.values_layout, {"": np.array(self.values)}),
                "o": payload.pack(self.sense.output_layout, addresses),
            },
            transaction_of={"values": owners, "o": np.repeat(owners, sizes)},
            transactions=len(sizes),
            cycles=0,
        )
