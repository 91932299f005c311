"""Activation and weight indices side by side (KLLM, section IV, Table I)."""

import dataclasses

from amaranth.hdl import Cat, Module, unsigned
from amaranth.lib import data

from hw.arith.datapath import Datapath, DatapathParameters
from hw.parameters import require


@dataclasses.dataclass(frozen=True)
class ConcatUnitParameters(DatapathParameters):
    """
    n
        Pairs of indices.
    activation_bits, weight_bits
        Of an index.
    """

    n: int = 80
    activation_bits: int = 4
    weight_bits: int = 4

    def __post_init__(self):
        super().__post_init__()
        for name in ("n", "activation_bits", "weight_bits"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))

    @classmethod
    def presets(cls) -> dict[str, "ConcatUnitParameters"]:
        # The paper's lane has 4096 units and gives 512 of them to its counters each cycle.
        return {
            "small": cls(n=16, stages=1),
            "default": cls(),
            "paper": cls(n=512, stages=1),
        }

    @property
    def index_bits(self) -> int:
        return self.activation_bits + self.weight_bits


class ConcatUnit(Datapath):
    """index[i] = activation[i] * 2^weight_bits + weight[i]: which product of centroids it takes.

    The mask says which inputs count (an outlier's does not, section III-B) and goes along.

    Latency: `stages`, 0 or 1; the paper's unit holds its result in a register. Throughput: n
    indices per cycle.

    Members
    -------
    activation : :py:`In(ArrayLayout(activation_bits, n))`
    weight : :py:`In(ArrayLayout(weight_bits, n))`
    mask : :py:`In(n)`
    index : :py:`Out(ArrayLayout(activation_bits + weight_bits, n))`
    mask_out : :py:`Out(n)`
        The inputs' mask.
    """

    summary = "Activation and weight indices side by side"
    source = "KLLM, section IV-A"

    def __init__(self, parameters: ConcatUnitParameters):
        p = parameters
        inputs = {
            "activation": data.ArrayLayout(p.activation_bits, p.n),
            "weight": data.ArrayLayout(p.weight_bits, p.n),
            "mask": unsigned(p.n),
        }
        index = data.ArrayLayout(p.index_bits, p.n)
        super().__init__(p, inputs, {"index": index, "mask_out": unsigned(p.n)})

    def elaborate(self, platform):
        m = Module()
        pairs = zip(self.weight, self.activation, strict=True)
        index = Cat(half for pair in pairs for half in pair)
        index, mask = self.registers(m)("result", index=index, mask=self.mask)
        m.d.comb += [self.index.eq(index), self.mask_out.eq(mask)]
        return m
