"""The sequence of a token's step in VEDA's core (VEDA, section V)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data

from hw.component import Component
from hw.layout import FLAG, address, count, index
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out, wire_out
from hw.stream.sequential_reader import SequentialReaderParameters
from hw.veda.row_map import RowMap, RowMapParameters
from hw.veda.voting_engine import VotingEngineParameters


@dataclasses.dataclass(frozen=True)
class SchedulerParameters(Parameters):
    """
    kv_heads
        Heads with keys and values of their own, at most.
    depth
        Requests of the reader in flight; see :class:`SequentialReaderParameters`.
    capacity, heads, position_bits, count_bits
        Of the voting engine; see :class:`VotingEngineParameters`. The capacity is a power of two.
    """

    kv_heads: int = 3
    depth: int = 16
    capacity: int = 256
    heads: int = 9
    position_bits: int = 24
    count_bits: int = 16

    def __post_init__(self):
        _ = self.voting, self.map, self.reader  # built here, as each checks its own
        require(1 <= self.kv_heads <= self.heads, "kv_heads must be 1 to heads", self.kv_heads)

    @classmethod
    def presets(cls) -> dict[str, "SchedulerParameters"]:
        return {
            "small": cls(2, 8, 32, 4, 8, 4),
            "default": cls(),
            "paper": cls(32, 64, 4096, 32),
        }

    @cached_property
    def voting(self) -> VotingEngineParameters:
        """Those of the voting engine."""
        return VotingEngineParameters(
            self.capacity, self.heads, self.position_bits, self.count_bits
        )

    @property
    def head_bits(self) -> int:
        """Of a kv head's number."""
        return max(1, (self.kv_heads - 1).bit_length())

    @cached_property
    def map(self) -> RowMapParameters:
        """Those of the row map. A tag is the reader's, or that of a write."""
        return RowMapParameters(
            self.capacity, self.head_bits + 1, (2 * self.depth - 1).bit_length()
        )

    @property
    def address_width(self) -> int:
        """Bits of a row's address."""
        return self.map.slot_bits + self.map.region_bits

    @cached_property
    def reader(self) -> SequentialReaderParameters:
        """Those of the reader of rows."""
        return SequentialReaderParameters(
            address_width=self.address_width, depth=self.depth, longest=self.capacity
        )

    def address(self, kv_head, value, row):
        """Address of a row of K, or if `value` of V: | kv head | value | row |."""
        return (kv_head * 2 + value) * self.capacity + row

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """A step: the voting engine's command, and ``group`` query heads that share a kv head.

        0 heads or a group of 0 count as 1.
        """
        fields = {name: field.shape for name, field in self.voting.command_layout}
        return data.StructLayout(fields | {"group": count(range(self.heads + 1))})

    @cached_property
    def report_layout(self) -> data.StructLayout:
        """The voting engine's report, and ``error`` for a command that was refused.

        That is then the command's only beat: ``last``, with ``length`` unchanged, the rest 0.
        """
        fields = {name: field.shape for name, field in self.voting.report_layout}
        return data.StructLayout(fields | {"error": FLAG})

    @cached_property
    def request_layout(self) -> data.StructLayout:
        """``tag`` and ``address`` of a row to ``write`` or to read."""
        tag = index(range(self.depth))
        fields = {"tag": tag, "address": address(self.address_width), "write": FLAG}
        return data.StructLayout(fields)


class Scheduler(Component[SchedulerParameters]):
    """The order of a step: write the new rows, read all rows for each head, evict.

    ::

        IDLE ─→ JOIN ─→ STORE ─→ READ ─→ REPORT ─→ IDLE
                │       │        │       └ the voting engine's reports; evicted slots swap rows
                │       │        └ a run of K, a run of V for each query head
                │       └ requests to write K and V of each kv head
                └ a slot for the new token
        IDLE ─→ REFUSED ─→ IDLE

    A step begins with its `command`, which is passed to the voting engine, and ends with the last
    report of an eviction; then the next one is accepted. Requests for rows name slots of the cache;
    :class:`hw.veda.row_map.RowMap` turns them into rows. An address is | kv head | K or V | row |.

    Latency: 3 cycles from a command to the first write, one write a cycle; then the first run. The
    reader's requests are output a cycle later.

    Handshake: `command` and `vote_command` transfer in the same cycle; a `vote_report` transfers
    with its `report`, when the map is free; a `lookup` as :class:`RowMap` accepts it. A report must
    not arrive before the last request of the step was accepted.

    Errors: a command of more heads than `heads`, or than kv_heads times its group, is refused. It
    is accepted and answered in the next cycle by a report with ``error``. It does not reach the
    voting engine, makes no request, and its ``restart`` has no effect.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.command_layout, "Steps."),
            "vote_command": stream_out(p.voting.command_layout, "To the voting engine."),
            "vote_report": stream_in(p.voting.report_layout, "From the voting engine."),
            "report": stream_out(p.report_layout, "The same, for the user, and refused commands."),
            "run": stream_out(
                p.reader.command_layout, "Runs of slots for the reader to read, K and V in turn."
            ),
            "lookup": stream_in(p.reader.request_layout, "The reader's requests, by slot."),
            "request": stream_out(p.request_layout, "Rows to write and to read."),
            "heads": wire_out(range(p.heads + 1), "Heads of this step."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        command, vote_command = self.command, self.vote_command
        vote_report, report, run = self.vote_report, self.report, self.run
        m.submodules.map = rows = RowMap(p.map)

        group = Signal(range(p.heads + 1), reset_less=True)
        length = Signal(range(p.capacity + 1))  # live slots
        # The writes and the reads go through kv heads, and through K and V of each.
        heads_done = Signal(range(p.heads + 1), reset_less=True)
        group_done = Signal(range(p.heads + 1), reset_less=True)  # query heads of this kv head
        kv_head = Signal(p.head_bits, reset_less=True)
        value = Signal(reset_less=True)  # V rather than K
        heads_next = Signal(range(2 * p.heads + 1))
        final = Signal()  # this head, or in STORE this group, is the last
        storing = Signal()
        stored = Signal()
        region = Signal(p.map.region_bits)
        swap = Signal()
        # The requests' slots, and the row map's changes: a new slot, or a swap after an eviction.
        m.d.comb += [
            heads_next.eq(heads_done + Mux(storing, group, 1)),
            final.eq(heads_next >= self.heads),
            region.eq(Cat(value, kv_head)),
            stored.eq(rows.i.valid & rows.i.ready),
            vote_command.payload.eq(
                Cat(command.payload[name] for name, _ in p.voting.command_layout)
            ),
            rows.change.payload.swap.eq(swap),
            rows.change.payload.slot.eq(Mux(swap, vote_report.payload.slot, length)),
            rows.change.payload.last.eq(vote_report.payload.length),
            run.payload.words.eq(length),
            run.payload.address.eq(region << p.map.slot_bits),
        ]
        for name, _ in p.voting.report_layout:
            m.d.comb += report.payload[name].eq(vote_report.payload[name])
        self._look_up(m, rows, storing, region, length)

        # Rows of more kv heads than there are would lie beyond the cache.
        group_or_1 = Signal.like(group)
        refused = Signal()
        m.d.comb += [
            group_or_1.eq(Mux(command.payload.group.any(), command.payload.group, 1)),
            refused.eq(
                (command.payload.heads > p.heads)
                | (command.payload.heads > group_or_1 * p.kv_heads)
            ),
        ]

        with m.FSM(name="phase"):
            with m.State("IDLE"):
                m.d.comb += [
                    vote_command.valid.eq(command.valid & ~refused),
                    command.ready.eq(vote_command.ready),
                ]
                with m.If(command.valid & command.ready):
                    with m.If(refused):
                        m.next = "REFUSED"
                    with m.Else():
                        m.d.sync += [self.heads.eq(command.payload.heads), group.eq(group_or_1)]
                        with m.If(command.payload.restart):
                            m.d.sync += length.eq(0)
                        m.next = "JOIN"
            with m.State("REFUSED"):
                m.d.comb += [
                    report.valid.eq(1),
                    report.payload.eq(0),
                    report.payload.error.eq(1),
                    report.payload.length.eq(length),
                    report.payload.last.eq(1),
                ]
                with m.If(report.ready):
                    m.next = "IDLE"
            with m.State("JOIN"):  # the token takes the next slot
                m.d.comb += rows.change.valid.eq(1)
                m.d.sync += [heads_done.eq(0), group_done.eq(0), kv_head.eq(0), value.eq(0)]
                with m.If(rows.change.ready):
                    m.d.sync += length.eq(length + 1)
                    m.next = "STORE"
            with m.State("STORE"):  # for each kv head: write K, write V
                m.d.comb += storing.eq(1)
                with m.If(stored):
                    m.d.sync += value.eq(~value)
                    with m.If(value):
                        m.d.sync += [heads_done.eq(heads_next), kv_head.eq(kv_head + 1)]
                        with m.If(final):
                            m.d.sync += [heads_done.eq(0), kv_head.eq(0)]
                            m.next = "READ"
            with m.State("READ"):  # for each query head: read K, read V of its kv head
                m.d.comb += run.valid.eq(1)
                with m.If(run.ready):
                    m.d.sync += value.eq(~value)
                    with m.If(value):
                        m.d.sync += [heads_done.eq(heads_next), group_done.eq(group_done + 1)]
                        with m.If(group_done + 1 == group):
                            m.d.sync += [group_done.eq(0), kv_head.eq(kv_head + 1)]
                        with m.If(final):
                            m.next = "REPORT"
            with m.State("REPORT"):  # pass on the reports; swap rows for each eviction
                free = ~vote_report.payload.evict | rows.change.ready
                passes = Signal()
                m.d.comb += [
                    report.valid.eq(vote_report.valid & free),
                    vote_report.ready.eq(report.ready & free),
                    passes.eq(vote_report.valid & vote_report.ready),
                    swap.eq(1),
                    rows.change.valid.eq(passes & vote_report.payload.evict),
                ]
                with m.If(passes):
                    m.d.sync += length.eq(vote_report.payload.length)
                    with m.If(vote_report.payload.last):
                        m.next = "IDLE"
        return m

    def _look_up(self, m: Module, rows: RowMap, storing, region, length) -> None:
        """Slots of the new token, and those of the reader's requests, become rows.

        The map's tag is | storing | the reader's tag |.
        """
        p = self.parameters
        lookup, request, bits = self.lookup, self.request, p.map.slot_bits
        slot_address = lookup.payload.address
        m.d.comb += [
            rows.i.valid.eq(storing | lookup.valid),
            lookup.ready.eq(~storing & rows.i.ready),
            rows.i.payload.tag.eq(Cat(lookup.payload.tag, storing)),
            rows.i.payload.slot.eq(Mux(storing, length - 1, slot_address[:bits])),
            rows.i.payload.region.eq(Mux(storing, region, slot_address[bits:])),
            request.valid.eq(rows.o.valid),
            rows.o.ready.eq(request.ready),
            request.payload.tag.eq(rows.o.payload.tag[:-1]),
            request.payload.write.eq(rows.o.payload.tag[-1]),
            request.payload.address.eq(Cat(rows.o.payload.slot, rows.o.payload.region)),
        ]
