"""Lists a vector's outliers and outputs them for every column (KLLM, section III-D)."""

import dataclasses
from functools import cached_property
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring

from hw.arith.float_format import FP16
from hw.component import Component
from hw.kllm.core.replay_memory import ReplayMemory, ReplayMemoryParameters
from hw.layout import FLAG, count, mask, position
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class OutlierListParameters(Parameters):
    """
    k
        K: values in the longest vector.
    segment
        W: positions of one segment, a multiple of `lanes`.
    lanes
        Values in one input beat, a power of two up to 64.
    entries
        R: entries in one row.
    outliers
        Most outliers of a vector.
    columns
        Most columns for which a batch's rows are output.
    vectors
        Most vectors of a batch.
    """

    k: int = 576
    segment: int = 80
    lanes: int = 16
    entries: int = 2
    outliers: int = 6
    columns: int = 1536
    vectors: int = 1

    def __post_init__(self):
        for name in ("k", "entries", "outliers", "columns", "vectors"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))
        power = self.lanes > 0 and self.lanes & (self.lanes - 1) == 0
        rule = "lanes must be a power of two up to 64"
        require(power and self.lanes <= 64, rule, self.lanes)
        multiple = self.segment >= 1 and self.segment % self.lanes == 0
        require(multiple, f"segment must be a multiple of lanes = {self.lanes}", self.segment)

    @classmethod
    def presets(cls) -> dict[str, "OutlierListParameters"]:
        return {
            "small": cls(k=40, segment=12, lanes=4, entries=2, outliers=5, columns=5, vectors=3),
            "default": cls(),
            "paper": cls(4096, 512, entries=8, outliers=42, columns=4096, vectors=8),
        }

    @property
    def beats(self) -> int:
        """Input beats of a full vector."""
        return -(-self.k // self.lanes)

    @property
    def segments(self) -> int:
        """Segments of a full vector."""
        return -(-self.k // self.segment)

    @property
    def rows(self) -> int:
        """Most rows of a vector: one a segment, and one for every R outliers but the first."""
        return self.segments + (self.outliers - 1) // self.entries

    @cached_property
    def replay_memory(self) -> ReplayMemoryParameters:
        # A row: its entries, and whether it is the last of its segment, and of its vector.
        width = self.entries * self.entry_layout.size + 2
        return ReplayMemoryParameters(self.rows * self.vectors, 1, width, self.columns)

    @property
    def latency(self) -> int:
        """Cycles from a batch's last input beat accepted to its first row."""
        return self.replay_memory.latency

    def cycles(self, listing: list[int], rows: list[int]) -> int:
        """Cycles from the first beat offered to the last row accepted, when nothing stalls.

        listing, rows
            Cycles in which each batch is listed (:func:`golden.kllm.outlier_list.listing_cycles`
            of its vectors), and rows that are output of it, all columns together; at least one of
            the last batch.
        """
        return self.replay_memory.cycles(listing, rows)

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """``values`` in order of position, mask ``outlier`` of the outliers.

        ``last`` beat of a vector; with it, ``end``: the vector is its batch's last.
        """
        values = data.ArrayLayout(FP16, self.lanes)
        return data.StructLayout(
            {"values": values, "outlier": mask(self.lanes), "last": FLAG, "end": FLAG}
        )

    @cached_property
    def entry_layout(self) -> data.StructLayout:
        """``valid``, ``position`` in the segment, ``value``; all 0 in an unused entry."""
        place = position(range(self.segment))
        return data.StructLayout({"valid": FLAG, "position": place, "value": FP16})

    @cached_property
    def output_layout(self) -> data.StructLayout:
        """One row.

        ``entries`` of one segment in order of position, the valid ones first; ``advance`` on the
        segment's last row; ``last`` row of the vector; ``overflow`` on all rows of a batch with
        too many outliers in a vector.
        """
        entries = data.ArrayLayout(self.entry_layout, self.entries)
        return data.StructLayout(
            {"entries": entries, "advance": FLAG, "last": FLAG, "overflow": FLAG}
        )


class OutlierList(Component[OutlierListParameters]):
    """Pack a vector's outliers into rows of R entries, and output the rows for every column.

    ::

        i ─→ one outlier a cycle ─→ row ─→ ReplayMemory ─→ o, column after column

    A row holds outliers of one segment of W positions. A segment has ceil(outliers / R) rows, but
    at least one, so that a column's rows and its words of weights can be read side by side: the
    next word follows the row that says ``advance``::

        W = 4, R = 2, outliers at 0, 1, 3 and 9     segment  advance  entries
                                                    0        0        0, 1
                                                    0        1        3
                                                    1        1
                                                    2        1        1

    A vector ends with ``last`` or with the beat that makes it K long. Vectors up to one with
    ``end`` are a batch, of at most `vectors`: the rows of all of them are output for a column, then
    for the next. For each batch, `columns` is the number of columns; it is accepted with the last
    row, and 0 drops the batch. One batch is listed while the one before is output.

    Overflow: a vector has at most `outliers`. Those beyond are dropped, the first ones are kept,
    and all rows of the batch are flagged; the memory of twice `rows` rows a vector cannot overflow.

    Latency: 2 cycles from the end of a batch's listing to its first row. Throughput: one row per
    cycle, from column to column and from batch to batch without a gap. Listing takes a cycle for
    each outlier and for each beat without one; one more for every row of a segment but its last,
    and one more in a beat in which some outliers are listed and others dropped.

    Handshake: ``o.valid`` and ``o.payload`` are registers. ``i.ready`` depends on `i` and on
    registers, ``columns.ready`` follows ``o.ready`` combinationally. The memory has a synchronous
    read port.

    Examples
    --------
    >>> from hw.kllm.outlier_list import OutlierListParameters
    >>> parameters = OutlierListParameters(k=576, segment=80, entries=2, outliers=6)
    >>> parameters.segments, parameters.rows
    (8, 10)
    >>> parameters.cycles([37], [9 * 100])  # listed in 37 cycles, 9 rows for each of 100 columns
    938
    """

    summary = "Outliers of a vector as rows by segment, output for every column"
    source = "KLLM, section III-D"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "The vector in order of position."),
            "columns": stream_in(
                count(range(p.columns + 1)), "For each batch, the number of columns."
            ),
            "o": stream_out(p.output_layout, "Rows."),
        }

    def elaborate(self, platform):
        m = Module()
        o = self.o
        m.submodules.replay = rows = ReplayMemory(self.parameters.replay_memory)
        self._list(m, rows)
        wiring.connect(m, wiring.flipped(self.columns), rows.columns)
        row = rows.o.payload
        m.d.comb += [
            o.valid.eq(rows.o.valid),
            rows.o.ready.eq(o.ready),
            Cat(Value.cast(o.payload.entries), o.payload.advance, o.payload.last).eq(row.row),
            o.payload.overflow.eq(row.flag),
        ]
        return m

    def _list(self, m: Module, rows: ReplayMemory) -> None:
        """Read the vector, one outlier a cycle, and write its rows."""
        p, i = self.parameters, self.i
        beat = Signal(range(p.beats))
        part = Signal(range(max(2, p.segment // p.lanes)))  # beat within the segment
        listed = Signal(range(p.outliers + 1))  # number of listed outliers of this vector
        overflow = Signal()  # in an earlier beat of the batch
        done = Signal(p.lanes)  # outliers of this beat that are listed
        pending = Signal(p.lanes)  # those that are not
        chosen = Signal(p.lanes)  # the first of these, one-hot
        at_limit = Signal()
        dropped = Signal()
        present = Signal()
        m.d.comb += [
            at_limit.eq(listed == p.outliers),
            # One outlier a cycle: they are 1 % of the elements (KLLM, section III-A), so a priority
            # encoder and one write port are enough; a beat waits until all of its are listed.
            pending.eq(i.payload.outlier & ~done),
            dropped.eq(at_limit & pending.any()),
            chosen.eq(Cat(pending[n] & ~pending[:n].any() for n in range(p.lanes))),
            present.eq(pending.any() & ~at_limit),
        ]
        active = Signal()
        written = Signal()
        gathered, filled = self._gather(m, chosen, part, present, active, written)

        # A row is written with its segment's last outlier. If it is full before: write the row and
        # retry this entry in the next cycle.
        row_full = Signal()
        unfinished = Signal()  # the beat has more outliers
        beat_end = Signal()
        last_beat = Signal()
        segment_end = Signal()
        finished = Signal()
        m.d.comb += [
            active.eq(i.valid & rows.room),
            row_full.eq(present & filled.all()),
            unfinished.eq(row_full | (present & (pending & ~chosen).any())),
            beat_end.eq(active & ~unfinished),
            i.ready.eq(rows.room & ~unfinished),
            last_beat.eq(i.payload.last | (beat == p.beats - 1)),
            segment_end.eq(last_beat | (part == p.segment // p.lanes - 1)),
            written.eq(active & (row_full | (~unfinished & segment_end))),
            finished.eq(beat_end & last_beat),
            rows.enable.eq(written),
            rows.data.eq(Cat(gathered.as_value(), ~row_full, finished)),
            rows.row_end.eq(written),
            rows.batch_end.eq(finished & i.payload.end),
            rows.flag.eq(overflow | dropped),
        ]
        # Counts within a beat, a vector and a batch begin anew with the next one.
        with m.If(beat_end):
            m.d.sync += [
                done.eq(0),
                part.eq(Mux(segment_end, 0, part + 1)),
                beat.eq(Mux(last_beat, 0, beat + 1)),
            ]
        # With `row_full` the row leaves this cycle and the entry is tried again: it must not count
        # as done.
        with m.Elif(active & ~row_full):
            m.d.sync += done.eq(done | chosen)
        with m.If(finished):
            m.d.sync += listed.eq(0)
        with m.Elif(active):
            m.d.sync += listed.eq(listed + (present & ~row_full))
        with m.If(rows.batch_end):
            m.d.sync += overflow.eq(0)
        with m.Elif(active):
            m.d.sync += overflow.eq(overflow | dropped)

    def _gather(
        self, m: Module, chosen: Signal, part: Signal, present: Signal, active: Signal, written
    ) -> tuple[Any, Signal]:
        """Entries in registers until their row is written.

        Returns the row, which is these and the new entry, and which registers are filled.
        """
        p = self.parameters
        lane = Cat(
            Cat(chosen[n] for n in range(p.lanes) if n >> bit & 1).any()
            for bit in range((p.lanes - 1).bit_length())
        )
        value = Signal(FP16.width)
        for candidate, bit in zip(self.i.payload.values, chosen, strict=True):
            with m.If(bit):
                m.d.comb += value.eq(candidate)

        place = data.StructLayout({"position": range(p.segment), "value": FP16.width})
        held: list[Any] = [
            Signal(place, name=f"held_{n}", reset_less=True) for n in range(p.entries)
        ]
        filled = Signal(p.entries)
        gathered = Signal(data.ArrayLayout(p.entry_layout, p.entries))
        entries = [gathered[n] for n in range(p.entries)]
        for n in range(p.entries):
            with m.If(filled[n]):
                m.d.comb += [
                    gathered[n].valid.eq(1),
                    gathered[n].position.eq(held[n].position),
                    gathered[n].value.eq(held[n].value),
                ]
            # The new entry takes the first register that is not filled.
            with m.Elif(present & (filled[n - 1] if n else 1)):
                m.d.comb += [
                    gathered[n].valid.eq(1),
                    gathered[n].position.eq(Cat(lane, part)),
                    gathered[n].value.eq(value),
                ]
        with m.If(active):
            m.d.sync += filled.eq(Mux(written, 0, Cat(entry.valid for entry in entries)))
            for register, entry in zip(held, entries, strict=True):
                m.d.sync += [
                    register.position.eq(entry.position),
                    register.value.eq(entry.value),
                ]
        return gathered, filled
