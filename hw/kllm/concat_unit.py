"""Activation and weight indices side by side (KLLM, section IV, Table I)."""

import dataclasses

from amaranth.hdl import Cat, Module
from amaranth.lib import data

from hw.arith.datapath import Datapath, DatapathParameters
from hw.layout import index, mask
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class ConcatUnitParameters(DatapathParameters):
    """
    n
        Pairs of indices.
    activation_bits, weight_bits
        Bits of the two indices of a pair.
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
        # The paper's lane has 4096 units; its counters read 512 of them each cycle.
        return {
            "small": cls(n=16, stages=1),
            "default": cls(),
            "paper": cls(n=512, stages=1),
        }

    @property
    def index_bits(self) -> int:
        return self.activation_bits + self.weight_bits


class ConcatUnit(Datapath[ConcatUnitParameters]):
    """index[i] = activation[i] * 2^weight_bits + weight[i], the number of a product of centroids.

    ::

        | activation | weight | = index

    The mask of counted inputs (outliers are not counted, section III-B) passes with the same delay.

    Latency: `stages`, 0 or 1; the paper's unit has a register at its output. Throughput: n
    indices per cycle.

    Examples
    --------
    >>> from hw.kllm.concat_unit import ConcatUnit, ConcatUnitParameters
    >>> unit = ConcatUnit(ConcatUnitParameters(n=16, activation_bits=4, weight_bits=3))
    >>> unit.index.shape().elem_shape.width  # 4 + 3 bits
    7
    """

    summary = "Activation and weight indices side by side"
    source = "KLLM, section IV-A"

    def operation(self) -> Ports:
        p = self.parameters
        activations = data.ArrayLayout(index(p.activation_bits), p.n)
        weights = data.ArrayLayout(index(p.weight_bits), p.n)
        return {
            "activation": wire_in(activations, "Indices of activations."),
            "weight": wire_in(weights, "Indices of weights."),
            "mask": wire_in(mask(p.n), "Inputs that count."),
            "index": wire_out(data.ArrayLayout(index(p.index_bits), p.n), "Joined indices."),
            "mask_out": wire_out(mask(p.n), "The inputs' mask."),
        }

    def elaborate(self, platform):
        m = Module()
        pairs = zip(self.weight, self.activation, strict=True)
        joined = Cat(half for pair in pairs for half in pair)
        joined, counted = self.registers(m)("result", index=joined, mask=self.mask)
        m.d.comb += [self.index.eq(joined), self.mask_out.eq(counted)]
        return m
