"""Storage of a head's caches A to F: loaded by row, updated by column, written back."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.arith.float_format import FP32
from hw.component import Component
from hw.lad.caches.row_memory import row_memory
from hw.lad.tile_parameters import LadTileParameters
from hw.lad.tile_sizes import LANES
from hw.layout import count, index
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out

VECTOR_BANKS = 1, 0, 2
"""The banks of B, C and D, behind their columns of A."""


class _Write:
    """Signals of writing the caches back."""

    def __init__(self, p: LadTileParameters):
        self.empty = Signal()  # no head uses the store
        self.writing = Signal()
        self.changed = Signal()  # vectors have been set, and columns will be
        self.scalars_written = Signal()
        # What is written next: B, C or D, then a column; and the column after it.
        self.vector = Signal(range(len(VECTOR_BANKS) + 1))
        self.lane, self.next_lane = (Signal(range(LANES), name=n) for n in ("lane", "next_lane"))
        self.number, self.next_number = (
            Signal(range(p.columns + 1), name=n) for n in ("number", "next_number")
        )
        self.in_columns = Signal()
        self.position = Signal(range(p.d + len(VECTOR_BANKS)))  # of the column or vector in a row
        self.passed = Signal(range(p.cache_rows + 1))  # rows that have been read to be written
        # To read: the next column instead of the present one; whether each of them can be read.
        self.read = Signal()
        self.reads_next = Signal()
        self.here = Signal()
        self.following = Signal()
        self.column = Signal(data.ArrayLayout(p.row_bits, 2))  # that has been read


class CacheStore(Component[LadTileParameters]):
    """Columns of A and a vector in each of three banks, one for each lane; E and F in registers.

    ::

                   ┌→ bank 0: columns 0, 1, …, then C    ─┐           ┌→ lane 0 ─┐
        cache ─────┼→ bank 1: columns d / 3, …, then B   ─┼→ bases ───┼→ lane 1 ─┼→ sums
                   ├→ bank 2: columns 2 d / 3, …, then D ─┘           └→ lane 2 ─┘    │
                   └→ E, F         ←─ set_vectors ────────────────────────────────────┤
        written ←── all of them    ←─ set_column ─────────────────────────────────────┘

    A head's rows, in any order, fill the store; `begin` takes them, or zeros with `clear`. Then
    either nothing changes and `release` frees the store, or `write` has everything written back: E
    and F, B, C, D, then the columns, of the three lanes by turns, each one as soon as it is set. A
    row may be loaded for the next head as soon as this head's has been read to be written.

    Cycles: a column or vector is read from its bank, its first half goes out, then its second one
    while the next one is read, so 2 d + 7 cycles if all is set. Reads of `bases` go first.

    Handshake: ``cache.ready`` is low without `load`, while the row's place is in use, and in a
    cycle of `set_column`. ``written`` is a register.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "cache": stream_in(cache_row_layout(p)),
            "load": wire_in(1, "Accept rows of the next head."),
            "loaded": wire_out(1, "All rows of the next head are there."),
            "free": wire_out(
                count(range(p.cache_rows + 1)),
                "Rows whose place is free for the next head, in the order in which they are "
                "written.",
            ),
            "begin": wire_in(1),
            "clear": wire_in(1),
            "release": wire_in(1),
            "read": wire_in(
                1,
                "Read a column of each lane, or behind the last one the vectors: ``bases`` in "
                "the next cycle and until the next read, or until ``write``.",
            ),
            "column": wire_in(
                range(p.columns + 1),
                "Number of the column in each lane; behind the last one, the vectors.",
            ),
            "bases": wire_out(data.ArrayLayout(p.wide_row_layout, LANES)),
            "zero": wire_out(1, "`bases` count as 0: the head has been cleared."),
            "scalars": wire_out(data.ArrayLayout(FP32, 2), "E, F."),
            "sums": wire_in(
                data.ArrayLayout(p.wide_row_layout, LANES), "New columns, or new C, B, D and E, F."
            ),
            "sums_s": wire_in(data.ArrayLayout(FP32, 2), "New E and F, with `set_vectors`."),
            "set_vectors": wire_in(
                1, "`sums` are C, B and D, `sums_s` E and F; columns are set from the first one on."
            ),
            "set_column": wire_in(1, "`sums` are the next column of each lane."),
            "write": wire_in(
                1,
                "Begin to write; without `set_vectors` in the same cycle, all columns at once, "
                "as zeros.",
            ),
            "written": stream_out(cache_row_layout(p)),
            "done": wire_out(1, "The last row is being accepted."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        reads, writes = [], []
        for bank_number in range(LANES):
            # A word is a column; its two halves are loaded one by one.
            # A column of FP32 sums is two rows of the memory's FP16 width.
            shape = data.ArrayLayout(p.row_bits, 2)
            bank = row_memory(shape, p.columns + 1)
            m.submodules[f"bank_{bank_number}"] = bank
            writes.append(bank.write_port(granularity=1))
            reads.append(bank.read_port())
        write = _Write(p)
        complete = Signal(range(p.columns + 1))  # columns of each lane that are set
        self._set(m, write, complete)
        self._load(m, writes, write, complete)
        self._read(m, reads, write, complete)
        self._states(m, write)
        m.d.comb += self.free.eq(
            Mux(write.empty, p.cache_rows, Mux(write.writing, write.passed, 0))
        )
        return m

    def _set(self, m: Module, write: "_Write", complete: Signal) -> None:
        """Count columns as they are set; E and F, which are registers."""
        p = self.parameters
        # `complete` is what lets the writing follow the update column by column, instead of waiting
        # for all of A.
        with m.If(self.set_column):
            m.d.sync += complete.eq(complete + 1)
        with m.If(self.set_vectors):
            m.d.sync += [
                Value.cast(self.scalars).eq(Value.cast(self.sums_s)),
                write.changed.eq(1),
            ]
        with m.If(self.begin):
            m.d.sync += [self.zero.eq(self.clear), write.changed.eq(0)]
            with m.If(self.clear):
                m.d.sync += Value.cast(self.scalars).eq(0)
        with m.If(self.write):
            m.d.sync += complete.eq(Mux(self.set_vectors, 0, p.columns))

    def _read(self, m: Module, reads, write: "_Write", complete: Signal) -> None:
        """Banks are read for the lanes, else to write the present column or the next one."""
        p = self.parameters
        for base, read in zip(self.bases, reads, strict=True):
            m.d.comb += Value.cast(base).eq(Value.cast(read.data))
        vector, lane, number = write.vector, write.lane, write.number
        first_column = Signal(range(p.d + 1))  # of the lane
        # The banks of this column or vector and of the next one, and the index in the latter.
        bank = Signal(range(LANES))
        next_bank = Signal(range(LANES))
        address = Signal(range(p.columns + 1))
        next_is_vector = Signal()
        for place, port in enumerate(reads):
            # Lanes read all banks at once; a write-back only the bank of its column.
            wanted = Mux(write.reads_next, next_bank, bank) == place
            m.d.comb += [
                port.en.eq(self.read | (write.read & wanted)),
                port.addr.eq(Mux(self.read, self.column, address)),
            ]
            with m.If(bank == place):
                m.d.comb += Value.cast(write.column).eq(Value.cast(port.data))
            with m.If(lane == place):
                m.d.comb += first_column.eq(place * p.columns)
        next_lane, next_number = write.next_lane, write.next_number
        after = column_after(p, lane, number)
        with m.If(write.in_columns):
            # The first column follows the last vector.
            m.d.comb += [next_lane.eq(after[0]), next_number.eq(after[1])]
        m.d.comb += [
            write.in_columns.eq(vector == len(VECTOR_BANKS)),
            next_is_vector.eq(vector < len(VECTOR_BANKS) - 1),
            write.position.eq(Mux(write.in_columns, first_column + number, p.d + vector)),
            write.here.eq((~write.in_columns | (number < complete)) & ~self.read),
            write.following.eq((next_is_vector | (next_number < complete)) & ~self.read),
            address.eq(
                Mux(
                    Mux(write.reads_next, next_is_vector, ~write.in_columns),
                    p.columns,
                    Mux(write.reads_next, next_number, number),
                )
            ),
            bank.eq(lane),
            next_bank.eq(next_lane),
        ]
        # Vectors are not in their lanes' banks.
        with m.Switch(vector):
            for place, vector_bank in enumerate(VECTOR_BANKS):
                with m.Case(place):
                    m.d.comb += bank.eq(vector_bank)
                    if place + 1 < len(VECTOR_BANKS):
                        m.d.comb += next_bank.eq(VECTOR_BANKS[place + 1])

    def _states(self, m: Module, write: "_Write") -> None:
        """Rows out: E and F, then the two halves of each vector and of each column."""
        p = self.parameters
        written, number, passed = self.written, write.number, write.passed
        row = written.payload.row
        half = Signal(p.row_bits, reset_less=True)  # second half of a column
        accepts = Signal()
        cleared = Signal()  # zeros are written
        m.d.comb += [
            cleared.eq(self.zero & ~write.changed),
            accepts.eq(~written.valid | written.ready),
        ]
        with m.If(written.ready):
            m.d.sync += written.valid.eq(0)
        with m.FSM() as fsm:
            m.d.comb += [
                write.empty.eq(fsm.ongoing("EMPTY")),
                write.writing.eq(~write.empty & ~fsm.ongoing("USED")),
                write.scalars_written.eq(write.writing & ~fsm.ongoing("SCALARS")),
            ]
            self._head_states(m, write)
            with m.State("SCALARS"):
                # E and F; meanwhile the first vector is read.
                m.d.comb += write.read.eq(write.here)
                with m.If(accepts):
                    m.d.sync += [
                        passed.eq(passed + 1),
                        written.valid.eq(1),
                        row.eq(2 * p.d + 2 * len(VECTOR_BANKS)),
                        Value.cast(written.payload.data).eq(Value.cast(self.scalars)),
                    ]
                    m.next = "READ"
                    with m.If(write.here):
                        m.next = "FIRST"
            with m.State("READ"):
                # The column is not set yet, or its bank was read for the lanes.
                with m.If(write.here):
                    m.d.comb += write.read.eq(1)
                    m.next = "FIRST"
            with m.State("FIRST"):
                # The first half leaves, the second one is kept: the bank may be read for the lanes.
                with m.If(accepts):
                    m.d.sync += [
                        written.valid.eq(1),
                        row.eq(Cat(0, write.position)),
                        Value.cast(written.payload.data).eq(Mux(cleared, 0, write.column[0])),
                        half.eq(write.column[1]),
                    ]
                    m.next = "SECOND"
                with m.Elif(self.read):
                    # The bank has been read for the lanes: read the column again.
                    m.next = "READ"
            with m.State("SECOND"):
                # The second half leaves; meanwhile the next column is read, if it is set.
                with m.If(accepts):
                    m.d.sync += [
                        written.valid.eq(1),
                        passed.eq(passed + 2),
                        row.eq(Cat(1, write.position)),
                        Value.cast(written.payload.data).eq(Mux(cleared, 0, half)),
                        write.vector.eq(Mux(write.in_columns, write.vector, write.vector + 1)),
                        write.lane.eq(write.next_lane),
                        number.eq(write.next_number),
                    ]
                    m.d.comb += write.reads_next.eq(1)
                    m.next = "READ"
                    with m.If(write.next_number == p.columns):
                        m.next = "LAST"
                    with m.Elif(write.following):
                        m.d.comb += write.read.eq(1)
                        m.next = "FIRST"
            with m.State("LAST"):
                # The last row waits to be accepted.
                m.d.comb += self.done.eq(accepts)
                with m.If(accepts):
                    m.next = "EMPTY"

    def _head_states(self, m: Module, write: "_Write") -> None:
        """A head begins, and ends with its caches unchanged or to be written."""
        with m.State("EMPTY"):
            # Rows are loaded for the next head, until it begins.
            with m.If(self.begin):
                m.next = "USED"
        with m.State("USED"):
            # The head has the store to read; whether it is written is known at its end.
            first = write.vector, write.lane, write.number, write.passed
            m.d.sync += [x.eq(0) for x in first]
            with m.If(self.write):
                m.next = "SCALARS"
            with m.Elif(self.release):
                m.next = "EMPTY"

    def _load(self, m: Module, writes, progress: "_Write", complete: Signal) -> None:
        """A row to its bank or register, once nothing of the head before is in its place.

        ::

            row     0 1         2 3         …   2 d, 2 d + 1   …   2 d + 6
                    A[:, 0]     A[:, 1]     …   B              …   E, F

        progress
            How much of the head before has been written.
        """
        p = self.parameters
        lane, number = progress.lane, progress.number
        loaded = Signal(range(p.cache_rows + 1))
        row, value = self.cache.payload.row, Value.cast(self.cache.payload.data)
        column, half = row >> 1, row[0]
        row_passed = Signal()  # this head's row has been read to be written
        m.d.comb += [
            self.loaded.eq(loaded == p.cache_rows),
            self.cache.ready.eq(
                self.load
                & (progress.empty | (progress.writing & row_passed))
                & ~self.loaded
                & ~self.set_column
            ),
        ]
        accepted = self.cache.valid & self.cache.ready
        with m.If(accepted):
            m.d.sync += loaded.eq(loaded + 1)
        with m.If(self.begin):
            m.d.sync += loaded.eq(0)
        for place, write in enumerate(writes):
            start, end = place * p.columns, min((place + 1) * p.columns, p.d)
            # The comparison with lane 0's first column would be constant.
            mine = (column >= start if start else 1) & (column < end)
            its_vector = VECTOR_BANKS.index(place)
            is_vector = column == p.d + its_vector
            local = Signal(range(p.d), name=f"local_{place}")
            # A next head's row may overwrite this one only after it has left for memory. Columns
            # leave by lanes in turn, so with equal numbers the lower lane has left first.
            before = (lane > place) if place < LANES - 1 else 0
            sets = self.set_column | self.set_vectors
            m.d.comb += [
                local.eq(column - start),
                write.addr.eq(
                    Mux(
                        self.set_column,
                        complete,
                        Mux(self.set_vectors | is_vector, p.columns, local),
                    )
                ),
                write.data.eq(Mux(sets, Value.cast(self.sums[place]), Cat(value, value))),
                write.en.eq(
                    Mux(
                        sets,
                        0b11,
                        Mux(accepted & (mine | is_vector), Mux(half, 0b10, 0b01), 0),
                    )
                ),
            ]
            with m.If(mine):
                m.d.comb += row_passed.eq((local < number) | ((local == number) & before))
            with m.Elif(is_vector):
                m.d.comb += row_passed.eq(progress.vector > its_vector)
        with m.If(column == p.d + len(VECTOR_BANKS)):
            m.d.comb += row_passed.eq(progress.scalars_written)
            with m.If(accepted):
                m.d.sync += Value.cast(self.scalars).eq(value)


def column_after(p: LadTileParameters, lane: Signal, number: Signal) -> tuple[Value, Value]:
    """Lane and number of the column that is written after this one: lanes by turns."""
    # The last lane has no columns from this one on.
    end = p.d - (LANES - 1) * p.columns
    last = (lane == LANES - 1) | ((lane == LANES - 2) & (number >= end))
    return Mux(last, 0, lane + 1), number + last


def cache_row_layout(p: LadTileParameters) -> data.StructLayout:
    """A row of the caches, with its number, see :attr:`LadTileParameters.cache_rows`."""
    return data.StructLayout({"row": index(range(p.cache_rows)), "data": p.row_layout})
