"""A layer's attention with a cache from which rows leave by vote (VEDA, section V and Fig. 7)."""

import dataclasses
from collections.abc import Sequence

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.parameters import Parameters, require
from hw.stream.sequential_reader import SequentialReader
from hw.veda.pe_array import SCORE, PeArray, PeArrayParameters
from hw.veda.row_map import RowMapParameters
from hw.veda.scheduler import Scheduler, SchedulerParameters
from hw.veda.special_function_unit import (
    Operation,
    SpecialFunctionUnit,
    SpecialFunctionUnitParameters,
)
from hw.veda.tree_array import TreeArray, TreeArrayParameters
from hw.veda.vector_buffer import VectorBuffer
from hw.veda.voting_engine import VotingEngine

TILE = 8
"""Scores in a tile of the softmax, which a head waits for once."""


DATAFLOWS = {"flexible": 0, "tree": 1, "tree_double": 2}
"""Those of the array, and tiles of the transpose buffer that they need."""

SCHEDULINGS = ("element_serial", "separate")


@dataclasses.dataclass(frozen=True)
class VedaCoreParameters(Parameters):
    """
    rows, columns, arrays
        Of the array; their product, d, is the length of a row.
    capacity, heads, kv_heads, depth, position_bits, count_bits
        See :class:`SchedulerParameters`. The capacity counts the new token's row, so up to one less
        is kept between steps.
    accumulator, multiply_stages
        See :class:`PeArrayParameters`.
    dataflow
        ``flexible``, or for comparison ``tree`` and ``tree_double``: :class:`TreeArray` with one
        tile or two.
    scheduling
        ``element_serial``, or for comparison ``separate``: the softmax begins behind the last
        score, and the product with V behind the last probability.
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
        _ = self.array, self.schedule, self.softmax  # check their own
        require(self.array.lanes >= 2, "rows, columns and arrays must make 2 or more", self.rows)

    @classmethod
    def presets(cls) -> dict[str, "VedaCoreParameters"]:
        return {
            "small": cls(2, 2, 2, 32, 4, 2, 8, position_bits=8, count_bits=4),
            "default": cls(),
            "paper": cls(8, 8, 2, 4096, 32, 32, 64),
        }

    @property
    def array(self) -> PeArrayParameters | TreeArrayParameters:
        sizes = self.rows, self.columns, self.arrays, self.accumulator, self.multiply_stages
        tiles = DATAFLOWS[self.dataflow]
        return TreeArrayParameters(*sizes, tiles=tiles) if tiles else PeArrayParameters(*sizes)

    @property
    def schedule(self) -> SchedulerParameters:
        return SchedulerParameters(
            self.kv_heads,
            self.depth,
            self.capacity,
            self.heads,
            self.position_bits,
            self.count_bits,
        )

    @property
    def softmax(self) -> SpecialFunctionUnitParameters:
        return SpecialFunctionUnitParameters(self.capacity, TILE)

    def softmax_cycles(self, slots: int) -> int:
        """Cycles from a head's last score to its first probability."""
        waiting = 2 * slots if self.scheduling == "separate" else 0
        return waiting + self.softmax.first(slots, Operation.SOFTMAX)

    def head_cycles(self, slots: int) -> int:
        """Cycles from a head's first key offered to its result taken, without stalls."""
        _, _, outer = self.array.outer_product(slots)
        return slots + 1 + self.array.latency + self.softmax_cycles(slots) + outer

    @property
    def latency(self) -> int:
        """Of a head's cycles, those beside two for each slot, with 8 slots or more."""
        return self.head_cycles(TILE) - 2 * TILE

    @property
    def idle_bound(self) -> int:
        """The votes of a step, or a softmax of its own."""
        return max(self.schedule.voting.idle_bound, self.softmax_cycles(self.capacity))

    def cycles(
        self, steps: Sequence[tuple[int, int, int, bool, int] | None], memory_latency: int = 1
    ) -> int:
        """Cycles from the first job offered to the last result or report taken, without stalls.

        A step is the number of live slots, the new one included, heads, kv heads, whether it casts
        votes, and evictions; or None for a job that is refused. The memory answers in
        `memory_latency` cycles, at most depth - 3; rows of q, k and v are valid in time.
        """
        array, voting = self.array, self.schedule.voting
        now = busy = end = key = 0  # a step's job, the map is free, the last result, a first key
        for step in steps:
            if step is None:
                now += 2
                continue
            slots, heads, kv_heads, votes, evictions = step
            command = max(now + 1, busy) + 1 + 2 * kv_heads
            key = max(key, command + self.FETCH + memory_latency + 1)
            last, free, result = array.outer_product(slots)
            for _ in range(heads):
                value = key + slots - 1 + array.latency + self.softmax_cycles(slots)
                key = value + free
                end = value + result
            counting = voting.step_cycles(slots, heads, votes, evictions) - 2 - heads * slots
            now = value + last + counting + 1
            busy = now - 1 + RowMapParameters.SWAP if evictions else 0
        return max(end, now - 1) + 1

    FETCH = 4
    """Cycles from a command to read rows to the first one at the array, without the memory's."""

    @property
    def row_layout(self) -> data.ArrayLayout:
        return self.array.query_layout

    @property
    def request_layout(self) -> data.StructLayout:
        """A row to read, or to ``write`` with ``data``."""
        fields = {name: field.shape for name, field in self.schedule.request_layout}
        return data.StructLayout(fields | {"data": self.row_layout})

    @property
    def output_layout(self) -> data.StructLayout:
        """``o`` of a head, ``invalid`` if its scores were no numbers, ``last`` of a step."""
        return data.StructLayout({"o": self.row_layout, "invalid": 1, "last": 1})


class VedaCore(Component):
    """o_h = sum over j of p_hj v_j,   p_h = softmax over j of q_h k_j,   for heads h of one layer.

    ::

        q ───────────────────────────────→ array ─→ o
        kv ─→ memory ─→ reader ─→ K, V ─→    │  ↑
                 ↑                    scores └→ softmax ─→ probabilities ─→ votes ─→ report
              row map                                                         │
                 └──────────────────── which row leaves ──────────────────────┘

    A step is one token: its job; for each kv head its row of K, then that of V; for each query head
    its row q, multiplied by the scale. The new rows are written to the memory; then for each head
    all rows of K are read, in order of slots, and all rows of V. Each row of K gives a score, less
    the head's first finite one, so that a common offset is gone before it is rounded to FP16; and
    each row of V goes into the sum as its probability comes out of the softmax; the rows of V and
    the next head's of K are requested meanwhile. Each query head of a group reads the same rows.
    Probabilities also go to the voting engine, which decides when the last head is done. Prompts
    are run in the same way, a token a step, by jobs that do not let rows leave.

    A row that leaves is not overwritten or moved: slots change places in :class:`RowMap`. Addresses
    are (kv head, K or V, row), from the top. See :class:`Scheduler` for jobs, and
    :class:`VotingEngine` for their meaning and the reports.

    Overflow: when all `capacity` rows are live, one leaves though the job does not let it.

    Errors: a job of more heads than kv_heads times its group, or than `heads`, is refused: it is
    accepted and answered in the next cycle by a single report with ``error``. It takes no rows of
    q, k and v, makes no request to the memory, has no o and changes no state; its ``restart`` has
    no effect either.

    A head's o is ``invalid`` if one of its scores was NaN or plus infinity (o is then NaN), or all
    were minus infinity (probabilities are 0). A score more than 65519 above the head's first finite
    one counts as plus infinity. NaN probabilities make the step's votes invalid, and its report; it
    casts none. Rows of V are not checked: what is not finite in them gives results as IEEE 754
    defines. The next step is clean, but rows that are kept are read again.

    Latency: `latency` + 2 l cycles from a head's first key to its o, with l >= 8 slots live,
    less with fewer; that is 2 l + 46 with d = 128. Throughput: the next head's first key follows
    the last row of V; a step adds 7 + 2 kv heads cycles before its first key, and what the voting
    engine takes behind the last probability; 2 more if a row leaves. This holds for a memory that
    answers within `depth` - 3 cycles.

    Handshake: ``kv`` rows pass with the writes' requests; a ``q`` row is taken when its first key
    is there. ``request.valid`` depends combinationally on ``kv.valid``, ``kv.ready`` on
    ``request.ready``, and ``q.ready`` on ``o.ready``; ``response.ready`` is always high. While an
    ``o`` is not taken the array stands still. The next job is taken after the last report.

    Members
    -------
    job : :py:`In(stream.Signature(parameters.schedule.job_layout))`
        Steps.
    kv : :py:`In(stream.Signature(parameters.row_layout))`
        Rows of K and V in turn, FP16.
    q : :py:`In(stream.Signature(parameters.row_layout))`
        Queries, FP16.
    request : :py:`Out(stream.Signature(parameters.request_layout))`
        To the memory, which is done with a write when it takes it.
    response : :py:`In(stream.Signature(...))`
        Rows read, in any order.
    o : :py:`Out(stream.Signature(parameters.output_layout))`
        Results, one for each head.
    report : :py:`Out(stream.Signature(parameters.schedule.report_layout))`
        Which rows left, and jobs refused.
    """

    summary = "A layer's decode step: attention of its heads, and which row leaves the cache"
    source = "VEDA, section V and Fig. 7"

    def __init__(self, parameters: VedaCoreParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "job": In(stream.Signature(p.schedule.job_layout)),
                "kv": In(stream.Signature(p.row_layout)),
                "q": In(stream.Signature(p.row_layout)),
                "request": Out(stream.Signature(p.request_layout)),
                "response": In(stream.Signature(p.schedule.reader.response_layout(p.row_layout))),
                "o": Out(stream.Signature(p.output_layout)),
                "report": Out(stream.Signature(p.schedule.report_layout)),
            }
        )

    @property
    def parameters(self) -> VedaCoreParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        m.submodules.scheduler = schedule = Scheduler(p.schedule)
        m.submodules.reader = reader = SequentialReader(p.schedule.reader, p.row_layout)
        kind = PeArray if p.dataflow == "flexible" else TreeArray
        m.submodules.pe_array = array = kind(p.array)
        m.submodules.special_function_unit = softmax = SpecialFunctionUnit(p.softmax)
        m.submodules.voting_engine = voting = VotingEngine(p.schedule.voting)

        wiring.connect(m, wiring.flipped(self.job), schedule.job)
        wiring.connect(m, schedule.votes, voting.job)
        wiring.connect(m, voting.o, schedule.decided)
        wiring.connect(m, schedule.report, wiring.flipped(self.report))
        wiring.connect(m, schedule.command, reader.command)
        wiring.connect(m, reader.request, schedule.asked)
        wiring.connect(m, wiring.flipped(self.response), reader.response)
        wiring.connect(m, wiring.flipped(self.q), array.q)
        self._store(m, schedule.request)
        scores, probabilities = array.s, softmax.o
        if p.scheduling == "separate":
            scores = self._behind(m, "scores", scores, SCORE)
            probabilities = self._behind(m, "probabilities", probabilities, p.softmax.output_layout)
        m.d.comb += [
            softmax.i.valid.eq(scores.valid),
            softmax.i.payload.x.eq(scores.payload.s),
            softmax.i.payload.last.eq(scores.payload.last),
            scores.ready.eq(softmax.i.ready),
            softmax.job.valid.eq(1),
            softmax.job.payload.op.eq(Operation.SOFTMAX),
        ]
        self._attend(m, schedule.heads, reader.o, array, probabilities, voting)
        return m

    def _behind(self, m: Module, name: str, beats, shape):
        """The same beats, when all of a head's are there."""
        m.submodules[name] = buffer = VectorBuffer(self._parameters.capacity, shape)
        wiring.connect(m, beats, buffer.i)
        return buffer.o

    def _store(self, m: Module, request) -> None:
        """A write goes out when its row is there."""
        held = Signal()
        m.d.comb += [
            held.eq(request.payload.write & ~self.kv.valid),
            self.request.valid.eq(request.valid & ~held),
            request.ready.eq(self.request.ready & ~held),
            self.kv.ready.eq(request.valid & request.payload.write & self.request.ready),
            self.request.payload.tag.eq(request.payload.tag),
            self.request.payload.address.eq(request.payload.address),
            self.request.payload.write.eq(request.payload.write),
        ]
        with m.If(request.payload.write):  # else a row that comes late would change a request
            m.d.comb += self.request.payload.data.eq(self.kv.payload)

    def _attend(self, m: Module, heads: Signal, rows, array, probabilities, voting) -> None:
        """Rows into the array: keys as they come, values each with its probability."""
        value = Signal()  # rows are values
        probability = Signal()  # one is there, and the voting engine takes it
        taken = Signal()
        ended = Signal()
        head = Signal.like(heads)
        final = Signal()
        invalid = Signal(reset_less=True)
        last = Signal(reset_less=True)
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
