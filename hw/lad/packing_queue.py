"""A queue that takes any of several entries a cycle and gives them out in full groups."""

import dataclasses
import functools
import operator

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.parameters import Parameters, require


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
    def most(self) -> int:
        """Entries used beyond which there is no room."""
        return self.depth - (self.lanes + self.outputs - 1)

    @property
    def groups(self) -> int:
        """Groups that lie side by side in the banks."""
        return self.banks // self.outputs

    def output_layout(self, entry: int, common: int) -> data.StructLayout:
        """A group: ``entries`` and ``common`` of each, ``keep`` which there are, ``last`` of a run.

        What there is not is zero.
        """
        return data.StructLayout(
            {
                "entries": data.ArrayLayout(entry, self.outputs),
                "common": data.ArrayLayout(common, self.outputs),
                "keep": self.outputs,
                "last": 1,
            }
        )


class PackingQueue(Component):
    """Entries of a run, chosen among `lanes` a cycle, in order and without gaps.

    ::

        mask ─→ number of ones before each lane ─→ + tail ─→ bank of each entry
        entries ─────────────────────────────────→ banks ─→ group at the head ─→ o

    A push puts the entries in the mask, lowest lane first, behind those that are there. They leave
    in groups of `outputs`, which are full but for the last one of a run: ``end`` closes the run's
    last group, so that the next run begins with a group of its own. A push that ends a run must
    have an entry. Groups depend on what is pushed alone, not on when.

    Entry number n of all is in bank n mod `banks`, so the entries of a push are in different banks.
    A bank has one writer and one reader of a row each, and reads into registers: it may be a block
    of memory.

    Latency: 2 cycles from a push to the group that it completes. Throughput: a push and a group a
    cycle.

    Handshake: `push` only with `room`, which tells of room for `lanes` entries and a group that is
    closed early. It depends on registers only, like ``o``.

    Parameters
    ----------
    parameters : :class:`PackingQueueParameters`
    entry, common : int
        Bits of an entry, and of what the entries of a push share; an entry comes out as both.

    Members
    -------
    push, end : :py:`In(1)`
    mask : :py:`In(lanes)`
    entries : :py:`In(ArrayLayout(entry, lanes))`
    common : :py:`In(common)`
    room : :py:`Out(1)`
    o : :py:`Out(stream.Signature(parameters.output_layout(entry, common)))`
    """

    def __init__(self, parameters: PackingQueueParameters, entry: int, common: int):
        self._parameters = p = parameters
        self._row = data.StructLayout({"entry": entry, "last": 1, "common": common})
        super().__init__(
            {
                "push": In(1),
                "end": In(1),
                "mask": In(p.lanes),
                "entries": In(data.ArrayLayout(entry, p.lanes)),
                "common": In(common),
                "room": Out(1),
                "o": Out(stream.Signature(p.output_layout(entry, common))),
            }
        )

    @property
    def parameters(self) -> PackingQueueParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        o = self.o
        tail = Signal(range(p.depth))  # number of the next entry pushed
        head = Signal(range(p.depth))  # of the next one read, the first of its group
        used = Signal(range(p.depth + 1))

        ones = Const(0, 1)
        places = []
        for lane, chosen in enumerate(self.mask):
            place = Signal(range(p.banks), name=f"place_{lane}")
            count = Signal(range(lane + 2), name=f"count_{lane}")
            m.d.comb += [place.eq(tail + ones), count.eq(ones + chosen)]
            places.append(place)
            ones = count
        # With the last group closed, the tail is a multiple of its size.
        left_open = Signal(range(p.outputs))
        added = Signal(range(p.lanes + p.outputs))
        m.d.comb += [
            left_open.eq(-(tail + ones)),
            added.eq(ones + Mux(self.end, left_open, 0)),
        ]
        fetch = Signal()
        m.d.comb += [
            fetch.eq((used >= p.outputs) & (~o.valid | o.ready)),
            self.room.eq(used <= p.most),
        ]
        m.d.sync += used.eq(
            used + Mux(self.push, added, 0) - Mux(fetch, Const(p.outputs), Const(0))
        )
        with m.If(self.push):
            m.d.sync += tail.eq(tail + added)
        group = Signal(range(max(2, p.groups)))  # of banks, whose rows are given out
        with m.If(fetch):
            m.d.sync += [head.eq(head + p.outputs), group.eq(self._group(head))]
        with m.If(~o.valid | o.ready):
            m.d.sync += o.valid.eq(fetch)

        rows = [self._bank(m, bank, places, tail, head, fetch) for bank in range(p.banks)]
        self._give(m, rows, group)
        return m

    def _group(self, number: Signal) -> Value:
        """Which banks have the group of that number."""
        p = self._parameters
        return number[(p.outputs - 1).bit_length() : (p.banks - 1).bit_length()]

    def _bank(
        self, m: Module, bank: int, places: list[Signal], tail: Signal, head: Signal, fetch: Signal
    ) -> data.View:
        """A memory, and what of a push it takes; the row that was read."""
        p = self._parameters
        name = f"bank_{bank}"
        m.submodules[name] = rows = memory.Memory(
            shape=unsigned(self._row.size), depth=p.depth // p.banks, init=[]
        )
        put, get = rows.write_port(), rows.read_port()
        mine = Signal(p.lanes, name=f"mine_{bank}")
        bits = (p.banks - 1).bit_length()
        chosen = []
        for lane, place in enumerate(places):
            m.d.comb += mine[lane].eq(self.mask[lane] & (place == bank))
            # The last entry of a run is that of the highest lane.
            last = self.end & ~self.mask[lane + 1 :].any()
            entry = Cat(self.entries[lane], last)
            chosen.append(entry & mine[lane].replicate(len(entry)))
        taken = Signal(len(chosen[0]), name=f"taken_{bank}")
        m.d.comb += [
            taken.eq(functools.reduce(operator.or_, chosen)),
            put.en.eq(self.push & mine.any()),
            # Banks below the tail's are a row further.
            put.addr.eq(tail[bits:] + (bank < tail[:bits] if bank + 1 < p.banks else 0)),
            put.data.eq(Cat(taken, self.common)),
            get.addr.eq(head[bits:]),
            get.en.eq(fetch & (self._group(head) == bank // p.outputs)),
        ]
        row = Signal(self._row, name=f"row_{bank}")
        m.d.comb += row.as_value().eq(get.data)
        return row

    def _give(self, m: Module, rows: list[data.View], group: Signal) -> None:
        """The group that was read, and nothing behind a run's last entry."""
        p, o = self._parameters, self.o.payload
        present = Const(1, 1)
        for place in range(p.outputs):
            row = Signal(self._row, name=f"given_{place}")
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
