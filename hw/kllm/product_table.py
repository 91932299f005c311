"""Stores products of all pairs of centroids, read by group for every column (KLLM, Fig. 3)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Module, Signal, unsigned
from amaranth.lib import data, memory

from hw.arith.float_format import FP16
from hw.component import Component
from hw.layout import count, index
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class ProductTableParameters(Parameters):
    """
    activation_bits, weight_bits
        nA and nW: there are 2^nA rows of 2^nW products.
    macs
        M: products in a group, a power of two from 2^nW to 2^(nA + nW).
    columns
        Most columns for which a table is read.
    """

    activation_bits: int = 4
    weight_bits: int = 4
    macs: int = 32
    columns: int = 1536

    def __post_init__(self):
        for name in ("activation_bits", "weight_bits"):
            value = getattr(self, name)
            require(1 <= value <= 8, f"{name} must be between 1 and 8", value)
        power = self.macs > 0 and self.macs & (self.macs - 1) == 0
        low, high = 1 << self.weight_bits, 1 << self.activation_bits + self.weight_bits
        rule = f"macs must be a power of two from {low} to {high}"
        require(power and low <= self.macs <= high, rule, self.macs)
        require(self.columns >= 1, "columns must be at least 1", self.columns)

    @classmethod
    def presets(cls) -> dict[str, "ProductTableParameters"]:
        return {
            "small": cls(activation_bits=3, weight_bits=1, macs=4, columns=5),
            "default": cls(),
            "paper": cls(columns=4096),
        }

    @property
    def rows(self) -> int:
        """Rows of a table: 2^nA."""
        return 1 << self.activation_bits

    @property
    def groups(self) -> int:
        """G: groups of a table."""
        return (1 << self.activation_bits + self.weight_bits) // self.macs

    @property
    def latency(self) -> int:
        """Cycles from a replay to its first group."""
        return 1

    def cycles(self, columns: list[int]) -> int:
        """Cycles from the first replay offered to the last group accepted, when nothing stalls.

        Of replays of all groups.
        """
        return sum(columns) * self.groups + self.latency

    @cached_property
    def write_layout(self) -> data.StructLayout:
        """``values``: the products of the activations' centroid ``row``, for table ``bank``."""
        values, row = data.ArrayLayout(FP16, 1 << self.weight_bits), index(self.activation_bits)
        return data.StructLayout({"bank": index(1), "row": row, "values": values})

    @cached_property
    def replay_layout(self) -> data.StructLayout:
        """Number of ``columns`` for which the first ``groups`` of table ``bank`` are read.

        Both are at least 1.
        """
        columns, groups = range(self.columns + 1), range(self.groups + 1)
        return data.StructLayout(
            {"bank": index(1), "columns": count(columns), "groups": count(groups)}
        )

    @cached_property
    def output_layout(self) -> data.ArrayLayout:
        """One group."""
        return data.ArrayLayout(FP16, self.macs)


class ProductTable(Component[ProductTableParameters]):
    """Two tables of products, of which one is read in groups of M, again for every column.

    ::

        write ─→ bank 0 ─┐
                 bank 1 ─┴─→ o, groups 0 … G' - 1, column after column

    Rows are written one a cycle, to one table while the other is read. The parent must not write
    the table that is read: its groups would be a mixture of old and new rows.

    Latency: 1 cycle. Throughput: one group a cycle, from column to column and from replay to
    replay without a gap.

    Handshake: ``write.ready`` is always high, ``o.valid`` and ``o.payload`` are registers,
    ``replay.ready`` follows ``o.ready`` combinationally. The memories have synchronous read ports.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "write": stream_in(p.write_layout, "Rows."),
            "replay": stream_in(
                p.replay_layout, "Table and number of columns; accepted with the last group."
            ),
            "o": stream_out(p.output_layout, "Groups in order of index."),
        }

    def elaborate(self, platform):
        m = Module()
        p, o = self.parameters, self.o
        column = from_one(p.columns, "column")
        group = Signal(range(p.groups))
        free = Signal()
        fire = Signal()
        final = Signal()
        m.d.comb += [
            # Writes never wait: the two banks keep them away from the rows that are read.
            # A bank is written only while no product in flight reads it, which the dispatch
            # guarantees.
            self.write.ready.eq(1),
            free.eq(~o.valid | o.ready),
            fire.eq(self.replay.valid & free),
            final.eq(group == self.replay.payload.groups - 1),
            self.replay.ready.eq(
                free & final & (column == self.replay.payload.columns[: len(column)])
            ),
        ]
        # The read ports of the memories are the output register.
        with m.If(free):
            m.d.sync += o.valid.eq(fire)
        # Groups 0 to G' - 1 for each column.
        if p.groups > 1:
            with m.If(fire):
                m.d.sync += group.eq(group + 1)
            with m.If(fire & final):
                m.d.sync += group.eq(0)
        with m.If(fire & final):
            m.d.sync += column.eq(column + 1)
        with m.If(self.replay.ready):
            m.d.sync += column.eq(1)  # as it is without a replay

        # A group is read in one cycle, so its rows are in different memories:
        #
        #     row number     | group | memory |
        #     address        | bank | group |
        row_width = FP16.width << p.weight_bits
        rows_of_group = p.rows // p.groups
        write = self.write.payload
        inner = rows_of_group.bit_length() - 1
        for n in range(rows_of_group):
            m.submodules[f"rows_{n}"] = rows = memory.Memory(
                shape=unsigned(row_width), depth=2 * p.groups, init=[]
            )
            # One memory for each row of a group, with all groups of both banks.
            put, get = rows.write_port(), rows.read_port()
            m.d.comb += [
                put.en.eq(self.write.valid & (write.row[:inner] == n)),
                put.addr.eq(Cat(write.row[inner:], write.bank)),
                put.data.eq(write.values.as_value()),
                get.en.eq(fire),
                get.addr.eq(Cat(group, self.replay.payload.bank)),
                o.payload.as_value().word_select(n, row_width).eq(get.data),
            ]
        return m


def from_one(most: int, name: str) -> Signal:
    """A number from 1 to `most`, without the bit that only `most` may need: it may be 0 here."""
    return Signal(max(1, (most - 1).bit_length()), name=name, init=1)
