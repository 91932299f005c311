"""Outliers of the activations times dequantised weights, summed (KLLM, section III-D)."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.fixed_sum import LARGEST, SUM, FixedSum, FixedSumParameters, significand
from hw.arith.float_format import FP16
from hw.component import Component
from hw.parameters import Parameters, require


@dataclasses.dataclass(frozen=True)
class SparsePathParameters(Parameters):
    """
    k
        Most outliers in a column, and positions in it.
    weight_bits
        Of an index.
    counters
        Positions in a segment, in units of 16.
    ports
        Entries in a row.
    """

    k: int = 576
    weight_bits: int = 4
    counters: int = 5
    ports: int = 2

    def __post_init__(self):
        require(1 <= self.k <= 1 << 16, "k must be between 1 and 65536", self.k)
        rule = "weight_bits must be between 1 and 8"
        require(1 <= self.weight_bits <= 8, rule, self.weight_bits)
        require(self.counters >= 1, "counters must be at least 1", self.counters)
        require(self.ports >= 1, "ports must be at least 1", self.ports)

    @classmethod
    def presets(cls) -> dict[str, "SparsePathParameters"]:
        return {
            "small": cls(k=64, counters=1, ports=1),
            "default": cls(),
            "paper": cls(k=4096, counters=32, ports=8),
        }

    @property
    def width(self) -> int:
        """Positions in a segment."""
        return 16 * self.counters

    @property
    def segments(self) -> int:
        """Of a column; it has at least as many rows."""
        return -(-self.k // self.width)

    @property
    def latency(self) -> int:
        """Cycles from a column's last row to its sum."""
        return 2 + FixedSumParameters.LATENCY

    def cycles(self, rows: int) -> int:
        """Cycles for `rows` rows in columns of at least `segments`, when nothing stalls."""
        return rows + self.latency

    @property
    def input_layout(self) -> data.StructLayout:
        """One row.

        ``weight`` the segment's weight indices, ``codebook`` their centroids (FP16 bits),
        ``entries`` up to `ports` outliers of the segment: whether there is one (``valid``), its
        ``position`` in the segment and its ``value`` (FP16 bits); ``last`` of the column.
        """
        entry = data.StructLayout({"valid": 1, "position": range(self.width), "value": FP16.width})
        return data.StructLayout(
            {
                "weight": data.ArrayLayout(self.weight_bits, self.width),
                "codebook": data.ArrayLayout(FP16.width, 1 << self.weight_bits),
                "entries": data.ArrayLayout(entry, self.ports),
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
            terms=self.ports,
            magnitude=2 * FP16.precision,
            shift=6,
            even=2,
            width=(self.k * LARGEST**2).bit_length() + 1,
            fraction=48,
            groups=self.segments,
            latency=self.latency,
        )


class SparsePath(Component):
    """sum = round32(sum over a column's outliers of value * codebook[weight[position]]).

    ::

        weight ─→ select ─→ centroid ─┐
                                      ├─→ multiply ─→ shift ─→ add, accumulate ─→ round ─→ o
        entries ─────────→ value ─────┘

    Exact but for one rounding to nearest even: a product of two FP16 numbers is an integer of 80
    bits times 2^-48, and all of a column fit 80 + log2 k bits and a sign. So the sum does not
    depend on the order. Nothing to add gives +0. An entry whose value or centroid is infinite or
    NaN makes the sum the quiet NaN and sets ``invalid``.

    Latency: 6 cycles from a column's last row to its sum. Throughput: one row a cycle, for columns
    of `segments` rows or more; shorter ones wait for earlier sums.

    Handshake: ``i.ready`` is low while as many columns are inside as the output queue has room
    for; it depends on registers only. A column may have at most k entries; beyond, a sum near the
    largest possible is wrong.

    Members
    -------
    i : :py:`In(stream.Signature(parameters.input_layout))`
        Rows. The codebook is not kept: it belongs to the row, like the weights.
    o : :py:`Out(stream.Signature(parameters.output_layout))`
        A sum for each column.
    """

    summary = "Outliers times weights, summed exactly"
    source = "KLLM, section III-D"

    def __init__(self, parameters: SparsePathParameters):
        self._parameters = parameters
        super().__init__(
            {
                "i": In(stream.Signature(parameters.input_layout)),
                "o": Out(stream.Signature(parameters.output_layout)),
            }
        )

    @property
    def parameters(self) -> SparsePathParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        m.submodules.sum = total = FixedSum(self._parameters.summing)
        wiring.connect(m, total.o, wiring.flipped(self.o))
        row = self.i.payload
        taken = Signal()
        m.d.comb += [
            self.i.ready.eq(total.available),
            taken.eq(self.i.valid & self.i.ready),
            total.take.eq(taken & row.last),
        ]
        selected = Signal()
        last_selected = Signal()
        valid = Signal()
        last = Signal()
        m.d.sync += [selected.eq(taken), last_selected.eq(row.last)]
        m.d.sync += [valid.eq(selected), last.eq(last_selected)]

        terms = Signal(total.terms.shape(), reset_less=True)
        spoilt = []
        for number, entry in enumerate(row.entries):
            index = select(m, entry.position, list(row.weight), f"index_{number}")
            chosen = select(m, index, list(row.codebook), f"chosen_{number}")
            centroid = Signal(FP16.width, name=f"centroid_{number}", reset_less=True)
            value = Signal(FP16.width, name=f"value_{number}", reset_less=True)
            # Without an entry both are zero.
            there = entry.valid.replicate(FP16.width)
            m.d.sync += [centroid.eq(chosen & there), value.eq(entry.value & there)]
            digits, shifts, specials = zip(
                significand(m, value, f"value_{number}"),
                significand(m, centroid, f"centroid_{number}"),
                strict=True,
            )
            m.d.sync += [
                terms[number].magnitude.eq(digits[0] * digits[1]),
                terms[number].shift.eq(shifts[0] + shifts[1]),
                terms[number].sign.eq(value[-1] ^ centroid[-1]),
            ]
            spoilt += specials
        invalid = Signal()
        m.d.sync += invalid.eq(Cat(spoilt).any())
        m.d.comb += [
            total.valid.eq(valid),
            total.last.eq(last),
            total.invalid.eq(invalid),
            total.terms.eq(terms),
        ]
        return m


def select(m: Module, number: Value, values: list[Value], name: str) -> Value:
    """The value of that number, by multiplexers in a tree; any of them for a number too large."""
    for level, bit in enumerate(number):
        pairs = [values[n : n + 2] for n in range(0, len(values), 2)]
        values = []
        for n, pair in enumerate(pairs):
            one = Signal.like(pair[0], name=f"{name}_{level}_{n}")
            m.d.comb += one.eq(Mux(bit, pair[1], pair[0]) if len(pair) > 1 else pair[0])
            values.append(one)
    return values[0]
