"""Weighted sum of a histogram: counts times products of centroids (KLLM, section III-B, step 3)."""

import dataclasses

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.fixed_sum import LARGEST, SUM, FixedSum, FixedSumParameters, significand
from hw.arith.float_format import FP16
from hw.component import Component
from hw.parameters import Parameters, require


@dataclasses.dataclass(frozen=True)
class ReductionParameters(Parameters):
    """
    k
        Indices counted in a column: counts are at most this.
    activation_bits, weight_bits
        Of the indices; there are 2^(activation_bits + weight_bits) bins.
    macs
        Bins in a beat, a power of two that divides their number.
    """

    k: int = 576
    activation_bits: int = 4
    weight_bits: int = 4
    macs: int = 32

    def __post_init__(self):
        require(1 <= self.k <= 1 << 16, "k must be between 1 and 65536", self.k)
        for name in ("activation_bits", "weight_bits"):
            value = getattr(self, name)
            require(1 <= value <= 8, f"{name} must be between 1 and 8", value)
        power = self.macs > 0 and self.macs & (self.macs - 1) == 0
        rule = f"macs must be a power of two up to {self.bins}"
        require(power and self.macs <= self.bins, rule, self.macs)

    @classmethod
    def presets(cls) -> dict[str, "ReductionParameters"]:
        return {
            "small": cls(k=64, macs=64),
            "default": cls(),
            "paper": cls(k=4096),
            # For mutants, which simulate slowly.
            "narrow": cls(k=31, activation_bits=2, weight_bits=2, macs=4),
        }

    @property
    def bits(self) -> int:
        return self.activation_bits + self.weight_bits

    @property
    def bins(self) -> int:
        return 1 << self.bits

    @property
    def groups(self) -> int:
        """Beats of a full column."""
        return self.bins // self.macs

    @property
    def count_bits(self) -> int:
        return self.k.bit_length()

    @property
    def total(self) -> int:
        """The most that the counts of a column may add up to: k, in integer mode k a bit."""
        return self.k * self.activation_bits

    @property
    def latency(self) -> int:
        """Cycles from a column's last beat to its sum."""
        return 1 + FixedSumParameters.LATENCY

    def cycles(self, beats: int) -> int:
        """Cycles for `beats` beats in columns of at least `groups`, when nothing stalls."""
        return beats + self.latency

    @property
    def input_layout(self) -> data.StructLayout:
        """One group: ``counts``, ``products`` (FP16 bits) of the same bins, ``last`` of a column"""
        return data.StructLayout(
            {
                "counts": data.ArrayLayout(self.count_bits, self.macs),
                "products": data.ArrayLayout(FP16.width, self.macs),
                "last": 1,
            }
        )

    @property
    def output_layout(self) -> data.StructLayout:
        """``sum`` FP32 bits, ``invalid``."""
        return SUM

    @property
    def summing(self) -> FixedSumParameters:
        return FixedSumParameters(
            terms=self.macs,
            magnitude=self.count_bits + FP16.precision,
            shift=5,
            even=1,
            width=(self.total * LARGEST).bit_length() + 1,
            fraction=24,
            groups=self.groups,
            latency=self.latency,
        )


class Reduction(Component):
    """sum = round32(sum over a column's bins of count * product): exact but for one rounding.

    An FP16 number is an integer of 41 bits, sign included, times 2^-24. So each product of a count
    is an integer: count times significand, shifted by the exponent. All of a column are added in
    carry-save form and rounded once, to nearest even, so that the sum does not depend on the order
    of bins. A sum of zero is +0. A bin above 0 whose product is infinite or NaN makes the sum the
    quiet NaN and sets ``invalid``; what an empty bin's product is does not matter.

    Latency: 5 cycles from a column's last beat to its sum. Throughput: one beat a cycle, for
    columns of `groups` beats or more; shorter ones wait for earlier sums.

    Handshake: ``i.ready`` is low while as many columns are inside as the output queue has room
    for; it depends on registers only. Limits: the counts of a column may add up to
    k * activation_bits, which no column of k indices exceeds; beyond, the sum is wrong.

    Members
    -------
    i : :py:`In(stream.Signature(parameters.input_layout))`
        Groups of bins, in any order.
    o : :py:`Out(stream.Signature(parameters.output_layout))`
        A sum for each column.
    """

    summary = "Weighted sum of a histogram, exact"
    source = "KLLM, section III-B"

    def __init__(self, parameters: ReductionParameters):
        self._parameters = parameters
        super().__init__(
            {
                "i": In(stream.Signature(parameters.input_layout)),
                "o": Out(stream.Signature(parameters.output_layout)),
            }
        )

    @property
    def parameters(self) -> ReductionParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        m.submodules.sum = total = FixedSum(self._parameters.summing)
        wiring.connect(m, total.o, wiring.flipped(self.o))
        group = self.i.payload
        taken = Signal()
        m.d.comb += [
            self.i.ready.eq(total.available),
            taken.eq(self.i.valid & self.i.ready),
            total.take.eq(taken & group.last),
        ]
        valid = Signal()
        last = Signal()
        invalid = Signal()
        terms = Signal(total.terms.shape(), reset_less=True)
        spoilt = []
        for number, (count, bits) in enumerate(zip(group.counts, group.products, strict=True)):
            digits, shift, special = significand(m, bits, f"bin_{number}")
            spoilt.append(special & count.any())
            m.d.sync += [
                terms[number].magnitude.eq(count * digits),
                terms[number].shift.eq(shift),
                terms[number].sign.eq(bits[-1]),
            ]
        m.d.sync += [valid.eq(taken), last.eq(group.last), invalid.eq(Cat(spoilt).any())]
        m.d.comb += [
            total.valid.eq(valid),
            total.last.eq(last),
            total.invalid.eq(invalid),
            total.terms.eq(terms),
        ]
        return m
