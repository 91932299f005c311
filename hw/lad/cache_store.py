"""Storage of a head's caches A to F: loaded by row, updated by column, written back."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.arith.float_format import FP32
from hw.component import Component
from hw.lad.row_memory import row_memory
from hw.lad.tile_parameters import LANES, LadTileParameters
from hw.layout import count, index
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out

VECTOR_BANKS = 1, 0, 2
"""The banks of B, C and D, behind their columns of A."""


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
            "column": wire_in(range(p.columns + 1), "See `read`."),
            "bases": wire_out(data.ArrayLayout(p.wide_row, LANES)),
            "zero": wire_out(1, "`bases` count as 0: the head has been cleared."),
            "scalars": wire_out(data.ArrayLayout(FP32, 2), "E, F."),
            "sums": wire_in(
                data.ArrayLayout(p.wide_row, LANES), "New columns, or new C, B, D and E, F."
            ),
            "sums_s": wire_in(data.ArrayLayout(FP32, 2), "See `sums`."),
            "set_vectors": wire_in(1, "The columns are set from the first one on."),
            "set_column": wire_in(1, "See `set_vectors`."),
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
            shape = data.ArrayLayout(p.row_bits, 2)
            bank = row_memory(shape, p.columns + 1)
            m.submodules[f"bank_{bank_number}"] = bank
            writes.append(bank.write_port(granularity=1))
            reads.append(bank.read_port())
        empty, writing = Signal(), Signal()
        changed = Signal()  # vectors have been set, and columns will be
        # What is written next: B, C or D, then a column.
        vector = Signal(range(len(VECTOR_BANKS) + 1))
        lane, number = Signal(range(LANES)), Signal(range(p.columns + 1))
        complete = Signal(range(p.columns + 1))  # columns of each lane that are set
        passed = Signal(range(p.cache_rows + 1))  # rows that have been read to be written

        # Set columns, vectors and registers.
        for base, read in zip(self.bases, reads, strict=True):
            m.d.comb += Value.cast(base).eq(Value.cast(read.data))
        with m.If(self.set_column):
            m.d.sync += complete.eq(complete + 1)
        with m.If(self.set_vectors):
            m.d.sync += [
                Value.cast(self.scalars).eq(Value.cast(self.sums_s)),
                changed.eq(1),
            ]
        with m.If(self.begin):
            m.d.sync += [self.zero.eq(self.clear), changed.eq(0)]
            with m.If(self.clear):
                m.d.sync += Value.cast(self.scalars).eq(0)
        with m.If(self.write):
            m.d.sync += complete.eq(Mux(self.set_vectors, 0, p.columns))
        in_columns, scalars_written = Signal(), Signal()
        m.d.comb += in_columns.eq(vector == len(VECTOR_BANKS))
        self._load(m, writes, empty, (writing, scalars_written, vector, lane, number), complete)

        written, row = self.written, self.written.payload.row
        next_lane, next_number = Signal.like(lane), Signal.like(number)
        reads_next, read = Signal(), Signal()  # to write: the next column instead of this one
        column = Signal(data.ArrayLayout(p.row_bits, 2))
        held = Signal(p.row_bits, reset_less=True)  # second half of a column
        # Number of the column or, counted on, of the vector; of the first one of the lane.
        position, first_column = Signal(range(p.d + len(VECTOR_BANKS))), Signal(range(p.d + 1))
        # The banks of this column or vector and of the next one, and the place in the latter.
        bank, next_bank = Signal(range(LANES)), Signal(range(LANES))
        address = Signal(range(p.columns + 1))
        next_is_vector = Signal()
        for place, port in enumerate(reads):
            wanted = Mux(reads_next, next_bank, bank) == place
            m.d.comb += [
                port.en.eq(self.read | (read & wanted)),
                port.addr.eq(Mux(self.read, self.column, address)),
            ]
            with m.If(bank == place):
                m.d.comb += Value.cast(column).eq(Value.cast(port.data))
            with m.If(lane == place):
                m.d.comb += first_column.eq(place * p.columns)
        accepts, here, following = Signal(), Signal(), Signal()
        cleared = Signal()  # zeros are written
        m.d.comb += cleared.eq(self.zero & ~changed)
        after = column_after(p, lane, number)
        with m.If(in_columns):
            # The first column follows the last vector.
            m.d.comb += [next_lane.eq(after[0]), next_number.eq(after[1])]
        m.d.comb += [
            bank.eq(lane),
            next_bank.eq(next_lane),
            next_is_vector.eq(vector < len(VECTOR_BANKS) - 1),
            accepts.eq(~written.valid | written.ready),
            position.eq(Mux(in_columns, first_column + number, p.d + vector)),
            here.eq((~in_columns | (number < complete)) & ~self.read),
            following.eq((next_is_vector | (next_number < complete)) & ~self.read),
            address.eq(
                Mux(
                    Mux(reads_next, next_is_vector, ~in_columns),
                    p.columns,
                    Mux(reads_next, next_number, number),
                )
            ),
        ]
        with m.Switch(vector):
            for place, vector_bank in enumerate(VECTOR_BANKS):
                with m.Case(place):
                    m.d.comb += bank.eq(vector_bank)
                    if place + 1 < len(VECTOR_BANKS):
                        m.d.comb += next_bank.eq(VECTOR_BANKS[place + 1])
        with m.If(written.ready):
            m.d.sync += written.valid.eq(0)

        with m.FSM() as fsm:
            m.d.comb += [
                empty.eq(fsm.ongoing("EMPTY")),
                writing.eq(~empty & ~fsm.ongoing("USED")),
                scalars_written.eq(writing & ~fsm.ongoing("SCALARS")),
            ]
            with m.State("EMPTY"):
                with m.If(self.begin):
                    m.next = "USED"
            with m.State("USED"):
                m.d.sync += [vector.eq(0), lane.eq(0), number.eq(0), passed.eq(0)]
                with m.If(self.write):
                    m.next = "SCALARS"
                with m.Elif(self.release):
                    m.next = "EMPTY"
            with m.State("SCALARS"):
                m.d.comb += read.eq(here)
                with m.If(accepts):
                    m.d.sync += [
                        passed.eq(passed + 1),
                        written.valid.eq(1),
                        row.eq(2 * p.d + 2 * len(VECTOR_BANKS)),
                        Value.cast(written.payload.data).eq(Value.cast(self.scalars)),
                    ]
                    m.next = "READ"
                    with m.If(here):
                        m.next = "FIRST"
            with m.State("READ"):
                with m.If(here):
                    m.d.comb += read.eq(1)
                    m.next = "FIRST"
            with m.State("FIRST"):
                with m.If(accepts):
                    m.d.sync += [
                        written.valid.eq(1),
                        row.eq(Cat(0, position)),
                        Value.cast(written.payload.data).eq(Mux(cleared, 0, column[0])),
                        held.eq(column[1]),
                    ]
                    m.next = "SECOND"
                with m.Elif(self.read):
                    # The bank has been read for the lanes: read the column again.
                    m.next = "READ"
            with m.State("SECOND"):
                with m.If(accepts):
                    m.d.sync += [
                        written.valid.eq(1),
                        passed.eq(passed + 2),
                        row.eq(Cat(1, position)),
                        Value.cast(written.payload.data).eq(Mux(cleared, 0, held)),
                        vector.eq(Mux(in_columns, vector, vector + 1)),
                        lane.eq(next_lane),
                        number.eq(next_number),
                    ]
                    m.d.comb += reads_next.eq(1)
                    m.next = "READ"
                    with m.If(next_number == p.columns):
                        m.next = "LAST"
                    with m.Elif(following):
                        m.d.comb += read.eq(1)
                        m.next = "FIRST"
            with m.State("LAST"):
                m.d.comb += self.done.eq(accepts)
                with m.If(accepts):
                    m.next = "EMPTY"
        m.d.comb += self.free.eq(Mux(empty, p.cache_rows, Mux(writing, passed, 0)))
        return m

    def _load(self, m: Module, writes, empty, progress, complete) -> None:
        """A row to its bank or register, once nothing of the head before is in its place.

        ::

            row     0 1         2 3         …   2 d, 2 d + 1   …   2 d + 6
                    A[:, 0]     A[:, 1]     …   B              …   E, F

        progress
            Of writing the head before: begun, E and F are written, vectors that are, and lane and
            number of the column that is next.
        """
        p = self.parameters
        writing, scalars_written, vector, lane, number = progress
        loaded = Signal(range(p.cache_rows + 1))
        row, value = self.cache.payload.row, Value.cast(self.cache.payload.data)
        column, half = row >> 1, row[0]
        passed = Signal()  # this head's row has been read to be written
        m.d.comb += [
            self.loaded.eq(loaded == p.cache_rows),
            self.cache.ready.eq(
                self.load & (empty | (writing & passed)) & ~self.loaded & ~self.set_column
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
                m.d.comb += passed.eq((local < number) | ((local == number) & before))
            with m.Elif(is_vector):
                m.d.comb += passed.eq(vector > its_vector)
        with m.If(column == p.d + len(VECTOR_BANKS)):
            m.d.comb += passed.eq(scalars_written)
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
    return data.StructLayout({"row": index(range(p.cache_rows)), "data": p.row})
