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
from hw.attention.row_reader import RUNS, RowReader
from hw.attention.special_function_unit import SpecialFunctionUnitParameters
from hw.parameters import require
from hw.stream.combine import route
from hw.stream.queue import Queue, QueueParameters
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
    heads, group
        Number of query heads, and of those that share a kv head.
    votes, evictions
        Whether the step casts votes; number of slots evicted at its end.
    context
        Its context.
    """

    slots: int
    heads: int
    group: int
    votes: bool
    evictions: int
    context: int = 0


@dataclasses.dataclass(frozen=True)
class VedaCoreParameters(DecodeParameters):
    """
    rows, columns, arrays
        Size of the array; the product, d, is the number of elements in a row.
    capacity, heads, kv_heads, depth, position_bits, count_bits
        See :class:`SchedulerParameters`. The capacity includes the new token's row, so at most
        capacity - 1 rows are kept between steps. A run of K, or of V, of at most `depth` rows is
        read once for the heads that share it; `depth` rows are also requested ahead.
    contexts
        Number of caches, such as the layers of each sequence. Their rows are in the memory; counts
        of votes, lengths and maps are in the core.
    parallel
        Number of query heads, 1 to `heads`, whose keys go through the array before their values;
        the softmax has room for their scores. As many heads of a kv head share its rows.
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
    depth: int = 512
    accumulator: str = "fp32"
    position_bits: int = 24
    count_bits: int = 16
    dataflow: str = "flexible"
    scheduling: str = "element_serial"
    multiply_stages: int = 1
    parallel: int = 3
    contexts: int = 1

    def __post_init__(self):
        for name, known in (("dataflow", DATAFLOWS), ("scheduling", SCHEDULINGS)):
            value = getattr(self, name)
            require(value in known, f"{name} must be one of {', '.join(known)}", value)
        _ = self.array, self.schedule, self.softmax  # built here, as each checks its own
        require(self.array.lanes >= 2, "rows, columns and arrays must make 2 or more", self.rows)
        compared = self.dataflow != "flexible" or self.scheduling != "element_serial"
        rule = "parallel must be 1 with another dataflow or scheduling"
        require(self.parallel == 1 or not compared, rule, self.parallel)

    @classmethod
    def presets(cls) -> dict[str, "VedaCoreParameters"]:
        return {
            "small": cls(
                2, 2, 2, 32, 4, 2, 16, position_bits=8, count_bits=4, parallel=2, contexts=2
            ),
            "default": cls(),
            "paper": cls(8, 8, 2, 4096, 32, 32, 1024, parallel=2),
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
            self.parallel,
            self.contexts,
        )

    @cached_property
    def softmax(self) -> SpecialFunctionUnitParameters:
        return SpecialFunctionUnitParameters(self.capacity, TILE, self.parallel)

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

        Without stalls: the memory answers in `memory_latency` cycles, at most depth - 3, or with
        l slots min(depth, RUNS l) - 3; rows of q, k and v are valid in time, and so are commands,
        or `pause` cycles after a step's last beat. Exact for steps of one context; others may take
        up to :meth:`late` cycles more, each.

        steps
            Each a :class:`StepWork`, or its fields, or None for a command that is refused.
        """
        attention, voting, order = self.attention, self.schedule.voting, self.schedule.order
        idle = 0  # when a command may be accepted
        free: dict[int, int] = {}  # the same for a context's
        key = 0  # when the array may take the next head's first key
        taken = reported = swap = -RowMapParameters.SWAP_CYCLES
        end = 0  # when the last head's result is offered
        for step in steps:
            if step is None:
                error = max(idle, reported) + 1
                idle, end = error + 1, max(end, error)
                continue
            work = StepWork(*step)
            slots, heads, group, votes, evictions, context = work
            # The voting engine takes a command when it has reported the step before.
            command = max(idle, free.get(context, 0), taken + 1)
            taken = max(command, reported) + 1
            # The token joins when the map has done the last swap; then its rows are written.
            join = command + 1
            if swap < join:
                join = max(join, swap + RowMapParameters.SWAP_CYCLES)
            run = join + 1 + 2 * -(-heads // group)
            key = max(key, run + self.FETCH_CYCLES + memory_latency + 1)
            for turn in order.turns(heads, group):
                times = attention.turn(key, turn, slots, hold=taken + 2)
                key, end = times.next_key, max(end, times.result)
            # The sequence ends with the last run, when the rows before have been requested.
            requests = self.rows_read(work)
            last_run = slots if slots <= self.depth else slots * order.batches(heads, group)[-1]
            idle = run + requests - last_run + 2
            counting = voting.step_cycles(slots, heads, votes, evictions) - 2 - heads * slots
            reported = times.last_row + counting
            free[context] = reported + 1
            if evictions:
                swap = reported
            end = max(end, reported)
            if pause:
                idle = end + pause
        return end + 1

    def late(self, step: StepWork) -> int:
        """Most cycles that a step may take besides :meth:`cycles` beside other contexts' steps.

        Its writes, and changes of the map, keep rows of the step before from being requested.
        """
        return 2 * -(-step.heads // step.group) + RowMapParameters.SWAP_CYCLES

    def rows_read(self, step: StepWork) -> int:
        """Number of rows that a step reads from the memory, of K and V."""
        batches = self.schedule.order.batches(step.heads, step.group)
        return 2 * step.slots * (len(batches) if step.slots <= self.depth else step.heads)

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
    the memory. Then all rows of K are read, in order of slots, for up to `parallel` heads, and all
    rows of V for the same heads; then those of the next heads. Each row of K gives a score, less
    the head's first finite one, so that a common offset is removed before it is rounded to FP16.
    Each row of V is added to the sum when its probability leaves the softmax, which works on a
    head's scores while the array goes on with other heads'. The reader keeps the rows of a run for
    all heads of its group, so that a row is read from the memory once, if `depth` rows hold the run
    and `parallel` heads the group; and it requests the next rows meanwhile. Probabilities also go
    to the voting engine, which decides after the last head. Prompts are run in the same way, a
    token a step, with commands that do not evict.

    Evicted rows are not overwritten or moved: slots swap rows in :class:`RowMap`. An address is
    | context | kv head | K or V | row |. See :class:`Scheduler` for commands, and
    :class:`VotingEngine` for the meaning of their fields and of the reports.

    A context is the cache of a sequence. Steps of different contexts overlap: a step begins when
    all rows of the one before have been requested, while that one's votes are counted.

    Overflow: when all `capacity` rows are live, one is evicted even if the command does not ask.

    Errors: a command for a context that does not exist, without heads, with an empty group, with
    more heads than `heads` or than kv_heads times its group is refused: it is accepted and
    answered by a single report with ``error``, when all steps before it have been reported. It
    accepts no rows of q, k and v, makes no request to the memory, has no o and changes no state;
    its ``restart`` has no effect either.

    A head's o is ``invalid`` if one of its scores was NaN or plus infinity (o is then NaN), or all
    were minus infinity (probabilities are 0). A score more than 65519 above the head's first finite
    one counts as plus infinity. NaN probabilities make the step's votes and its report invalid; it
    casts none. Rows of V are not checked: infinities and NaNs in them give results as IEEE 754
    defines. The next step is not affected, except by rows that are kept and read again.

    Latency: `latency` + 2 l cycles from the first key to o of a head alone, with l >= 8 slots live,
    less with fewer; that is 2 l + 46 with d = 128. Throughput: 2 g l + 4 g + 2 log2(d) - 1 cycles
    for g heads whose keys go together, if g > 1 and l is 32 or more. Before the same context's next
    step are 7 + 2 kv heads cycles, and the voting engine's after the last probability; 2 more after
    an eviction. A memory's latency delays the step's first key alone, if it is at most 3 cycles
    less than `depth`, and than the rows of RUNS runs. Beside another context's step neither is
    seen, but where the votes take longer than that step's first keys.

    Handshake: ``kv`` rows transfer with the requests that write them; a ``q`` row is accepted when
    its first key is valid. ``request.valid`` depends combinationally on ``kv.valid``, ``kv.ready``
    on ``request.ready``, and ``q.ready`` on ``o.ready``; ``response.ready`` is always high. While
    an ``o`` is not accepted the array stalls. A context's next command is accepted after its last
    report, other contexts' earlier: their rows of k and v must not wait for results of steps
    before, because reads of these wait for the writes.

    Examples
    --------
    >>> from hw.veda.veda_core import VedaCoreParameters
    >>> parameters = VedaCoreParameters.preset("paper")
    >>> parameters.head_cycles(1024)  # attention of one head over 1024 rows
    2094
    >>> parameters.cycles([(1024, 32, 1, True, 1)])  # a step: 32 heads, votes, one eviction
    67189
    >>> [name for name, _ in parameters.command_layout]
    ['restart', 'vote', 'evict', 'target', 'protected', 'a', 'b', 'heads', 'context', 'group']
    """

    summary = "A layer's decode step: attention of its heads, and which row is evicted"
    source = "VEDA, section V and Fig. 7"

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.scheduler = schedule = Scheduler(p.schedule)
        m.submodules.port = port = RowPort(p.memory)
        m.submodules.reader = reader = RowReader(p.reader, p.row_layout, p.parallel)
        m.submodules.attention = attention = ComparedRows(p.attention)
        m.submodules.voting_engine = voting = VotingEngine(p.schedule.voting)
        # What the runs are whose rows are on their way.
        m.submodules.runs = runs = Queue(QueueParameters(depth=RUNS), shape=p.schedule.use_layout)

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
        wiring.connect(m, schedule.use, runs.i)
        wiring.connect(m, runs.o, attention.run)
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
