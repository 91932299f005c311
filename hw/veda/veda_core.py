"""A layer's attention with a cache whose rows are evicted by vote (VEDA, section V and Fig. 7)."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from amaranth.hdl import Module
from amaranth.lib import data, wiring

from hw.attention.decode_core import DecodeCore, DecodeParameters
from hw.attention.product_array import PeArrayParameters
from hw.attention.row_port import RowPort
from hw.attention.special_function_unit import SpecialFunctionUnitParameters
from hw.parameters import require
from hw.stream.combine import route
from hw.stream.queue import Queue, QueueParameters
from hw.stream.sequential_reader import SequentialReader
from hw.veda.compared_rows import ComparedRows, ComparedRowsParameters
from hw.veda.row_map import RowMapParameters
from hw.veda.scheduler import Scheduler, SchedulerParameters
from hw.veda.tree_array import TreeArrayParameters
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
        Number of query heads, and of kv heads.
    votes, evictions
        Whether the step casts votes; number of slots evicted at its end.
    """

    slots: int
    heads: int
    kv_heads: int
    votes: bool
    evictions: int


@dataclasses.dataclass(frozen=True)
class VedaCoreParameters(DecodeParameters):
    """
    rows, columns, arrays
        Size of the array; the product, d, is the number of elements in a row.
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

    @cached_property
    def attention(self) -> ComparedRowsParameters:
        separate = self.scheduling == "separate"
        return ComparedRowsParameters(self.array, self.softmax, separate=separate)

    def head_cycles(self, slots: int) -> int:
        """Cycles from a head's first key offered to its result accepted, without stalls."""
        return self.attention.head_cycles(slots)

    @cached_property
    def latency(self) -> int:
        """Cycles of a head besides two for each slot, with 8 slots or more."""
        return self.head_cycles(TILE) - 2 * TILE

    @property
    def idle_bound(self) -> int:
        """The votes of a step, or a ``separate`` softmax, over `capacity` slots."""
        return max(self.schedule.voting.idle_bound, self.attention.softmax_cycles(self.capacity))

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
                value = key + self.attention.value_cycles(slots)
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
    def d(self) -> int:
        return self.array.lanes

    @property
    def row_layout(self) -> data.ArrayLayout:
        return self.array.query_layout

    @property
    def command_layout(self) -> data.StructLayout:
        return self.schedule.command_layout

    @property
    def report_layout(self) -> data.StructLayout:
        return self.schedule.report_layout

    @property
    def output_layout(self) -> data.StructLayout:
        return self.attention.output_layout


class VedaCore(DecodeCore[VedaCoreParameters]):
    """o_h = sum over j of p_hj v_j,   p_h = softmax over j of q_h k_j,   for heads h of one layer.

    ::

        q ───────────────────────────────→ array ─→ o
        kv ─→ memory ─→ reader ─→ K, V ─→    │  ↑
                 ↑                    scores └→ softmax ─→ probabilities ─→ votes ─→ report
              row map                                                         │
                 └───────────────────── evicted slots ────────────────────────┘

    A step is one token: its command; for each kv head its row of K, then its row of V; for each
    query head its row q, which the host has multiplied by the scale. The new rows are written to
    the memory. Then for each head all rows of K are read, in order of slots, and all rows of V.
    Each row of K gives a score, less the head's first finite one, so that a common offset is
    removed before it is rounded to FP16. Each row of V is added to the sum when its probability
    leaves the softmax; the rows of V and the next head's rows of K are requested meanwhile. All
    query heads of a group read the same rows. Probabilities also go to the voting engine, which
    decides after the last head. Prompts are run in the same way, a token a step, with commands that
    do not evict.

    Evicted rows are not overwritten or moved: slots swap rows in :class:`RowMap`. An address is
    | kv head | K or V | row |. See :class:`Scheduler` for commands, and :class:`VotingEngine` for
    the meaning of their fields and of the reports.

    Overflow: when all `capacity` rows are live, one is evicted even if the command does not ask.

    Errors: a command without heads, with an empty group, with more heads than `heads` or than
    kv_heads times its group is refused: it is accepted and answered in the next cycle by a single
    report with ``error``. It accepts no rows of q, k and v, makes no request to the memory, has no
    o and changes no state; its ``restart`` has no effect either.

    A head's o is ``invalid`` if one of its scores was NaN or plus infinity (o is then NaN), or all
    were minus infinity (probabilities are 0). A score more than 65519 above the head's first finite
    one counts as plus infinity. NaN probabilities make the step's votes and its report invalid; it
    casts none. Rows of V are not checked: infinities and NaNs in them give results as IEEE 754
    defines. The next step is not affected, except by rows that are kept and read again.

    Latency: `latency` + 2 l cycles from a head's first key to its o, with l >= 8 slots live,
    less with fewer; that is 2 l + 46 with d = 128. Throughput: the next head's first key follows
    the last row of V; a step adds 7 + 2 kv heads cycles before its first key, and the voting
    engine's cycles after the last probability; 2 more after an eviction. This holds for a memory
    that answers within `depth` - 3 cycles.

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
    >>> [name for name, _ in parameters.command_layout]
    ['restart', 'vote', 'evict', 'target', 'protected', 'a', 'b', 'heads', 'group']
    """

    summary = "A layer's decode step: attention of its heads, and which row is evicted"
    source = "VEDA, section V and Fig. 7"

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.scheduler = schedule = Scheduler(p.schedule)
        m.submodules.port = port = RowPort(p.memory)
        m.submodules.reader = reader = SequentialReader(p.reader, p.row_layout)
        m.submodules.attention = attention = ComparedRows(p.attention)
        m.submodules.voting_engine = voting = VotingEngine(p.schedule.voting)
        # Whether each head, whose rows are on their way, is the step's last.
        m.submodules.heads = heads = Queue(QueueParameters(width=1, depth=p.depth))

        # Commands and reports pass through the scheduler, which runs the reader. Its requests
        # come back to the scheduler by slot, and leave by row.
        inputs = (
            (self.command, schedule.command),
            (self.kv, port.kv),
            (self.response, reader.response),
            (self.q, attention.q),
        )
        for outer, inner in inputs:
            wiring.connect(m, wiring.flipped(outer), inner)
        outputs = (
            (schedule.report, self.report),
            (port.request, self.request),
            (attention.o, self.o),
        )
        for inner, outer in outputs:
            wiring.connect(m, inner, wiring.flipped(outer))
        wiring.connect(m, schedule.vote_command, voting.command)
        wiring.connect(m, voting.o, schedule.vote_report)
        wiring.connect(m, schedule.run, reader.command)
        wiring.connect(m, reader.request, schedule.lookup)
        wiring.connect(m, reader.o, attention.rows)
        wiring.connect(m, schedule.head, heads.i)
        wiring.connect(m, heads.o, attention.head)
        request = schedule.request
        # Writes wait for their data in `port`, reads do not; the order between them is the map's.
        route(m, request, request.payload.write, [port.read, port.write])
        m.d.comb += port.write.payload.eq(request.payload.address)

        # A row of V, its probability and the vote's copy of the probability transfer together.
        m.d.comb += [
            # `hold` is why no probability is lost: the array accepts a row of V only in a cycle in
            # which the voting engine accepts its probability.
            attention.hold.eq(~voting.i.ready),
            voting.i.valid.eq(attention.used),
            voting.i.payload.eq(attention.p.y),
        ]
        return m
