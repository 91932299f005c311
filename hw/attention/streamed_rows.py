"""A decode step with streamed attention over all rows in memory, without placement or policy."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, wiring

from hw.attention.decode_core import DecodeParameters
from hw.attention.grouped_rows import GroupedRows, GroupedRowsParameters
from hw.attention.product_array import PeArrayParameters
from hw.attention.row_port import RowPort
from hw.attention.special_function_unit import SpecialFunctionUnitParameters
from hw.attention.step_sequence import StepSequence, store_layout
from hw.attention.weighted_rows import WeightedRowsParameters
from hw.component import Component
from hw.layout import FLAG, count
from hw.parameters import require
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.stream.combine import copy, fork, join
from hw.stream.queue import Queue, QueueParameters
from hw.stream.sequential_reader import SequentialReader

TILE = 8
"""Scores in a tile of the softmax: it adds as many cycles to a head."""

FETCH_CYCLES = 3
"""Cycles from a run's start to its first row, besides the memory's latency."""


class Work(NamedTuple):
    """What a step does, for :meth:`StreamedParameters.cycles`.

    tokens
        Number of rows of each kv head, the new one included.
    heads, group
        Number of query heads, and of those that share a kv head.
    """

    tokens: int
    heads: int
    group: int


@dataclasses.dataclass(frozen=True)
class StreamedParameters(DecodeParameters):
    """
    d
        Number of elements of a row: a power of two from 2 to 256.
    capacity
        Number of tokens in memory, the new one included: a power of two from 2 to 4096.
    heads, kv_heads
        Number of query heads, and of kv heads, of a step, at most.
    depth
        Number of rows requested and not yet used, at most; see
        :class:`hw.stream.sequential_reader.SequentialReaderParameters`.
    """

    d: int = 64
    capacity: int = 256
    heads: int = 9
    kv_heads: int = 3
    depth: int = 16

    def __post_init__(self):
        power = 2 <= self.d <= 256 and self.d & (self.d - 1) == 0
        require(power, "d must be a power of two from 2 to 256", self.d)
        power = 2 <= self.capacity <= 4096 and self.capacity & (self.capacity - 1) == 0
        require(power, "capacity must be a power of two from 2 to 4096", self.capacity)
        _ = self.order, self.reader, self.rows  # built here, as each checks its own

    @cached_property
    def rows(self) -> GroupedRowsParameters:
        """Parameters of the lanes that use the rows."""
        array = PeArrayParameters(rows=self.d, columns=1, arrays=1)
        softmax = SpecialFunctionUnitParameters(self.capacity, TILE, norms=False)
        return GroupedRowsParameters(WeightedRowsParameters(array, softmax), self.parallel)

    @property
    def row_layout(self) -> data.ArrayLayout:
        return self.rows.lane.row_layout

    @property
    def output_layout(self) -> data.StructLayout:
        return self.rows.lane.output_layout

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """A step of ``heads``, ``group`` on each kv head; ``restart`` begins a sequence."""
        fields = {name: field.shape for name, field in self.order.step_layout}
        return data.StructLayout({"restart": FLAG} | fields)

    @cached_property
    def report_layout(self) -> data.StructLayout:
        """``length``: number of tokens in memory after the step; ``error``: it was refused."""
        return data.StructLayout({"length": count(range(self.capacity + 1)), "error": FLAG})

    @cached_property
    def latency(self) -> int:
        """Cycles of a head besides two for each token, with 8 tokens or more."""
        return self.rows.lane.head_cycles(TILE) - 2 * TILE

    @property
    def idle_bound(self) -> int:
        return self.latency + 2 * self.parallel

    def cycles(self, steps: Sequence[Work | None], memory_latency: int = 1, pause: int = 0) -> int:
        """Cycles from the first command offered to the last result or report accepted.

        Without stalls: the memory answers in `memory_latency` cycles, at most depth - 3, rows of q
        and kv are valid in time, and so are commands, or `pause` cycles after a step's last beat.

        steps
            Work of each; None for a command that is refused.
        """
        command = end = 0  # when the next command is offered, when the last result is accepted
        lanes: list = []
        for step in steps:
            if step is None:
                command, end = command + 2, max(end, command + 1)
            else:
                tokens, heads, group = step
                run = command + 1 + 2 * -(-heads // group)  # after the writes
                for batch in self.order.batches(heads, group):
                    lanes = self.rows.batch(
                        lanes, run + FETCH_CYCLES + memory_latency, batch, tokens
                    )
                command = max(lane.last for lane in lanes) + 2
                end = max(end, command - 1, lanes[-1].left)
            command = end + pause if pause else command
        return end + 1


class StreamedRows(Component[StreamedParameters]):
    """A step: check its command, write its rows, read all rows of K and V for each batch of heads.

    ::

        command ─→ StepSequence ──→ reader ─→ rows ─→ GroupedRows ─→ o
                      │ new rows      ↑                │   ↑
        kv ─────→ RowPort ─→ memory ──┘                p   q

    What a core adds is the *placement*, how many rows there are and which one is the new row's, and
    the *policy*, what follows from probabilities. An address is | kv head | K or V | row |; rows
    are read in order of addresses.

    Errors: as :class:`StepSequence`.

    Latency: `latency` + 2 l cycles from a head's first key to its o, with l >= 8 tokens.

    Handshake: as :class:`RowPort`; ``response.ready`` is always high. `done` follows the last row
    of V, or the refused command, in the next cycle; the next command is accepted after it.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.order.step_layout, "Steps."),
            "refuse": wire_in(1, "The core refuses the command that is offered."),
            "refused": wire_out(1, "The command that is offered is refused."),
            "kv": stream_in(p.row_layout, "New rows of K and V in turn."),
            "q": stream_in(p.row_layout, "Queries, times the scale of scores."),
            **p.memory.ports(),
            "o": stream_out(p.output_layout, "Results, one for each head."),
            "length": wire_in(
                range(p.capacity + 1),
                "Number of rows of each kv head in this step, the new one included.",
            ),
            "new": wire_out(store_layout(p.order), "The new row that is to be written."),
            "row": wire_in(p.row_bits, "Index of its place."),
            "stored": wire_out(1, "It is written in this cycle."),
            "batch": wire_out(p.order.batch_layout, "The batch whose rows are used."),
            "p": wire_out(
                data.ArrayLayout(p.rows.lane.softmax.output_layout, p.parallel),
                "Probability of each lane's row of V, if `used`.",
            ),
            "used": wire_out(p.parallel, "Whether each lane accepts a row of V in this cycle."),
            "done": stream_out({"error": FLAG}, "A step has ended, or a command was refused."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.sequence = sequence = StepSequence(p.order)
        m.submodules.port = port = RowPort(p.memory)
        m.submodules.reader = reader = SequentialReader(p.reader, p.row_layout)
        m.submodules.rows = rows = GroupedRows(p.rows)
        # Batches of heads whose rows are on their way; at most one a row in flight.
        m.submodules.batches = batches = Queue(
            QueueParameters(depth=p.depth), shape=p.order.batch_layout
        )
        inputs = (
            (self.command, sequence.command),
            (self.kv, port.kv),
            (self.response, reader.response),
            (self.q, rows.q),
        )
        for outer, inner in inputs:
            wiring.connect(m, wiring.flipped(outer), inner)
        wiring.connect(m, port.request, wiring.flipped(self.request))
        wiring.connect(m, rows.o, wiring.flipped(self.o))
        wiring.connect(m, reader.request, port.read)
        wiring.connect(m, reader.o, rows.rows)
        m.d.comb += [
            # The core decides what fits its capacity; the sequence checks only heads and groups.
            sequence.refuse.eq(self.refuse),
            self.refused.eq(sequence.refused),
            self.batch.eq(batches.o.payload),
            self.p.eq(rows.p),
            self.used.eq(rows.used),
        ]

        # The new rows go where the core says. Runs begin with the first row; the batch waits for
        # its rows.
        store, run = sequence.store, sequence.run
        m.d.comb += [
            self.new.eq(store.payload),
            self.stored.eq(join(m, [store], [port.write])),
            port.write.payload.eq(Cat(self.row, store.payload.value, store.payload.kv_head)),
        ]
        # A fork and not a join, as the reader may be ready only later than the queue. A batch
        # enters the queue with its run of K, once, and waits there for both runs' rows.
        fork(m, "run", run, [reader.command, batches.i], [1, ~run.payload.value])
        join(m, [batches.o], [rows.batch])
        kv_head = run.payload.batch.kv_head
        m.d.comb += [
            reader.command.payload.address.eq(Cat(Signal(p.row_bits), run.payload.value, kv_head)),
            reader.command.payload.words.eq(self.length),
            *copy(batches.i.payload, run.payload.batch),
            *copy(rows.batch.payload, batches.o.payload),
        ]

        # The step ends with the last row of V of its last batch.
        # The report waits for the rows, not for the results: by then no row is read any more, so
        # the next step may write.
        finished = Signal()
        with m.If(rows.batch.valid & rows.batch.ready & rows.batch.payload.last):
            m.d.sync += finished.eq(1)
        with m.If(self.done.valid & self.done.ready):
            m.d.sync += finished.eq(0)
        m.d.comb += [
            self.done.valid.eq(finished | sequence.error),
            self.done.payload.error.eq(sequence.error),
            sequence.reported.eq(self.done.valid & self.done.ready),
        ]
        return m
