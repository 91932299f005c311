"""The sequence of a token's step in VEDA's core (VEDA, section V)."""

import dataclasses
from functools import cached_property
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring

from hw.attention.head_order import HeadOrderParameters
from hw.attention.row_reader import run_layout
from hw.attention.step_sequence import StepSequence
from hw.component import Component
from hw.layout import FLAG, address, count, index
from hw.parameters import Parameters
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.stream.combine import copy, fork, join, merge
from hw.stream.queue import Queue, QueueParameters
from hw.stream.sequential_reader import SequentialReaderParameters
from hw.veda.context_memory import ContextMemory
from hw.veda.place_memory import PlaceWords, access_layout
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
    contexts
        Number of sequences, each with its rows, counts and length.
    block
        Number of tokens of a step, at most; several are a block of a prompt.
    moved
        Whether contexts are places whose state is moved to a memory and back.
    """

    kv_heads: int = 3
    depth: int = 16
    capacity: int = 256
    heads: int = 9
    position_bits: int = 24
    count_bits: int = 16
    parallel: int = 1
    contexts: int = 1
    block: int = 1
    moved: bool = False

    def __post_init__(self):
        _ = self.order, self.voting, self.map, self.reader  # built here, as each checks its own

    @classmethod
    def presets(cls) -> dict[str, "SchedulerParameters"]:
        return {
            "small": cls(2, 8, 32, 4, 8, 4, contexts=2),
            "prompts": cls(2, 8, 32, 4, 8, 4, parallel=2, contexts=2, block=3),
            "default": cls(),
            "paper": cls(32, 64, 4096, 32),
        }

    @cached_property
    def voting(self) -> VotingEngineParameters:
        """Parameters of the voting engine."""
        return VotingEngineParameters(
            self.capacity,
            self.heads,
            self.position_bits,
            self.count_bits,
            self.contexts,
            self.block,
        )

    @cached_property
    def order(self) -> HeadOrderParameters:
        return HeadOrderParameters(
            self.heads, self.kv_heads, self.parallel, self.parallel, self.block
        )

    @cached_property
    def map(self) -> RowMapParameters:
        """Parameters of the row map. A tag is | write | the reader's tag |."""
        region_bits = (self.contexts - 1).bit_length() + self.order.head_bits + 1
        tag_bits = (2 * self.depth - 1).bit_length()
        return RowMapParameters(
            self.capacity, region_bits, tag_bits, self.contexts, moved=self.moved
        )

    @property
    def region_bits(self) -> int:
        """Bits of a row's address below its context."""
        return self.order.head_bits + 1 + self.map.slot_bits

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
        heads = count(range(self.parallel * self.block + 1))
        return data.StructLayout({"value": FLAG, "heads": heads, "last": FLAG})

    def address(self, kv_head, value, row, context=0):
        """Address of a row of K, or if `value` of V: | context | kv head | value | row |."""
        head = (context << self.order.head_bits) + kv_head
        return (head * 2 + value) * self.capacity + row

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """A step: the voting engine's command, and ``group`` query heads that share a kv head.

        With several ``tokens`` all but the last one's are attended to as without ``evict``.
        """
        fields = {name: field.shape for name, field in self.voting.command_layout}
        return data.StructLayout(fields | {"group": count(range(self.heads + 1))})

    @cached_property
    def report_layout(self) -> data.StructLayout:
        """The voting engine's report, and ``error`` for a command that was refused.

        That is then the command's only beat: ``last``, its ``context`` with ``length`` unchanged,
        the rest 0.
        """
        fields = {name: field.shape for name, field in self.voting.report_layout}
        return data.StructLayout(fields | {"error": FLAG})

    @cached_property
    def request_layout(self) -> data.StructLayout:
        """``tag`` and ``address`` of a row to ``write`` or to read."""
        tag = index(range(self.depth))
        fields = {"tag": tag, "address": address(self.address_width), "write": FLAG}
        return data.StructLayout(fields)


def scheduler_ports(p: SchedulerParameters) -> Ports:
    """Ports of a :class:`Scheduler`."""
    meaning = "`refused` does not depend on steps that have not been reported."
    settled = {"settled": wire_out(1, meaning)} if p.block > 1 else {}
    slots = count(range(p.capacity + 1))
    state = data.StructLayout({"row": index(p.map.slot_bits), "used": slots, "length": slots})
    moved = {
        "access": wire_in(access_layout(p.contexts, p.capacity), "The mover's."),
        "given": wire_in(state, "Row of the slot; slots used, and live slots."),
        "kept": wire_out(state, "The same, of the place of `access`."),
        "held": wire_out(p.contexts, "Places that must not be moved: a step's, or all."),
    }
    return {
        "command": stream_in(p.command_layout, "Steps."),
        "refuse": wire_in(1, "The command that is offered is to be refused."),
        "refused": wire_out(1, "The command that is offered is refused."),
        **settled,
        "reading": wire_out(1, "Runs of a step have not been accepted."),
        "vote_command": stream_out(p.voting.command_layout, "To the voting engine."),
        "vote_report": stream_in(p.voting.report_layout, "From the voting engine."),
        "report": stream_out(p.report_layout, "The same, for the user, and refused commands."),
        "run": stream_out(
            run_layout(p.reader, p.parallel, p.block),
            "Runs of slots for the reader to read, of K and V.",
        ),
        "lookup": stream_in(p.reader.memory().read_layout, "The reader's requests, by slot."),
        "request": stream_out(p.request_layout, "Rows to write and to read."),
        "use": stream_out(p.use_layout, "What each run is."),
        **(moved if p.moved else {}),
    }


class Scheduler(Component[SchedulerParameters]):
    """The order of a step: write the new rows, read all rows for each head, evict.

    A step is one token, or with `block` up to as many of a prompt, whose rows are all written first
    and which share what is read.

    ::

        command ─┬→ StepSequence ─→ new rows ─→ RowMap ─→ request
                 │        └───────→ run ┄ reader ┄ lookup ─→ ↑
                 └→ queue ─→ vote_command ┄ voting engine ┄ vote_report ─→ report
                                                                 └→ evicted slots swap rows

    The order of a step is :class:`hw.attention.step_sequence.StepSequence`'s. Before its new rows
    are written, the token takes a slot; while it reports, evicted slots swap rows. The step ends
    with the last report of an eviction; then the next one of the same context is accepted, while
    other contexts' steps begin when all runs of the step before have been accepted. Requests for
    rows name slots of the cache; :class:`hw.veda.row_map.RowMap` turns them into rows. An address
    is | context | kv head | K or V | row |.

    Latency: 3 cycles from a command to the first write, one write a cycle; then the first run. The
    reader's requests are output a cycle later.

    Handshake: a `vote_command` is offered a cycle after its command, or when the one before has
    been accepted; a `vote_report` transfers with its `report`, when the map is free; a `lookup` as
    :class:`RowMap` accepts it. A report must not arrive before the last request of the step was
    accepted. A command waits for the report of the same context's step.

    Errors: a command for a context that does not exist, without heads, with an empty group, with
    more heads than `heads` or than kv_heads times its group is refused, and so is a block without
    tokens, with more than `block`, or with more than its context has room for. It is accepted and
    answered by a report with ``error``, in the next cycle or when all steps before it have been
    reported. It does not reach the voting engine, makes no request, and its ``restart`` has no
    effect.
    """

    def ports(self) -> Ports:
        return scheduler_ports(self.parameters)

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        command = self.command
        m.submodules.map = rows = RowMap(p.map)
        m.submodules.sequence = sequence = StepSequence(p.order)
        # Commands that the voting engine has not accepted: it may still count another step's votes.
        size = QueueParameters(depth=1)
        m.submodules.votes = votes = Queue(size, shape=p.voting.command_layout)
        # As wide as the row map's number of slots, so that both are one module.
        slots = unsigned(p.capacity.bit_length())
        state = (p.contexts, p.capacity, slots) if p.moved else (p.contexts, slots)
        m.submodules.lengths = lengths = (PlaceWords if p.moved else ContextMemory)(*state)
        length = Signal(range(p.capacity + 1))  # live slots of the context whose rows are read
        context = Signal.like(command.payload.context)
        joining = Signal(range(p.block + 1))  # new tokens that have no slot yet
        busy = Signal(1 << len(context))  # contexts with a step that has not been reported
        free = Signal()  # the command's context is not

        # A command goes to the sequence and, unless it is refused, to the voting engine.
        refuse = self.refuse | (command.payload.context >= p.contexts)
        if p.block > 1:
            refuse |= self._overflows(m, sequence, lengths.word, free)
        may_begin = sequence.refused | (votes.i.ready & free)
        accepted = join(m, [command], [sequence.command], may_begin)
        m.d.comb += [
            free.eq(~(busy >> command.payload.context)[0]),
            sequence.refuse.eq(refuse),
            self.refused.eq(sequence.refused),
            self.reading.eq(~sequence.command.ready),
            votes.i.valid.eq(command.valid & sequence.command.ready & free & ~sequence.refused),
            # A refused command's report has the length when all steps before have ended.
            lengths.context.eq(Mux(sequence.error, context, command.payload.context)),
            *copy(sequence.command.payload, command.payload),
            *copy(votes.i.payload, command.payload),
        ]
        wiring.connect(m, votes.o, wiring.flipped(self.vote_command))
        with m.If(accepted):
            m.d.sync += [length.eq(lengths.word), context.eq(command.payload.context)]
        # A context changes in one order: the token joins, the heads read all rows, the report's
        # eviction swaps rows. Its next command waits, because that token's rows may replace some
        # that are still being read; other contexts' rows are elsewhere.
        with m.If(accepted & ~sequence.refused):
            tokens = command.payload.tokens if p.block > 1 else 1
            m.d.sync += [joining.eq(tokens), busy.bit_select(command.payload.context, 1).eq(1)]
            with m.If(command.payload.restart):
                m.d.sync += length.eq(0)

        # The map changes when a token takes the slot after the last, and when slots swap rows.
        joins = stream.Signature(p.map.change_layout).create()
        swaps = stream.Signature(p.map.change_layout).create()
        joins_first = merge(m, joins, swaps, rows.change)
        m.d.comb += [
            joins.valid.eq(joining.any()),
            joins.payload.slot.eq(length),
            joins.payload.context.eq(context),
            rows.change.payload.eq(Mux(joins_first, joins.payload, swaps.payload)),
        ]
        with m.If(joins.valid & joins.ready):
            m.d.sync += [joining.eq(joining - 1 if p.block > 1 else 0), length.eq(length + 1)]
        reported = self._report(m, sequence, swaps, ~busy.any(), context, lengths.word)
        ended = self.vote_report.payload
        with m.If(reported & ended.last):
            m.d.sync += busy.bit_select(ended.context, 1).eq(0)
        m.d.comb += [
            # The voting engine counts slots, too; its report has the length after the eviction, and
            # remains as it is until it is accepted.
            lengths.write.valid.eq(self.vote_report.valid),
            lengths.write.context.eq(ended.context),
            lengths.write.word.eq(ended.length),
        ]
        self._look_up(m, rows, sequence, length, context)
        if p.moved:
            # A refused command's report reads the length of its place.
            self._move(m, rows, lengths, busy | sequence.error.replicate(p.contexts))
        return m

    def _move(self, m: Module, rows: RowMap, lengths: Any, held: Value) -> None:
        """Access to the state of a place, and which places must not be moved."""
        m.d.comb += [
            rows.access.eq(self.access),
            lengths.access.eq(self.access),
            *copy(rows.given, self.given),
            lengths.given.eq(self.given.length),
            *copy(self.kept, rows.kept),
            self.kept.length.eq(lengths.kept),
            self.held.eq(held),
        ]
        with m.If(rows.changing):  # slots may swap after the report
            m.d.comb += self.held.eq(~0)

    def _overflows(self, m: Module, sequence: StepSequence, length, free) -> Value:
        """Whether the block offered has more tokens than its context has slots free."""
        p, offered = self.parameters, self.command.payload
        overflows = Signal()
        before = Mux(offered.restart, 0, length)
        m.d.comb += [
            # The length is known when the context's steps have been reported. While a refused
            # command waits for its report, `length` is its context's.
            self.settled.eq(free & ~sequence.error),
            overflows.eq(self.settled & (before + offered.tokens > p.capacity)),
        ]
        return overflows

    def _report(self, m: Module, sequence: StepSequence, swaps, idle, context, length) -> Value:
        """Reports, in the order of commands; returns whether one of a step has passed.

        A refused command is reported when all steps before are (`idle`), with the `length` of its
        `context`.
        """
        vote_report, report = self.vote_report, self.report
        voted = stream.Signature(self.parameters.report_layout).create()
        error = Signal()
        # A report and the swap of its eviction go each as soon as they can.
        fork(m, "report", vote_report, [voted, swaps], [Const(1), vote_report.payload.evict])
        m.d.comb += [
            swaps.payload.swap.eq(1),
            swaps.payload.last.eq(vote_report.payload.length),
            error.eq(sequence.error & idle),
            # A step whose runs have all been accepted has no part in the sequence any more.
            sequence.reported.eq(sequence.reporting | (error & report.ready)),
            report.valid.eq(error | voted.valid),
            voted.ready.eq(report.ready),
        ]
        with m.If(error):
            m.d.comb += [
                report.payload.error.eq(1),
                report.payload.last.eq(1),
                report.payload.context.eq(context),
                report.payload.length.eq(length),
            ]
        with m.Else():
            m.d.comb += report.payload.eq(voted.payload)
        return vote_report.valid & vote_report.ready

    def _look_up(self, m: Module, rows: RowMap, sequence: StepSequence, length, context) -> None:
        """Slots of the new token and of the reader's requests become rows.

        The map's tag is | new row | the reader's tag |.
        """
        p = self.parameters
        lookup, run, bits = self.lookup, self.run, p.map.slot_bits
        region = context[: p.map.context_bits]  # above the kv head
        # The new token's rows go before the reader's, which cannot read what is not written yet.
        # One lookup port serves both, as rows to store are two per kv head. A row finds its token's
        # slot: tokens that have none yet offer changes, before which the map looks nothing up.
        storing = merge(m, sequence.store, lookup, rows.i)
        fork(m, "run", sequence.run, [run, self.use])
        join(m, [rows.o], [self.request])
        store, found, slot_address = sequence.store.payload, rows.o.payload, lookup.payload.address
        batch = sequence.run.payload.batch
        heads, new_slot = batch.heads, length - 1
        if p.block > 1:  # a head's row of V comes once for each token
            tokens = sequence.run.payload.tokens
            heads, new_slot = batch.heads * tokens, length - tokens + store.token
            m.d.comb += run.payload.tokens.eq(tokens)
        m.d.comb += [
            # A run is K's or V's rows of one kv head, in the order of slots; the map turns each
            # slot into the row of memory that holds it, so evictions move no data.
            run.payload.words.eq(length),
            run.payload.address.eq(
                Cat(Const(0, bits), sequence.run.payload.value, batch.kv_head, region)
            ),
            run.payload.times.eq(batch.heads),
            self.use.payload.heads.eq(heads),
            self.use.payload.last.eq(batch.last),
            rows.i.payload.tag.eq(Cat(lookup.payload.tag, storing)),
            rows.i.payload.slot.eq(Mux(storing, new_slot, slot_address[:bits])),
            rows.i.payload.region.eq(
                Mux(storing, Cat(store.value, store.kv_head, region), slot_address[bits:])
            ),
            self.request.payload.tag.eq(found.tag[:-1]),
            self.request.payload.write.eq(found.tag[-1]),
            self.request.payload.address.eq(Cat(found.slot, found.region)),
        ]
