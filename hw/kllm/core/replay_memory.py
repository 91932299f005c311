"""Memory of two batches of vectors: one is written, the other is read for every column."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory

from hw.component import Component
from hw.layout import FLAG, count
from hw.parameters import Parameters
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class ReplayMemoryParameters(Parameters):
    """
    rows
        Rows of the longest batch of vectors.
    parts, part_width
        Parts of a row that are written separately, and bits of each.
    columns
        Most columns for which a batch is read.
    """

    rows: int
    parts: int
    part_width: int
    columns: int

    @property
    def latency(self) -> int:
        """Cycles from the last write of a batch to its first row."""
        return 2

    def cycles(self, writes: list[int], reads: list[int]) -> int:
        """Cycles from the first write offered to the last row accepted, when nothing stalls.

        writes, reads
            Cycles in which each batch is written, and rows that are read of it, all columns
            together; at least one of the last batch.
        """
        written = read = 0  # cycles when the latest batch was
        freed = [0, 0]  # when each half of the memory was
        for number, (write, rows) in enumerate(zip(writes, reads, strict=True)):
            written = max(written, freed[number % 2]) + write
            read = max(written, read) + max(1, rows)
            freed[number % 2] = read
        return read + 1

    @cached_property
    def output_layout(self) -> data.StructLayout:
        """``row``; ``last`` of the batch; ``end``: row of the last column; the batch's ``flag``.

        ``row`` comes out of the memory's read port, the others out of registers.
        """
        row = unsigned(self.parts * self.part_width)
        return data.StructLayout({"row": row, "last": FLAG, "end": FLAG, "flag": FLAG})


class ReplayMemory(Component[ReplayMemoryParameters]):
    """Write batches of vectors row by row, and read each again for every column of its matrix.

    ::

        write ─→ half 0 ─┐
                 half 1 ─┴─→ o, column after column

    The halves take turns: while one is read, the next batch is written to the other. A batch's
    `columns` is accepted with its last row; 0 columns drop the batch in one cycle.

    Latency: 2 cycles from a batch's last write to its first row. Throughput: a write and a row
    each cycle, from column to column and from batch to batch without a gap.

    Handshake: ``o.valid`` and ``o.payload`` are registers, `room` depends on registers,
    ``columns.ready`` follows ``o.ready`` combinationally. The memory has a synchronous read port.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "room": wire_out(
                1, "The half to be written is free. Without it there must be no write."
            ),
            "enable": wire_in(p.parts, "Parts of the row that are written."),
            "data": wire_in(p.parts * p.part_width),
            "row_end": wire_in(1, "The row is complete; the next write is to the next row."),
            "batch_end": wire_in(1, "The batch is complete with this row."),
            "flag": wire_in(1, "With `batch_end`: a bit that accompanies all rows of the batch."),
            "columns": stream_in(
                count(range(p.columns + 1)), "For each batch, the number of columns."
            ),
            "o": stream_out(p.output_layout, "Rows."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.rows = rows = memory.Memory(
            shape=unsigned(p.parts * p.part_width), depth=2 * p.rows, init=[]
        )
        write, read = rows.write_port(granularity=p.part_width), rows.read_port()
        # For each half: whether it holds a batch, the batch's last row, and its flag.
        # A half is written as a whole before it is read: a vector is needed from its first beat on
        # for each column, so reading cannot begin earlier without waiting again.
        full = Signal(2)
        ends = [Signal(range(2 * p.rows), name=f"end_{half}", reset_less=True) for half in (0, 1)]
        flags = Signal(2, reset_less=True)
        write_half, write_row = self._write(m, write, full)
        freed = self._replay(m, read, full, ends, flags)
        # A half is filled by its batch's end, and freed when its last column is read.
        for half in (0, 1):
            with m.If(self.batch_end & (write_half == half)):
                m.d.sync += [
                    full[half].eq(1),
                    ends[half].eq(write_row),
                    flags[half].eq(self.flag),
                ]
            with m.Elif(freed[half]):
                m.d.sync += full[half].eq(0)
        return m

    def _write(self, m: Module, write, full: Signal) -> tuple[Signal, Signal]:
        """Rows 0 to rows - 1 are half 0, the others half 1. Returns half and row of the write."""
        p = self.parameters
        write_half = Signal()
        write_row = Signal(range(2 * p.rows))
        m.d.comb += [
            # A batch is written into one half while the other one is replayed.
            self.room.eq(~Mux(write_half, full[1], full[0])),
            write.addr.eq(write_row),
            write.en.eq(self.enable),
            write.data.eq(self.data),
        ]
        # The next batch begins at the other half's first row.
        with m.If(self.batch_end):
            m.d.sync += [write_row.eq(Mux(write_half, 0, p.rows)), write_half.eq(~write_half)]
        with m.Elif(self.row_end):
            m.d.sync += write_row.eq(write_row + 1)
        return write_half, write_row

    def _replay(self, m: Module, read, full: Signal, ends: list[Signal], flags: Signal) -> Value:
        """A half into the output register, column after column; returns the half that is freed."""
        p, o = self.parameters, self.o
        read_half = Signal()
        read_row = Signal(range(2 * p.rows))
        column = Signal(range(1, p.columns + 1), init=1)
        present = Signal()  # a batch and its number of columns
        free = Signal()
        last_row = Signal()
        no_columns = Signal()
        fire = Signal()
        finished = Signal()
        columns = self.columns.payload
        m.d.comb += [
            present.eq(Mux(read_half, full[1], full[0]) & self.columns.valid),
            free.eq(~o.valid | o.ready),
            last_row.eq(read_row == Mux(read_half, ends[1], ends[0])),
            # A batch that nobody reads is dropped at once.
            no_columns.eq(columns == 0),
            fire.eq(present & ~no_columns & free),
            finished.eq((fire & last_row & (column == columns)) | (present & no_columns)),
            # The number of columns is accepted at the end, so it remains at the input, where it is
            # compared.
            self.columns.ready.eq(finished),
            read.en.eq(fire),
            read.addr.eq(read_row),
            o.payload.row.eq(read.data),
        ]
        # The memory's read register is the output; its flags are registered beside it.
        with m.If(free):
            m.d.sync += o.valid.eq(fire)
        with m.If(fire):
            m.d.sync += [
                read_row.eq(read_row + 1),
                o.payload.last.eq(last_row),
                o.payload.end.eq(column == columns),
                o.payload.flag.eq(Mux(read_half, flags[1], flags[0])),
            ]
            with m.If(last_row):
                m.d.sync += [read_row.eq(Mux(read_half, p.rows, 0)), column.eq(column + 1)]
        # Reading goes on in the other half.
        with m.If(finished):
            m.d.sync += [
                read_row.eq(Mux(read_half, 0, p.rows)),
                column.eq(1),
                read_half.eq(~read_half),
            ]
        return Cat(finished & ~read_half, finished & read_half)
