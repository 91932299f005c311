"""The sequence of a token's step in VEDA's core (VEDA, section V)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream

from hw.attention.head_order import HeadOrderParameters
from hw.attention.row_reader import run_layout
from hw.attention.step_sequence import StepSequence
from hw.component import Component
from hw.layout import FLAG, address, count, index
from hw.parameters import Parameters
from hw.ports import Ports, stream_in, stream_out
from hw.stream.combine import copy, fork, join, merge
from hw.stream.sequential_reader import SequentialReaderParameters
from hw.veda.row_map import RowMap, RowMapParameters
from hw.veda.voting_engine import VotingEngineParameters


@dataclasses.dataclass(frozen=True)
class SchedulerParameters(Parameters):
    """
    kv_heads
        Number of kv heads, at most.
    depth
        Number of rows in the reader's buffer; see :class:`hw.attention.row_reader.RowReader`.
    capacity, heads, position_bits, count_bits
        See :class:`VotingEngineParameters`. The capacity is a power of two.
    parallel
        Number of query heads whose K is read before their V, at most, and whose rows are read once
        if they share a kv head.
    """

    kv_heads: int = 3
    depth: int = 16
    capacity: int = 256
    heads: int = 9
    position_bits: int = 24
    count_bits: int = 16
    parallel: int = 1

    def __post_init__(self):
        _ = self.order, self.voting, self.map, self.reader  # built here, as each checks its own

    @classmethod
    def presets(cls) -> dict[str, "SchedulerParameters"]:
        return {
            "small": cls(2, 8, 32, 4, 8, 4),
            "default": cls(),
            "paper": cls(32, 64, 4096, 32),
        }

    @cached_property
    def voting(self) -> VotingEngineParameters:
        """Parameters of the voting engine."""
        return VotingEngineParameters(
            self.capacity, self.heads, self.position_bits, self.count_bits
        )

    @cached_property
    def order(self) -> HeadOrderParameters:
        return HeadOrderParameters(self.heads, self.kv_heads, self.parallel, self.parallel)

    @cached_property
    def map(self) -> RowMapParameters:
        """Parameters of the row map. A tag is | write | the reader's tag |."""
        return RowMapParameters(
            self.capacity, self.order.head_bits + 1, (2 * self.depth - 1).bit_length()
        )

    @property
    def address_width(self) -> int:
        """Bits of a row's address."""
        return self.map.slot_bits + self.map.region_bits

    @cached_property
    def reader(self) -> SequentialReaderParameters:
        """Parameters of the reader of rows."""
        return SequentialReaderParameters(
            address_width=self.address_width, depth=self.depth, longest=self.capacity
        )

    @cached_property
    def use_layout(self) -> data.StructLayout:
        """See :meth:`hw.attention.weighted_rows.WeightedRowsParameters.run_layout`."""
        heads = count(range(self.parallel + 1))
        return data.StructLayout({"value": FLAG, "heads": heads, "last": FLAG})

    def address(self, kv_head, value, row):
        """Address of a row of K, or if `value` of V: | kv head | value | row |."""
        return (kv_head * 2 + value) * self.capacity + row

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """A step: the voting engine's command, and ``group`` query heads that share a kv head."""
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

        command ─┬→ StepSequence ─→ new rows ─→ RowMap ─→ request
                 │        └───────→ run ┄ reader ┄ lookup ─→ ↑
                 └→ vote_command ┄ voting engine ┄ vote_report ─→ report
                                                        └→ evicted slots swap rows in RowMap

    The order of a step is :class:`hw.attention.step_sequence.StepSequence`'s. Before its new rows
    are written, the token takes a slot; while it reports, evicted slots swap rows. The step ends
    with the last report of an eviction; then the next one is accepted. Requests for rows name slots
    of the cache; :class:`hw.veda.row_map.RowMap` turns them into rows. An address is
    | kv head | K or V | row |.

    Latency: 3 cycles from a command to the first write, one write a cycle; then the first run. The
    reader's requests are output a cycle later.

    Handshake: `command` and `vote_command` transfer in the same cycle; a `vote_report` transfers
    with its `report`, when the map is free; a `lookup` as :class:`RowMap` accepts it. A report must
    not arrive before the last request of the step was accepted.

    Errors: a command without heads, with an empty group, with more heads than `heads` or than
    kv_heads times its group is refused. It is accepted and answered in the next cycle by a report
    with ``error``. It does not reach the voting engine, makes no request, and its ``restart`` has
    no effect.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.command_layout, "Steps."),
            "vote_command": stream_out(p.voting.command_layout, "To the voting engine."),
            "vote_report": stream_in(p.voting.report_layout, "From the voting engine."),
            "report": stream_out(p.report_layout, "The same, for the user, and refused commands."),
            "run": stream_out(
                run_layout(p.reader, p.parallel),
                "Runs of slots for the reader to read, of K and V.",
            ),
            "lookup": stream_in(p.reader.memory().read_layout, "The reader's requests, by slot."),
            "request": stream_out(p.request_layout, "Rows to write and to read."),
            "use": stream_out(p.use_layout, "What each run is."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        command, vote_command = self.command, self.vote_command
        vote_report, report = self.vote_report, self.report
        m.submodules.map = rows = RowMap(p.map)
        m.submodules.sequence = sequence = StepSequence(p.order)
        length = Signal(range(p.capacity + 1))  # live slots
        joining = Signal()  # the new token has no slot yet

        # A command goes to the sequence and, unless it is refused, to the voting engine.
        accepted = join(m, [command], [sequence.command], vote_command.ready)
        m.d.comb += [
            vote_command.valid.eq(command.valid & sequence.command.ready & ~sequence.refused),
            *copy(sequence.command.payload, command.payload),
            *copy(vote_command.payload, command.payload),
        ]
        # The cache changes in one order: the token joins, the heads read all rows, the report's
        # eviction swaps rows. `joining` and `reporting` are the two times at which the map may
        # change.
        with m.If(accepted & ~sequence.refused):
            m.d.sync += joining.eq(1)
            with m.If(command.payload.restart):
                m.d.sync += length.eq(0)

        # Reports pass when everything has been read; an eviction swaps rows meanwhile.
        passes = Signal()
        free = Signal()
        m.d.comb += [
            # A report goes together with its swap. The sequence leaves `reporting` with the last
            # one, so the next command's token joins a cache whose rows have settled.
            free.eq(sequence.reporting & (~vote_report.payload.evict | rows.change.ready)),
            report.valid.eq(sequence.error | (vote_report.valid & free)),
            vote_report.ready.eq(report.ready & free),
            passes.eq(vote_report.valid & vote_report.ready),
            sequence.reported.eq(report.valid & report.ready & report.payload.last),
            rows.change.valid.eq(joining | (passes & vote_report.payload.evict)),
            rows.change.payload.swap.eq(~joining),
            rows.change.payload.slot.eq(Mux(joining, length, vote_report.payload.slot)),
            rows.change.payload.last.eq(vote_report.payload.length),
        ]
        with m.If(sequence.error):  # the only report of a command that is refused
            m.d.comb += [
                report.payload.error.eq(1),
                report.payload.last.eq(1),
                report.payload.length.eq(length),
            ]
        with m.Else():
            m.d.comb += copy(report.payload, vote_report.payload)
        # The new token's slot is the one after the last.
        with m.If(joining & rows.change.ready):
            m.d.sync += [joining.eq(0), length.eq(length + 1)]
        # The voting engine counts slots, too; its report has the length after the eviction.
        with m.If(passes):
            m.d.sync += length.eq(vote_report.payload.length)
        self._look_up(m, rows, sequence, joining, length)
        return m

    def _look_up(self, m: Module, rows: RowMap, sequence: StepSequence, joining, length) -> None:
        """Slots of the new token and of the reader's requests become rows.

        The map's tag is | new row | the reader's tag |.
        """
        p = self.parameters
        lookup, run, bits = self.lookup, self.run, p.map.slot_bits
        # The new token's rows go before the reader's, which cannot read what is not written yet.
        # One lookup port serves both, as rows to store are two per kv head.
        new = stream.Signature(p.map.address_layout).create()
        join(m, [sequence.store], [new], ~joining)
        storing = merge(m, new, lookup, rows.i)
        fork(m, "run", sequence.run, [run, self.use])
        join(m, [rows.o], [self.request])
        store, found, slot_address = sequence.store.payload, rows.o.payload, lookup.payload.address
        batch = sequence.run.payload.batch
        m.d.comb += [
            # A run is K's or V's rows of one kv head, in the order of slots; the map turns each
            # slot into the row of memory that holds it, so evictions move no data.
            run.payload.words.eq(length),
            run.payload.address.eq(Cat(sequence.run.payload.value, batch.kv_head) << bits),
            run.payload.times.eq(batch.heads),
            self.use.payload.heads.eq(batch.heads),
            self.use.payload.last.eq(batch.last),
            rows.i.payload.tag.eq(Cat(lookup.payload.tag, storing)),
            rows.i.payload.slot.eq(Mux(storing, length - 1, slot_address[:bits])),
            rows.i.payload.region.eq(
                Mux(storing, Cat(store.value, store.kv_head), slot_address[bits:])
            ),
            self.request.payload.tag.eq(found.tag[:-1]),
            self.request.payload.write.eq(found.tag[-1]),
            self.request.payload.address.eq(Cat(found.slot, found.region)),
        ]
