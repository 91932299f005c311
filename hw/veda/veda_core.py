"""A layer's attention with a cache whose rows are evicted by vote (VEDA, section V and Fig. 7)."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring

from hw.arith.float_format import FP16
from hw.attention.decode_core import DecodeCore
from hw.attention.row_port import RowPort
from hw.attention.row_reader import RUNS, RowReader, run_layout
from hw.ports import Ports, stream_in
from hw.stream.combine import copy, join, merge, pass_fields, route
from hw.stream.queue import Queue, QueueParameters
from hw.veda.compared_rows import ComparedRows
from hw.veda.dispatcher import Dispatcher, DispatcherLayouts
from hw.veda.placed_scheduler import PlacedScheduler
from hw.veda.scheduler import Scheduler
from hw.veda.vector_feed import VectorFeed
from hw.veda.veda_core_parameters import VedaCoreParameters
from hw.veda.voting_engine import VotingEngine


class VedaCore(DecodeCore[VedaCoreParameters]):
    """o_h = sum over j of p_hj v_j,   p_h = softmax over j of q_h k_j,   for heads h of one layer.

    ::

        q ───────────────────────────────→ array ─→ o
        kv ─→ memory ─→ reader ─→ K, V ─→    │  ↑
                 ↑                    scores └→ softmax ─→ probabilities ─→ votes ─→ report
              row map                                                         │
                 └───────────────────── evicted slots ────────────────────────┘

    With `vector` the core also computes matrix products, of vectors that may be normalised first:
    see :class:`hw.veda.dispatcher.Dispatcher` for the order of jobs,
    :class:`hw.veda.product_sequence.ProductSequence` for a matrix's place in the memory.

        o = x W,   or x / sqrt(mean of x² + eps) W,   for each vector x

    A step is one token: its command; for each kv head its row of K, then its row of V; for each
    query head its row q, which the host has multiplied by the scale. The new rows are written to
    the memory. Then all rows of K are read, in order of slots, for up to `parallel` heads, and all
    rows of V for the same heads; then the next heads follow. Each row of K gives a score, less
    the head's first finite one, so that a common offset is removed before it is rounded to FP16.
    Each row of V is added to the sum when its probability leaves the softmax, which works on a
    head's scores while the array goes on with other heads'. The reader keeps the rows of a run for
    all heads of its group, so that a row is read from the memory once, if `depth` rows hold the run
    and `parallel` heads the group; and it requests the next rows meanwhile. Probabilities also go
    to the voting engine, which decides after the last head. Prompts are run in the same way, with
    commands that do not evict.

    With `block` a step may have several ``tokens`` of a prompt, which share the rows that are read:
    for each kv head, the rows k and v of every token; for each query head, the row q of every
    token, and o in the same order. All new rows are written first. A token attends to the rows up
    to its k and v, where the reader ends its runs. Every bit is what steps of one token give, of
    which only the last has the command's ``evict``; each token has a report, of which only the
    step's last has ``last``.

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
    its ``restart`` has no effect either. So is a block of no tokens, of more than `block`, or of
    more than the context has slots free. So is a product without rows, vectors or blocks, of more
    than `vector` rows or `tokens` vectors, or of more than `normed` rows with ``norm``; it accepts
    no elements. Whether a matrix is in the memory is not checked.

    A head's o is ``invalid`` if one of its scores was NaN or plus infinity (o is then NaN), or all
    were minus infinity (probabilities are 0). A score more than 65519 above the head's first finite
    one counts as plus infinity. NaN probabilities make the step's votes and its report invalid; it
    casts none. Rows of V are not checked: infinities and NaNs in them give results as IEEE 754
    defines. The next step is not affected, except by rows that are kept and read again.

    Latency: `latency` + 2 l cycles from the first key to o of a head alone, with l >= 8 slots live,
    less with fewer; that is 2 l + 46 with d = 128. Throughput: 2 g l + 4 g + 2 log2(d) - 1 cycles
    for g heads whose keys go together, if g > 1 and l is 32 or more. Before the same context's next
    step are 6 + n + 2 n kv heads cycles, with n tokens, and the voting engine's after the last
    probability; 2 more after an eviction. A memory's latency delays the step's first key alone, if
    it is at most 3 cycles less than `depth`, and than the rows of RUNS runs. Beside another
    context's step neither is seen, but where the votes take longer than that step's first keys.

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

    summary = "Decode steps: attention, and which row is evicted; matrix products and norms"
    source = "VEDA, section V and Fig. 7"

    def ports(self) -> Ports:
        p = self.parameters
        x = {"x": stream_in(FP16, "Elements of the vectors of products.")}
        return super().ports() | (x if p.vector else {}) | p.vector_path.ports()

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        # Both have the same streams by context; the first works in places whose state it moves.
        schedule: Any = (
            PlacedScheduler(p.mover, p.schedule, p.memory) if p.resident else Scheduler(p.schedule)
        )
        m.submodules.scheduler = schedule
        m.submodules.port = port = RowPort(p.reader.memory(p.row_layout))
        m.submodules.reader = reader = RowReader(p.reader, p.row_layout, p.times, p.block)
        m.submodules.attention = attention = ComparedRows(p.attention)
        m.submodules.voting_engine = voting = VotingEngine(p.schedule.voting, p.resident > 0)
        # Norms are the special function unit's, in front of products.
        p.vector_path.add_to(m, self)
        # What the runs are whose rows are on their way.
        layout = attention.run.payload.shape()
        m.submodules.runs = runs = Queue(QueueParameters(depth=RUNS), shape=layout)

        inputs = [
            (self.kv, port.kv),
            (self.response, reader.response),
            (self.q, attention.q),
        ]
        outputs = [
            (schedule.report, self.report),
            (port.request, self.request),
            (attention.o, self.o),
        ]
        if p.resident:
            del inputs[1], outputs[1]
            self._share_memory(m, schedule, port, reader, voting)
        for outer, inner in inputs:
            wiring.connect(m, wiring.flipped(outer), inner)
        for inner, outer in outputs:
            wiring.connect(m, inner, wiring.flipped(outer))
        wiring.connect(m, schedule.vote_command, voting.command)
        wiring.connect(m, voting.o, schedule.vote_report)
        wiring.connect(m, reader.o, attention.rows)
        wiring.connect(m, runs.o, attention.run)
        # Commands and reports pass through the scheduler, which runs the reader. Its requests
        # come back to the scheduler by slot, and leave by row.
        request = schedule.request
        if p.vector:
            request = self._dispatch(m, schedule, reader, runs, attention)
        else:
            wiring.connect(m, wiring.flipped(self.command), schedule.command)
            # Addresses are narrower by place than by context.
            connect = pass_fields if p.resident else wiring.connect
            connect(m, schedule.run, reader.command)
            connect(m, reader.request, schedule.lookup)
            wiring.connect(m, schedule.use, runs.i)
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

    def _share_memory(self, m: Module, schedule, port, reader, voting) -> None:
        """The memory's port for rows of state, too; the voting engine's part of the state."""
        p, response = self.parameters, self.response
        # State goes first: a context's job waits for few rows, with many cycles between them.
        moving = merge(m, schedule.state_request, port.request, self.request)
        with m.If(moving):
            m.d.comb += copy(self.request.payload, schedule.state_request.payload)
        with m.Else():
            m.d.comb += copy(self.request.payload, port.request.payload)
        of_state = response.payload.tag == p.depth
        route(m, response, of_state, [reader.response, schedule.state_response])
        m.d.comb += [
            schedule.state_response.payload.eq(response.payload.data),
            voting.access.eq(schedule.access),
            *copy(voting.given, schedule.given),
            schedule.kept.eq(voting.kept),
        ]

    def _dispatch(self, m: Module, schedule, reader, runs, attention):
        """Products beside steps; returns all requests."""
        p = self.parameters
        layouts = DispatcherLayouts(
            schedule,
            p.command_layout,
            run_layout(p.reader, p.times, p.block),
            runs.i.payload.shape(),
            p.reader.memory(p.row_layout),
        )
        turns, cached = p.attention.turns, p.cached_rows
        m.submodules.dispatcher = jobs = Dispatcher(p.product, layouts, cached, turns)
        m.submodules.feed = feed = VectorFeed(p.product.feed)
        for outer, inner in ((self.command, jobs.command), (self.x, feed.x)):
            wiring.connect(m, wiring.flipped(outer), inner)
        connections = (
            (jobs.step, schedule.command),
            (schedule.run, jobs.step_run),
            (schedule.use, jobs.step_use),
            (jobs.run, reader.command),
            (jobs.use, runs.i),
            (reader.request, jobs.lookup),
            (jobs.step_lookup, schedule.lookup),
            (schedule.request, jobs.step_request),
            (jobs.job, feed.job),
            (jobs.turn, attention.turn),
            (feed.raw, attention.x),
            (feed.factors, attention.factors),
        )
        for source, sink in connections:
            wiring.connect(m, source, sink)
        join(m, [attention.y], [feed.normed])
        m.d.comb += [
            feed.normed.payload.eq(attention.y.payload.y),
            schedule.refuse.eq(jobs.refuse),
            jobs.refused.eq(schedule.refused),
            jobs.reading.eq(schedule.reading),
        ]
        if p.block > 1:
            m.d.comb += jobs.settled.eq(schedule.settled)
        return jobs.request
