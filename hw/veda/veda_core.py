"""A layer's attention with a cache whose rows are evicted by vote (VEDA, section V and Fig. 7)."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring

from hw.attention.pe_array import PeArray
from hw.attention.product_array import SCORE, PeArrayParameters, ProductArray
from hw.attention.special_function_unit import (
    Operation,
    SpecialFunctionUnit,
    SpecialFunctionUnitParameters,
)
from hw.component import Component
from hw.layout import FLAG
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.sequential_reader import SequentialReader
from hw.veda.row_map import RowMapParameters
from hw.veda.scheduler import Scheduler, SchedulerParameters
from hw.veda.tree_array import TreeArray, TreeArrayParameters
from hw.veda.vector_buffer import VectorBuffer
from hw.veda.voting_engine import VotingEngine

TILE = 8
"""Scores in a tile of the softmax: it adds as many cycles to a head."""

DATAFLOWS = {"flexible": 0, "tree": 1, "tree_double": 2}
"""The array's dataflows, and the tiles of the transpose buffer that each needs."""

SCHEDULINGS = ("element_serial", "separate")


class StepWork(NamedTuple):
    """The work of a step, for :meth:`VedaCoreParameters.cycles`.

    slots
        Live slots, the new one included.
    heads, kv_heads
        Of the step.
    votes, evictions
        Whether it casts votes; slots evicted at its end.
    """

    slots: int
    heads: int
    kv_heads: int
    votes: bool
    evictions: int


@dataclasses.dataclass(frozen=True)
class VedaCoreParameters(Parameters):
    """
    rows, columns, arrays
        Of the array; their product, d, is the number of elements in a row.
    capacity, heads, kv_heads, depth, position_bits, count_bits
        See :class:`SchedulerParameters`. The capacity includes the new token's row, so at most
        capacity - 1 rows are kept between steps.
    accumulator, multiply_stages
        See :class:`PeArrayParameters`.
    dataflow
        ``flexible``, or for comparison ``tree`` and ``tree_double``: :class:`TreeArray` with one
        tile or two.
    scheduling
        ``element_serial``, or for comparison ``separate``: the softmax begins after the last score,
        and the product with V after the last probability.
    """

    rows: int = 8
    columns: int = 8
    arrays: int = 1
    capacity: int = 256
    heads: int = 9
    kv_heads: int = 3
    depth: int = 16
    accumulator: str = "fp32"
    position_bits: int = 24
    count_bits: int = 16
    dataflow: str = "flexible"
    scheduling: str = "element_serial"
    multiply_stages: int = 1

    def __post_init__(self):
        for name, known in (("dataflow", DATAFLOWS), ("scheduling", SCHEDULINGS)):
            value = getattr(self, name)
            require(value in known, f"{name} must be one of {', '.join(known)}", value)
        _ = self.array, self.schedule, self.softmax  # built here, as each checks its own
        require(self.array.lanes >= 2, "rows, columns and arrays must make 2 or more", self.rows)

    @classmethod
    def presets(cls) -> dict[str, "VedaCoreParameters"]:
        return {
            "small": cls(2, 2, 2, 32, 4, 2, 8, position_bits=8, count_bits=4),
            "default": cls(),
            "paper": cls(8, 8, 2, 4096, 32, 32, 64),
        }

    @cached_property
    def array(self) -> PeArrayParameters | TreeArrayParameters:
        sizes = self.rows, self.columns, self.arrays, self.accumulator, self.multiply_stages
        tiles = DATAFLOWS[self.dataflow]
        return TreeArrayParameters(*sizes, tiles=tiles) if tiles else PeArrayParameters(*sizes)

    @cached_property
    def schedule(self) -> SchedulerParameters:
        return SchedulerParameters(
            self.kv_heads,
            self.depth,
            self.capacity,
            self.heads,
            self.position_bits,
            self.count_bits,
        )

    @cached_property
    def softmax(self) -> SpecialFunctionUnitParameters:
        return SpecialFunctionUnitParameters(self.capacity, TILE)

    def softmax_cycles(self, slots: int) -> int:
        """Cycles from a head's last score to its first probability."""
        waiting = 2 * slots if self.scheduling == "separate" else 0
        return waiting + self.softmax.first_result_cycles(slots, Operation.SOFTMAX)

    def head_cycles(self, slots: int) -> int:
        """Cycles from a head's first key offered to its result accepted, without stalls."""
        result = self.array.outer_product(slots).result
        return slots + 1 + self.array.latency + self.softmax_cycles(slots) + result

    @cached_property
    def latency(self) -> int:
        """Cycles of a head besides two for each slot, with 8 slots or more."""
        return self.head_cycles(TILE) - 2 * TILE

    @property
    def idle_bound(self) -> int:
        """The votes of a step, or a ``separate`` softmax, over `capacity` slots."""
        return max(self.schedule.voting.idle_bound, self.softmax_cycles(self.capacity))

    def cycles(self, steps: Sequence, memory_latency: int = 1, pause: int = 0) -> int:
        """Cycles from the first command offered to the last result or report accepted.

        Without stalls: the memory answers in `memory_latency` cycles, at most depth - 3, rows of q,
        k and v are valid in time, and so are commands, or `pause` cycles after a step's last beat.

        steps
            Each a :class:`StepWork`, or its fields, or None for a command that is refused.
        """
        array, voting = self.array, self.schedule.voting
        command = 0  # when the step's command is offered
        map_free = 0  # when the row map has done the last swap
        key = 0  # when the array may take the next head's first key
        end = 0  # when the last head's result is offered
        for step in steps:
            if step is None:
                command, end = command + 2, max(end, command + 1)
                continue
            slots, heads, kv_heads, votes, evictions = step
            run = max(command + 1, map_free) + 1 + 2 * kv_heads  # after the writes
            key = max(key, run + self.FETCH_CYCLES + memory_latency + 1)
            timing = array.outer_product(slots)
            for _ in range(heads):
                value = key + slots - 1 + array.latency + self.softmax_cycles(slots)
                key = value + timing.next_row
                end = value + timing.result
            counting = voting.step_cycles(slots, heads, votes, evictions) - 2 - heads * slots
            command = value + timing.last_row + counting + 1
            map_free = command - 1 + RowMapParameters.SWAP_CYCLES if evictions else 0
            end = max(end, command - 1)
            command = end + pause if pause else command
        return end + 1

    FETCH_CYCLES = 4
    """Cycles from a run's start to its first row at the array, besides the memory's latency."""

    @property
    def row_layout(self) -> data.ArrayLayout:
        return self.array.query_layout

    @cached_property
    def request_layout(self) -> data.StructLayout:
        """A row to read, or to ``write`` with ``data``."""
        fields = {name: field.shape for name, field in self.schedule.request_layout}
        return data.StructLayout(fields | {"data": self.row_layout})

    @cached_property
    def output_layout(self) -> data.StructLayout:
        """``o`` of a head, ``invalid`` if its softmax was, ``last`` of a step."""
        return data.StructLayout({"o": self.row_layout, "invalid": FLAG, "last": FLAG})


class VedaCore(Component[VedaCoreParameters]):
    """o_h = sum over j of p_hj v_j,   p_h = softmax over j of q_h k_j,   for heads h of one layer.

    ::

        q ───────────────────────────────→ array ─→ o
        kv ─→ memory ─→ reader ─→ K, V ─→    │  ↑
                 ↑                    scores └→ softmax ─→ probabilities ─→ votes ─→ report
              row map                                                         │
                 └───────────────────── evicted slots ────────────────────────┘

    A step is one token: its command; for each kv head its row of K, then that of V; for each query
    head its row q, which the host has multiplied by the scale. The new rows are written to the
    memory. Then for each head all rows of K are read, in order of slots, and all rows of V. Each
    row of K gives a score, less the head's first finite one, so that a common offset is removed
    before it is rounded to FP16. Each row of V is added to the sum when its probability leaves the
    softmax; the rows of V and the next head's rows of K are requested meanwhile. All query heads of
    a group read the same rows. Probabilities also go to the voting engine, which decides after the
    last head. Prompts are run in the same way, a token a step, with commands that do not evict.

    Evicted rows are not overwritten or moved: slots swap rows in :class:`RowMap`. An address is
    | kv head | K or V | row |. See :class:`Scheduler` for commands, and :class:`VotingEngine` for
    the meaning of their fields and of the reports.

    Overflow: when all `capacity` rows are live, one is evicted even if the command does not ask.

    Errors: a command of more heads than kv_heads times its group, or than `heads`, is refused: it
    is accepted and answered in the next cycle by a single report with ``error``. It accepts no rows
    of q, k and v, makes no request to the memory, has no o and changes no state; its ``restart``
    has no effect either.

    A head's o is ``invalid`` if one of its scores was NaN or plus infinity (o is then NaN), or all
    were minus infinity (probabilities are 0). A score more than 65519 above the head's first finite
    one counts as plus infinity. NaN probabilities make the step's votes and its report invalid; it
    casts none. Rows of V are not checked: infinities and NaNs in them give results as IEEE 754
    defines. The next step is not affected, except by rows that are kept and read again.

    Latency: `latency` + 2 l cycles from a head's first key to its o, with l >= 8 slots live,
    less with fewer; that is 2 l + 46 with d = 128. Throughput: the next head's first key follows
    the last row of V; a step adds 7 + 2 kv heads cycles before its first key, and those of the
    voting engine after the last probability; 2 more after an eviction. This holds for a memory that
    answers within `depth` - 3 cycles.

    Handshake: ``kv`` rows transfer with the requests that write them; a ``q`` row is accepted when
    its first key is valid. ``request.valid`` depends combinationally on ``kv.valid``, ``kv.ready``
    on ``request.ready``, and ``q.ready`` on ``o.ready``; ``response.ready`` is always high. While
    an ``o`` is not accepted the array stalls. The next command is accepted after the last report.

    Examples
    --------
    >>> from hw.veda.veda_core import VedaCoreParameters
    >>> parameters = VedaCoreParameters.preset("paper")
    >>> parameters.head_cycles(1024)  # attention of one head over 1024 rows
    2094
    >>> parameters.cycles([(1024, 32, 32, True, 1)])  # a step: 32 heads, votes, one eviction
    68133
    >>> [name for name, _ in parameters.schedule.command_layout]
    ['restart', 'vote', 'evict', 'target', 'protected', 'a', 'b', 'heads', 'group']
    """

    summary = "A layer's decode step: attention of its heads, and which row is evicted"
    source = "VEDA, section V and Fig. 7"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.schedule.command_layout, "Steps."),
            "kv": stream_in(p.row_layout, "Rows of K and V in turn, FP16."),
            "q": stream_in(p.row_layout, "Queries, FP16."),
            "request": stream_out(
                p.request_layout, "To the memory. A write is complete when the request is accepted."
            ),
            "response": stream_in(
                p.schedule.reader.response_layout(p.row_layout), "Rows read, in any order."
            ),
            "o": stream_out(p.output_layout, "Results, one for each head."),
            "report": stream_out(
                p.schedule.report_layout, "Which rows were evicted, and refused commands."
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.scheduler = schedule = Scheduler(p.schedule)
        m.submodules.reader = reader = SequentialReader(p.schedule.reader, p.row_layout)
        kind: type[ProductArray] = PeArray if p.dataflow == "flexible" else TreeArray
        m.submodules.pe_array = array = kind(p.array)
        m.submodules.special_function_unit = softmax = SpecialFunctionUnit(p.softmax)
        m.submodules.voting_engine = voting = VotingEngine(p.schedule.voting)

        # Commands and reports pass through the scheduler, which runs the reader. Its requests
        # come back to the scheduler by slot, and leave by row.
        wiring.connect(m, wiring.flipped(self.command), schedule.command)
        wiring.connect(m, schedule.vote_command, voting.command)
        wiring.connect(m, voting.o, schedule.vote_report)
        wiring.connect(m, schedule.report, wiring.flipped(self.report))
        wiring.connect(m, schedule.run, reader.command)
        wiring.connect(m, reader.request, schedule.lookup)
        wiring.connect(m, wiring.flipped(self.response), reader.response)
        wiring.connect(m, wiring.flipped(self.q), array.q)
        self._store(m, schedule.request)

        # Scores, softmax, probabilities; for comparison a head's scores or probabilities are
        # collected first.
        scores, probabilities = array.s, softmax.o
        if p.scheduling == "separate":
            scores = self._buffered(m, "scores", scores, SCORE)
            layout = p.softmax.output_layout
            probabilities = self._buffered(m, "probabilities", probabilities, layout)
        # Scores into the softmax, whose command never changes.
        m.d.comb += [
            softmax.i.valid.eq(scores.valid),
            softmax.i.payload.x.eq(scores.payload.s),
            softmax.i.payload.last.eq(scores.payload.last),
            scores.ready.eq(softmax.i.ready),
            softmax.command.valid.eq(1),
            softmax.command.payload.op.eq(Operation.SOFTMAX),
        ]
        self._attend(m, schedule.heads, reader.o, array, probabilities, voting)
        return m

    def _buffered(self, m: Module, name: str, beats, shape):
        """The same beats, output when all of a head's have arrived."""
        m.submodules[name] = buffer = VectorBuffer(self.parameters.capacity, shape)
        wiring.connect(m, beats, buffer.i)
        return buffer.o

    def _store(self, m: Module, request) -> None:
        """The scheduler's requests to the memory; a write waits for its row."""
        held = Signal()  # a write without a row
        m.d.comb += [
            held.eq(request.payload.write & ~self.kv.valid),
            self.request.valid.eq(request.valid & ~held),
            request.ready.eq(self.request.ready & ~held),
            self.kv.ready.eq(request.valid & request.payload.write & self.request.ready),
            self.request.payload.tag.eq(request.payload.tag),
            self.request.payload.address.eq(request.payload.address),
            self.request.payload.write.eq(request.payload.write),
        ]
        with m.If(request.payload.write):  # else a new kv row would change a read that waits
            m.d.comb += self.request.payload.data.eq(self.kv.payload)

    def _attend(self, m: Module, heads: Signal, rows, array, probabilities, voting) -> None:
        """Rows into the array: keys as they arrive, values each with its probability."""
        value = Signal()  # rows are of V
        probability = Signal()  # one is valid, and the voting engine is ready for it
        taken = Signal()  # a row of V and its probability
        ended = Signal()  # the head's last
        head = Signal.like(heads)
        final = Signal()  # the step's last head
        invalid = Signal(reset_less=True)
        last = Signal(reset_less=True)
        # A row of V, its probability and the vote's copy of that transfer in the same cycle.
        m.d.comb += [
            probability.eq(probabilities.valid & voting.i.ready),
            array.i.valid.eq(rows.valid & (~value | probability)),
            array.i.payload.w.eq(rows.payload.data),
            array.i.payload.x.eq(probabilities.payload.y),
            array.i.payload.outer.eq(value),
            array.i.payload.relative.eq(1),
            array.i.payload.last.eq(rows.payload.last),
            rows.ready.eq(array.i.ready & (~value | probability)),
            taken.eq(array.i.valid & array.i.ready & value),
            probabilities.ready.eq(taken),
            voting.i.valid.eq(taken),
            voting.i.payload.eq(probabilities.payload.y),
            ended.eq(taken & rows.payload.last),
            final.eq(head + 1 >= heads),
        ]
        # Runs of K and V alternate; the flags of o are those of the last run of V.
        with m.If(rows.valid & rows.ready & rows.payload.last):
            m.d.sync += value.eq(~value)
        with m.If(ended):
            m.d.sync += [
                head.eq(Mux(final, 0, head + 1)),
                invalid.eq(probabilities.payload.invalid),
                last.eq(final),
            ]
        m.d.comb += [
            self.o.valid.eq(array.o.valid),
            array.o.ready.eq(self.o.ready),
            self.o.payload.o.eq(array.o.payload),
            self.o.payload.invalid.eq(invalid),
            self.o.payload.last.eq(last),
        ]
