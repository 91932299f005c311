"""Outliers of the activations times dequantised weights, summed (KLLM, section III-D)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data

from hw.arith.fixed_sum import LARGEST, SUM, FixedSumParameters, significand
from hw.arith.float_format import FP16
from hw.kllm.column_sum import ColumnSum
from hw.layout import FLAG, index, position
from hw.parameters import Parameters, require


@dataclasses.dataclass(frozen=True)
class SparsePathParameters(Parameters):
    """
    k
        Positions of the longest column, and most outliers in it.
    weight_bits
        Bits of a weight index.
    counters
        Positions of a segment, in units of 16.
    entries
        Outliers in a row.
    """

    k: int = 576
    weight_bits: int = 4
    counters: int = 5
    entries: int = 2

    def __post_init__(self):
        require(1 <= self.k <= 1 << 16, "k must be between 1 and 65536", self.k)
        rule = "weight_bits must be between 1 and 8"
        require(1 <= self.weight_bits <= 8, rule, self.weight_bits)
        require(self.counters >= 1, "counters must be at least 1", self.counters)
        require(self.entries >= 1, "entries must be at least 1", self.entries)

    @classmethod
    def presets(cls) -> dict[str, "SparsePathParameters"]:
        return {
            "small": cls(k=64, counters=1, entries=1),
            "default": cls(),
            "paper": cls(k=4096, counters=32, entries=8),
        }

    @property
    def segment(self) -> int:
        """W: positions of a segment."""
        return 16 * self.counters

    @property
    def segments(self) -> int:
        """Segments of the longest column."""
        return -(-self.k // self.segment)

    @property
    def multiply_stages(self) -> int:
        """Cycles from a row to its terms: selection of the centroids, multiplication."""
        return 2

    @property
    def latency(self) -> int:
        """Cycles from a column's last row to its sum."""
        return self.multiply_stages + FixedSumParameters.LATENCY

    def cycles(self, rows: int) -> int:
        """Cycles for `rows` rows, when nothing stalls."""
        return rows + self.latency

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """One row.

        ``weight`` indices of the segment, ``codebook`` of their centroids, ``entries`` as in
        :class:`OutlierList`: ``valid``, ``position`` in the segment, ``value``; ``last`` row of the
        column.
        """
        place = position(range(self.segment))
        entry = data.StructLayout({"valid": FLAG, "position": place, "value": FP16})
        return data.StructLayout(
            {
                "weight": data.ArrayLayout(index(self.weight_bits), self.segment),
                "codebook": data.ArrayLayout(FP16, 1 << self.weight_bits),
                "entries": data.ArrayLayout(entry, self.entries),
                "last": FLAG,
            }
        )

    @property
    def output_layout(self) -> data.StructLayout:
        """``sum`` (FP32), ``invalid``."""
        return SUM

    @cached_property
    def fixed_sum(self) -> FixedSumParameters:
        return FixedSumParameters(
            terms=self.entries,
            magnitude=2 * FP16.precision,
            shift=6,
            even=2,
            width=(self.k * LARGEST**2).bit_length() + 1,
            fraction=48,
            groups=1,
            latency=self.latency,
        )


class SparsePath(ColumnSum):
    """sum = round32(sum over a column's outliers of value * codebook[weight[position]]).

    ::

        weight ─→ select ─→ centroid ─┐
                                      ├─→ multiply ─→ shift ─→ add, accumulate ─→ round ─→ o
        entries ─────────→ value ─────┘

        term     significand · significand << shift + shift,  in units of 2^-50, a multiple of 4

    Exact but for one rounding. Rounding, errors, throughput and handshake are as in
    :class:`ColumnSum`: the value or the centroid of a valid entry may be the infinity or NaN.

    Latency: 6 cycles from a column's last row to its sum. Throughput: one row a cycle. Overflow:
    none for up to k entries in a column; beyond, a sum near the largest possible is wrong.

    Examples
    --------
    >>> from hw.kllm.sparse_path import SparsePathParameters
    >>> parameters = SparsePathParameters(k=576, counters=5, entries=2)
    >>> parameters.segments, parameters.latency, parameters.cycles(80)
    (8, 6, 86)
    >>> parameters.fixed_sum.width  # bits of the exact sum
    91
    """

    summary = "Outliers times weights, summed exactly"
    source = "KLLM, section III-D"

    def _multiply(self, m: Module, terms) -> list[Value]:
        """Select each entry's centroid, then multiply the significands."""
        row = self.i.payload
        special: list[Value] = []
        for number, entry in enumerate(row.entries):
            # Stage 1: value and centroid, both zero in an entry that is not valid.
            weight = select(m, entry.position, list(row.weight), f"index_{number}")
            chosen = select(m, weight, list(row.codebook), f"chosen_{number}")
            centroid = Signal(FP16.width, name=f"centroid_{number}", reset_less=True)
            value = Signal(FP16.width, name=f"value_{number}", reset_less=True)
            valid = entry.valid.replicate(FP16.width)
            # An entry that is not valid is a product of zeros, so a row with fewer outliers needs
            # no enables.
            m.d.sync += [centroid.eq(chosen & valid), value.eq(entry.value & valid)]
            # Stage 2: the product as a term.
            digits, shifts, infinite_or_nan = zip(
                significand(m, value, f"value_{number}"),
                significand(m, centroid, f"centroid_{number}"),
                strict=True,
            )
            m.d.sync += [
                # Outliers are multiplied as FP16 numbers by the weight's centroid; there are so few
                # of them that a multiplier for each entry of a row is cheap (KLLM, section III-D).
                terms[number].magnitude.eq(digits[0] * digits[1]),
                terms[number].shift.eq(shifts[0] + shifts[1]),
                terms[number].sign.eq(value[-1] ^ centroid[-1]),
            ]
            special += infinite_or_nan
        return special


def select(m: Module, number: Value, values: list[Value], name: str) -> Value:
    """``values[number]``, by a tree of multiplexers; any of them for a number that is too large."""
    # Each bit of the number halves the values, lowest bit first.
    for level, bit in enumerate(number):
        pairs = [values[n : n + 2] for n in range(0, len(values), 2)]
        values = []
        for n, pair in enumerate(pairs):
            one = Signal.like(pair[0], name=f"{name}_{level}_{n}")
            m.d.comb += one.eq(Mux(bit, pair[1], pair[0]) if len(pair) > 1 else pair[0])
            values.append(one)
    return values[0]
