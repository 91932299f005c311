"""Weighted sum of a histogram: counts times products of centroids (KLLM, section III-B, step 3)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Module, Value
from amaranth.lib import data

from hw.arith.fixed_sum import LARGEST, SUM, FixedSumParameters, significand
from hw.arith.float_format import FP16
from hw.kllm.column_sum import ColumnSum
from hw.layout import FLAG, count
from hw.parameters import Parameters, require


@dataclasses.dataclass(frozen=True)
class ReductionParameters(Parameters):
    """
    k
        Indices counted in a column, the most that a count can be.
    activation_bits, weight_bits
        Bits of the indices; there are 2^(activation_bits + weight_bits) bins.
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
    def bins(self) -> int:
        return 1 << self.activation_bits + self.weight_bits

    @property
    def groups(self) -> int:
        """Beats of a column with counts in all bins."""
        return self.bins // self.macs

    @property
    def count_bits(self) -> int:
        return self.k.bit_length()

    @property
    def total(self) -> int:
        """Limit of the sum of a column's counts: k, and in integer mode k for each bit."""
        return self.k * self.activation_bits

    @property
    def multiply_stages(self) -> int:
        """Cycles from a beat to its terms."""
        return 1

    @property
    def latency(self) -> int:
        """Cycles from a column's last beat to its sum."""
        return self.multiply_stages + FixedSumParameters.LATENCY

    def cycles(self, beats: int) -> int:
        """Cycles for `beats` beats, when nothing stalls."""
        return beats + self.latency

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """One group: ``counts`` and ``products`` of the same bins, ``last`` of the column."""
        counts = data.ArrayLayout(count(self.count_bits), self.macs)
        products = data.ArrayLayout(FP16, self.macs)
        return data.StructLayout({"counts": counts, "products": products, "last": FLAG})

    @property
    def output_layout(self) -> data.StructLayout:
        """``sum`` (FP32), ``invalid``."""
        return SUM

    @cached_property
    def fixed_sum(self) -> FixedSumParameters:
        return FixedSumParameters(
            terms=self.macs,
            magnitude=self.count_bits + FP16.precision,
            shift=5,
            even=1,
            width=(self.total * LARGEST).bit_length() + 1,
            fraction=24,
            groups=1,
            latency=self.latency,
        )


class Reduction(ColumnSum):
    """sum = round32(sum over a column's bins of count * product), exact but for one rounding.

    ::

        FP16 product     | s | exponent | fraction |  =  ± significand · 2^(shift - 25)
        term             count · significand << shift,  an integer in units of 2^-25, always even

    Rounding, errors, throughput and handshake are as in :class:`ColumnSum`. A product that is
    infinite or NaN counts as an error only in a bin with a count above 0.

    Latency: 5 cycles from a column's last beat to its sum. Throughput: one beat a cycle. Overflow:
    none while the counts of a column add up to at most k * activation_bits, which no column of k
    indices exceeds; beyond, the sum is wrong.

    Examples
    --------
    >>> from hw.kllm.reduction import ReductionParameters
    >>> parameters = ReductionParameters(k=576, macs=32)
    >>> parameters.groups, parameters.latency
    (8, 5)
    >>> parameters.fixed_sum.width  # bits of the exact sum
    53
    """

    summary = "Weighted sum of a histogram, exact"
    source = "KLLM, section III-B"

    def _multiply(self, m: Module, terms) -> list[Value]:
        """count * significand of each bin's product."""
        group, special = self.i.payload, []
        # A column of K products becomes 2^(nA + nW) products of a count and a table entry, whatever
        # K is (KLLM, section III-B).
        for number, (times, product) in enumerate(zip(group.counts, group.products, strict=True)):
            # The shift is applied by FixedSum; here only the integers are multiplied.
            digits, shift, infinite_or_nan = significand(m, product, f"bin_{number}")
            # A bin that nothing falls in does not count, whatever its product is.
            special.append(infinite_or_nan & times.any())
            m.d.sync += [
                terms[number].magnitude.eq(times * digits),
                terms[number].shift.eq(shift),
                terms[number].sign.eq(product[-1]),
            ]
        return special
