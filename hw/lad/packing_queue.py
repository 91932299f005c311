"""A queue that takes any of several entries per cycle and outputs them in full groups."""

import dataclasses
import functools
import operator

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data

from hw.component import Component
from hw.lad.caches.row_memory import row_memory
from hw.layout import FLAG, mask
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_out, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class PackingQueueParameters(Parameters):
    """
    lanes
        Entries offered in a cycle.
    outputs
        Entries of a group, a power of two.
    depth
        Entries held, a power of two.
    """

    lanes: int
    outputs: int
    depth: int

    def __post_init__(self):
        require(self.lanes >= 1, "lanes must be at least 1", self.lanes)
        power = self.outputs > 0 and self.outputs & (self.outputs - 1) == 0
        require(power, "outputs must be a power of two", self.outputs)
        least = max(2 * self.banks, self.lanes + 2 * self.outputs - 2)
        power = self.depth > 0 and self.depth & (self.depth - 1) == 0
        rule = f"depth must be a power of two from {least}"
        require(power and self.depth >= least, rule, self.depth)

    @property
    def banks(self) -> int:
        """Memories, each of which takes one entry in a cycle."""
        return 1 << (max(self.lanes, self.outputs) - 1).bit_length()

    @property
    def room_limit(self) -> int:
        """Entries used up to which a push has room: `lanes` entries and a group closed early."""
        return self.depth - (self.lanes + self.outputs - 1)

    @property
    def groups(self) -> int:
        """Groups in one row of all banks."""
        return self.banks // self.outputs

    def output_layout(self, entry: int, common: int) -> data.StructLayout:
        """A group.

        ``entries`` and ``common``: of each entry, 0 where ``keep`` is low. ``keep``: which entries
        are valid. ``last``: of a run.
        """
        return data.StructLayout(
            {
                "entries": data.ArrayLayout(entry, self.outputs),
                "common": data.ArrayLayout(common, self.outputs),
                "keep": mask(self.outputs),
                "last": FLAG,
            }
        )


class PackingQueue(Component[PackingQueueParameters]):
    """Pack the selected entries of up to `lanes` per cycle in order, without gaps.

    ::

        mask ─→ number of ones before each lane ─→ + tail ─→ bank of each entry
        entries ─────────────────────────────────→ banks ─→ group at the front ─→ o

    A push appends the entries in the mask, lowest lane first. They leave in groups of `outputs`,
    which are full except for the last one of a run: ``end`` closes the run's last group, so that
    the next run begins with a new group. A push that ends a run must have an entry. Groups depend
    on what is pushed only, not on when.

    Entry number n of all is in bank n mod `banks`, so the entries of a push are in different banks.
    With 3 lanes (4 banks) and groups of 2::

        entry    0 1 2 3   4 5 6 7   8
        bank     0 1 2 3   0 1 2 3   0
        row      0 0 0 0   1 1 1 1   2
        group    0 0 1 1   2 2 3 3   4

    A bank has one writer and one reader of a row each, and is read into registers: it may be block
    RAM.

    Latency: 2 cycles from a push to the group that it completes. Throughput: a push and a group per
    cycle.

    Handshake: `push` only with `room`, which is high if there is room for `lanes` entries and a
    group that is closed early. It depends on registers only, like ``o``.

    Parameters
    ----------
    parameters : :class:`PackingQueueParameters`
    entry, common : int
        Bits of an entry, and of what the entries of a push share; each entry is output with both.
    """

    def __init__(self, parameters: PackingQueueParameters, entry: int, common: int):
        self._common = common
        self._entry = entry
        self._row = data.StructLayout({"entry": entry, "last": 1, "common": common})
        super().__init__(parameters)

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "push": wire_in(1),
            "end": wire_in(1),
            "mask": wire_in(p.lanes),
            "entries": wire_in(data.ArrayLayout(self._entry, p.lanes)),
            "common": wire_in(self._common),
            "room": wire_out(1),
            "o": stream_out(p.output_layout(self._entry, self._common)),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        o = self.o
        # Entries are numbered modulo the depth; bank and row are fields of the number, so packing
        # needs neither a shifter nor a compaction network, only a choice of lane in each bank.
        tail = Signal(range(p.depth))  # number of the next entry pushed
        front = Signal(range(p.depth))  # of the next entry read, the first of its group
        used = Signal(range(p.depth + 1))

        # The bank of each lane's entry: a prefix sum of the mask, from the tail.
        ones: Value = Const(0, 1)
        positions = []
        for lane, chosen in enumerate(self.mask):
            position = Signal(range(p.banks), name=f"position_{lane}")
            count = Signal(range(lane + 2), name=f"count_{lane}")
            m.d.comb += [position.eq(tail + ones), count.eq(ones + chosen)]
            positions.append(position)
            ones = count
        # Closing a group advances the tail to the next multiple of `outputs`. Groups of one entry
        # are always closed.
        left_open: Value = Const(0, 1)
        if p.outputs > 1:
            left_open = Signal(range(p.outputs))
            m.d.comb += left_open.eq(-(tail + ones))
        added = Signal(range(p.lanes + p.outputs))
        m.d.comb += added.eq(ones + Mux(self.end, left_open, 0))

        # A full group is read whenever the output register is free.
        fetch = Signal()
        m.d.comb += [
            fetch.eq((used >= p.outputs) & (~o.valid | o.ready)),
            # Room is judged by the largest push that may come, before its mask is known: APID's
            # pipeline ahead of this queue cannot be stopped half-way.
            self.room.eq(used <= p.room_limit),
        ]
        m.d.sync += used.eq(
            used + Mux(self.push, added, 0) - Mux(fetch, Const(p.outputs), Const(0))
        )
        with m.If(self.push):
            m.d.sync += tail.eq(tail + added)
        group = Signal(range(max(2, p.groups)))  # the banks that were read
        with m.If(fetch):
            m.d.sync += [front.eq(front + p.outputs), group.eq(self._group(front))]
        with m.If(~o.valid | o.ready):
            m.d.sync += o.valid.eq(fetch)

        rows = [self._bank(m, bank, positions, tail, front, fetch) for bank in range(p.banks)]
        self._output(m, rows, group)
        return m

    def _group(self, number: Signal) -> Value:
        """Which banks have the group of entry `number`.

        ::

            number  | row | group in the row | entry in the group |
        """
        p = self.parameters
        return number[(p.outputs - 1).bit_length() : (p.banks - 1).bit_length()]

    def _bank(
        self,
        m: Module,
        bank: int,
        positions: list[Signal],
        tail: Signal,
        front: Signal,
        fetch: Signal,
    ) -> data.View:
        """A memory that takes its entry of a push; returns the row that was read."""
        p = self.parameters
        name = f"bank_{bank}"
        rows = row_memory(unsigned(self._row.size), p.depth // p.banks)
        m.submodules[name] = rows
        write, read = rows.write_port(), rows.read_port()
        selected = Signal(p.lanes, name=f"selected_{bank}")  # one-hot or 0
        bits = (p.banks - 1).bit_length()
        candidates = []
        for lane, position in enumerate(positions):
            m.d.comb += selected[lane].eq(self.mask[lane] & (position == bank))
            # The last entry of a run comes from the highest lane.
            last = self.end & ~self.mask[lane + 1 :].any()
            entry = Cat(self.entries[lane], last)
            candidates.append(entry & selected[lane].replicate(len(entry)))
        taken = Signal(len(candidates[0]), name=f"taken_{bank}")
        m.d.comb += [
            taken.eq(functools.reduce(operator.or_, candidates)),
            write.en.eq(self.push & selected.any()),
            # A bank below the tail's has its entry of this round already: one row further.
            write.addr.eq(tail[bits:] + (bank < tail[:bits] if bank + 1 < p.banks else 0)),
            write.data.eq(Cat(taken, self.common)),
            read.addr.eq(front[bits:]),
            read.en.eq(fetch & (self._group(front) == bank // p.outputs)),
        ]
        row = Signal(self._row, name=f"row_{bank}")
        m.d.comb += row.as_value().eq(read.data)
        return row

    def _output(self, m: Module, rows: list[data.View], group: Signal) -> None:
        """The group that was read, up to the last entry of a run; the rest is 0."""
        p, o = self.parameters, self.o.payload
        # What follows the last entry of a run in its group is left over from an earlier round of
        # the bank.
        present = Const(1, 1)
        for place in range(p.outputs):
            row = Signal(self._row, name=f"output_{place}")
            with m.Switch(group):
                for number in range(p.groups):
                    with m.Case(number) if number < p.groups - 1 else m.Default():
                        m.d.comb += row.eq(rows[number * p.outputs + place])
            kept = Signal(name=f"kept_{place}")
            m.d.comb += [
                kept.eq(present),
                o.keep[place].eq(kept),
                o.entries[place].eq(row.entry & kept.replicate(len(row.entry))),
                o.common[place].eq(row.common & kept.replicate(len(row.common))),
            ]
            present = kept & ~row.last
        m.d.comb += o.last.eq(~present)
