"""A vector's outliers, listed once and read again for every column (KLLM, section III-D)."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP16
from hw.component import Component
from hw.parameters import Parameters, require


@dataclasses.dataclass(frozen=True)
class OutlierListParameters(Parameters):
    """
    k
        K: values in the longest vector.
    segment
        W: positions of one beat of a column, a multiple of `lanes`.
    lanes
        Values in one input beat, a power of two up to 64.
    ports
        R: entries in one row.
    outliers
        Most outliers of a vector.
    columns
        Most columns for which a vector's rows are given out.
    """

    k: int = 576
    segment: int = 80
    lanes: int = 16
    ports: int = 2
    outliers: int = 6
    columns: int = 1536

    def __post_init__(self):
        for name in ("k", "ports", "outliers", "columns"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))
        power = self.lanes > 0 and self.lanes & (self.lanes - 1) == 0
        rule = "lanes must be a power of two up to 64"
        require(power and self.lanes <= 64, rule, self.lanes)
        multiple = self.segment >= 1 and self.segment % self.lanes == 0
        require(multiple, f"segment must be a multiple of lanes = {self.lanes}", self.segment)

    @classmethod
    def presets(cls) -> dict[str, "OutlierListParameters"]:
        return {
            "small": cls(k=40, segment=12, lanes=4, ports=2, outliers=5, columns=5),
            "default": cls(),
            "paper": cls(k=4096, segment=512, lanes=16, ports=8, outliers=42, columns=4096),
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
        """Most rows of a vector: one for each segment, and one for every R outliers past one."""
        return self.segments + (self.outliers - 1) // self.ports

    @property
    def latency(self) -> int:
        """Cycles from a vector's last input beat, once taken, to its first row."""
        return 2

    def cycles(self, builds: list[int], replays: list[int]) -> int:
        """Cycles from the first beat offered to the last row taken, when nothing stalls.

        For vectors that take so many cycles to list and have so many rows to give out, all columns
        together; the last of them at least one.
        """
        listed = replayed = 0  # cycles when the last vector was
        freed = [0, 0]  # when each half of the memory was given out
        for number, (build, replay) in enumerate(zip(builds, replays, strict=True)):
            listed = max(listed, freed[number % 2]) + build
            replayed = max(listed, replayed) + max(1, replay)
            freed[number % 2] = replayed
        return replayed + 1

    @property
    def input_layout(self) -> data.StructLayout:
        """``values`` FP16 in order of position, ``outlier`` which are outliers, ``last`` beat."""
        values = data.ArrayLayout(FP16.width, self.lanes)
        return data.StructLayout({"values": values, "outlier": self.lanes, "last": 1})

    @property
    def entry_layout(self) -> data.StructLayout:
        """``valid``, ``position`` in the segment, ``value`` FP16; all 0 where there is none."""
        return data.StructLayout({"valid": 1, "position": range(self.segment), "value": FP16.width})

    @property
    def output_layout(self) -> data.StructLayout:
        """One row.

        ``entries`` of one segment in order of position, the first ones valid; ``advance`` on the
        segment's last row; ``last`` on the column's; ``overflow`` on all rows of a vector that had
        too many outliers.
        """
        entries = data.ArrayLayout(self.entry_layout, self.ports)
        return data.StructLayout({"entries": entries, "advance": 1, "last": 1, "overflow": 1})


class OutlierList(Component):
    """Pack a vector's outliers into rows of R entries, and give the rows out for every column.

    ::

        i ─→ one outlier a cycle ─→ row ─→ memory, one half ─┐
                                           memory, other half ─→ o, again and again

    A row holds outliers of one segment of W positions. A segment has ceil(outliers / R) rows, but
    at least one, so that a column's rows and its beats of weights can go side by side: a beat of
    weights is done with when its row says ``advance``.

    A vector ends with ``last`` or with the beat that makes it K long. For each vector, `columns`
    says how often its rows are given out, and is taken with the last one; 0 drops the vector. One
    vector is listed while the one before it is given out.

    Overflow: a vector has `outliers` at most. Those beyond are dropped, the first ones stay, and
    all its rows say so; the memory of twice `rows` rows cannot overflow.

    Latency: 2 cycles from the end of a vector's listing to its first row. Throughput: one row per
    cycle, from column to column and from vector to vector without a gap. Listing takes a cycle for
    each outlier and for each beat without; besides, one for every row of a segment but its last,
    and one where outliers are dropped behind others of the same beat.

    Handshake: ``o.valid`` and ``o.payload`` are registers. ``i.ready`` depends on `i` and on
    registers, ``columns.ready`` follows ``o.ready`` combinationally. The memory has a synchronous
    read port.

    Members
    -------
    i : :py:`In(stream.Signature(parameters.input_layout))`
        The vector in order of position.
    columns : :py:`In(stream.Signature(range(columns + 1)))`
        How often to give a vector's rows out, for each vector.
    o : :py:`Out(stream.Signature(parameters.output_layout))`
        Rows.
    """

    summary = "Outliers of a vector as rows by segment, given out for every column"
    source = "KLLM, section III-D"

    def __init__(self, parameters: OutlierListParameters):
        self._parameters = parameters
        super().__init__(
            {
                "i": In(stream.Signature(parameters.input_layout)),
                "columns": In(stream.Signature(range(parameters.columns + 1))),
                "o": Out(stream.Signature(parameters.output_layout)),
            }
        )

    @property
    def parameters(self) -> OutlierListParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        width = p.ports * p.entry_layout.size + 1
        m.submodules.rows = rows = memory.Memory(shape=unsigned(width), depth=2 * p.rows, init=[])
        # For each half of the memory: whether it holds a vector, where that ends, what it lacks.
        full = Signal(2)
        ends = [Signal(range(2 * p.rows), name=f"end_{half}", reset_less=True) for half in (0, 1)]
        overflow = Signal(2)

        listing = Signal()  # the half that is written
        row = Signal(range(2 * p.rows))
        room = ~Mux(listing, full[1], full[0])
        written, finished, lost = self._list(m, rows.write_port(), row, room)
        with m.If(written):
            m.d.sync += row.eq(row + 1)
        with m.If(finished):
            m.d.sync += [row.eq(Mux(listing, 0, p.rows)), listing.eq(~listing)]
        freed = self._give(m, rows.read_port(), full, ends, overflow)
        for half in (0, 1):
            with m.If(finished & (listing == half)):
                m.d.sync += [full[half].eq(1), ends[half].eq(row), overflow[half].eq(lost)]
            with m.Elif(freed[half]):
                m.d.sync += full[half].eq(0)
        return m

    def _list(self, m: Module, port, row: Signal, room) -> tuple[Signal, Signal, Signal]:
        """Take the vector and write its rows; whether one is written, the last, and overflow."""
        p, i = self._parameters, self.i
        beat = Signal(range(p.beats))
        part = Signal(range(max(2, p.segment // p.lanes)))  # beat within the segment
        taken = Signal(p.lanes)  # outliers of this beat that are listed
        listed = Signal(range(p.outliers + 1))  # outliers of this vector that are
        lost = Signal()

        left = Signal(p.lanes)
        chosen = Signal(p.lanes)  # the first one left
        limit = Signal()
        dropped = Signal()
        entry = Signal()
        m.d.comb += [
            limit.eq(listed == p.outliers),
            left.eq(i.payload.outlier & ~taken),
            dropped.eq(limit & left.any()),
            chosen.eq(Cat(left[n] & ~left[:n].any() for n in range(p.lanes))),
            entry.eq(left.any() & ~limit),
        ]
        lane = Cat(
            Cat(chosen[n] for n in range(p.lanes) if n >> bit & 1).any()
            for bit in range((p.lanes - 1).bit_length())
        )
        value = Signal(FP16.width)
        for candidate, bit in zip(i.payload.values, chosen, strict=True):
            with m.If(bit):
                m.d.comb += value.eq(candidate)

        # Entries gather in registers; the row written is what they hold and the new one.
        place = data.StructLayout({"position": range(p.segment), "value": FP16.width})
        held = [Signal(place, name=f"held_{n}", reset_less=True) for n in range(p.ports)]
        filled = Signal(p.ports)
        gathered = Signal(data.ArrayLayout(p.entry_layout, p.ports))
        spill = Signal()  # no room for the entry: write the row, and come again
        for n in range(p.ports):
            with m.If(filled[n]):
                m.d.comb += [
                    gathered[n].valid.eq(1),
                    gathered[n].position.eq(held[n].position),
                    gathered[n].value.eq(held[n].value),
                ]
            with m.Elif(entry & (filled[n - 1] if n else 1)):
                m.d.comb += [
                    gathered[n].valid.eq(1),
                    gathered[n].position.eq(Cat(lane, part)),
                    gathered[n].value.eq(value),
                ]
        active = Signal()
        more = Signal()  # this beat is not done
        done = Signal()
        vector_end = Signal()
        segment_end = Signal()
        written = Signal()
        finished = Signal()
        m.d.comb += [
            active.eq(i.valid & room),
            spill.eq(entry & filled.all()),
            more.eq(spill | (entry & (left & ~chosen).any())),
            done.eq(active & ~more),
            i.ready.eq(room & ~more),
            vector_end.eq(i.payload.last | (beat == p.beats - 1)),
            segment_end.eq(vector_end | (part == p.segment // p.lanes - 1)),
            written.eq(active & (spill | (~more & segment_end))),
            finished.eq(done & vector_end),
            port.en.eq(written),
            port.addr.eq(row),
            port.data.eq(Cat(gathered.as_value(), ~spill)),
        ]
        with m.If(active):
            m.d.sync += filled.eq(Mux(written, 0, Cat(found.valid for found in gathered)))
            for register, found in zip(held, gathered, strict=True):
                m.d.sync += [
                    register.position.eq(found.position),
                    register.value.eq(found.value),
                ]
        with m.If(done):
            m.d.sync += [
                taken.eq(0),
                part.eq(Mux(segment_end, 0, part + 1)),
                beat.eq(Mux(vector_end, 0, beat + 1)),
            ]
        with m.Elif(active & ~spill):
            m.d.sync += taken.eq(taken | chosen)
        with m.If(finished):
            m.d.sync += [listed.eq(0), lost.eq(0)]
        with m.Elif(active):
            m.d.sync += [listed.eq(listed + (entry & ~spill)), lost.eq(lost | dropped)]
        return written, finished, lost | dropped

    def _give(self, m: Module, port, full, ends, overflow) -> Signal:
        """Read the rows, column by column; which half is freed."""
        p, o = self._parameters, self.o
        giving = Signal()  # the half that is read
        row = Signal(range(2 * p.rows))
        column = Signal(range(1, p.columns + 1), init=1)
        freed = Signal(2)
        here = Signal()
        room = Signal()
        last_row = Signal()
        nothing = Signal()
        vector_end = Signal()
        taken = Signal()
        m.d.comb += [
            here.eq(Mux(giving, full[1], full[0]) & self.columns.valid),
            room.eq(~o.valid | o.ready),
            last_row.eq(row == Mux(giving, ends[1], ends[0])),
            nothing.eq(self.columns.payload == 0),
            taken.eq(here & ~nothing & room),
            vector_end.eq((taken & last_row & (column == self.columns.payload)) | (here & nothing)),
            self.columns.ready.eq(vector_end),
            port.en.eq(taken),
            port.addr.eq(row),
            freed.eq(Cat(vector_end & ~giving, vector_end & giving)),
            Cat(Value.cast(o.payload.entries), o.payload.advance).eq(port.data),
        ]
        with m.If(room):
            m.d.sync += o.valid.eq(taken)
        with m.If(taken):
            m.d.sync += [
                row.eq(row + 1),
                o.payload.last.eq(last_row),
                o.payload.overflow.eq(Mux(giving, overflow[1], overflow[0])),
            ]
            with m.If(last_row):
                m.d.sync += [row.eq(Mux(giving, p.rows, 0)), column.eq(column + 1)]
        with m.If(vector_end):
            m.d.sync += [row.eq(Mux(giving, 0, p.rows)), column.eq(1), giving.eq(~giving)]
        return freed
