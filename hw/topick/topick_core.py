"""Attention of a token's heads with pruning on partial keys (Token-Picker, section 4, Fig. 6)."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring

from hw.component import Component
from hw.ports import Ports, stream_in, stream_out
from hw.stream.arbiter import Arbiter, ArbiterParameters
from hw.stream.combine import copy, join
from hw.topick.core_parameters import TopickCoreParameters
from hw.topick.lane_group import LaneGroup
from hw.topick.query_dispatch import context_of, dispatch
from hw.topick.row_store import RowStore

__all__ = ["TopickCore", "TopickCoreParameters"]


class TopickCore(Component[TopickCoreParameters]):
    """o_h = sum over the tokens i that are kept of p_hi v_i,   p_hi = 2^(t_hi) / sum 2^(t_hj).

    ::

                            ┌───── LaneGroup: a head at a time ─────┐
        q ─→ MarginGenerator ─→ queue ─→ PeLane × lanes_per_head  ──│─→ o
                            │            Dag, ProbabilityGenerator  │
                            └──────↑↓───────────────────────────────┘
        kv ─→ RowStore ─→ a memory for each lane      × lanes / lanes_per_head

    A command is one token of a sequence: its number of tokens, the new one included; for each kv
    head its row of K, then its row of V; for each query head its row q and the scale of its scores.
    The new rows are written to the lanes' memories, chunk by chunk. Then the query heads run: kv
    head k's in lane group k mod `groups`, one after another, the groups side by side.

    In a group, token i is in lane i mod lanes_per_head. Keys are read chunk by chunk, most
    significant bits first; a token is pruned as soon as its probability is certain to be at most
    the threshold, and only the values of tokens that are kept are read (:class:`PeLane`). The
    newest token is always kept. A token whose probability rounds to 0 adds nothing, so its value is
    not read.

    With `block` a command may have several new tokens, a block of a prompt. Their rows of ``kv``
    come token by token, and are stored. Then each lane loads a kv head's rows into its buffer
    (:class:`RowBuffer`), and the queries of all new tokens run on these, whole rows in place of
    chunks. A query sees the tokens up to its own, of which none is pruned; its o is
    :func:`golden.topick.topick_core.attend_all`'s, and nothing is reported. So each row of K and V
    is read once for all queries of a block. Rows of ``q`` come as
    :func:`hw.topick.core_work.queries_in_order` says: for each new token the heads of as many kv
    heads as there are groups, then the next kv heads'.

    The guarantee: no token whose exact probability on these codes exceeds the threshold is pruned,
    whatever the latency and order of the memories. Which of the others are pruned depends on them,
    so o does as well: ``report`` has every token's last decision, from which the golden model
    computes o bit for bit.

    The core keeps nothing between commands but what is in its memories: a command of `tokens` 1
    begins a sequence. A command waits until all o of the command before have been accepted.

    With `contexts` the memories have the rows of several sequences, and a command names one. It is
    accepted when the queries of the command before are in the groups' queues. Its rows are written
    between the reads of heads that still run; then its heads begin in each group that has ended the
    scores of those before. Kv head k of context c is in lane group (k + c) mod `groups`
    (:meth:`TopickCoreParameters.group_of`). In a group heads run in the order of the commands, and
    so are each lane's ``report`` and the ``o`` of each context. Before its rows are written, a
    command waits until all o of its context's command before have been accepted; a refused one is
    reported when all o before it have been.

    The probabilities are rounded and so add up to nearly 1: the host divides ``o`` by ``total``,
    their sum, both of the same unit.

    Accuracy: p has log2(tokens) + 7 fraction bits or `bits` - 1, whichever is more, rounded to
    nearest; o and ``total`` are exact for these p. Overflow: none, because the probabilities of a
    head add up to less than 2.

    Errors: a command of no tokens or of more than `tokens`, of heads that do not fit
    (:meth:`hw.attention.head_order.HeadOrderParameters.fits`), of a context that does not exist, or
    of no new tokens, more than `block` or more than its tokens, is refused. It has no rows, changes
    nothing, and is answered by one ``report`` of lane 0 with ``error``. A query's or row's codes
    out of the scale's range must be saturated by the host. A response that was not requested waits.

    Latency and throughput: a lane takes a chunk per cycle, of K or of V, so a head takes at least
    its number of chunks divided by lanes_per_head. Besides, the lanes wait at a head's beginning
    and end for the memory: see docs/topick.md for measurements. Without pruning and of blocks
    :meth:`TopickCoreParameters.cycles` is exact. In a block a lane takes a row per cycle.

    Handshake: ``request`` and ``o`` are registers while heads run; rows of ``kv`` pass to
    ``request`` as they are written, before a read unless that is offered. ``report`` that is not
    accepted stops its lane. ``response.ready`` depends on its payload and on the lane's outputs.

    Examples
    --------
    >>> from hw.topick.topick_core import TopickCoreParameters
    >>> parameters = TopickCoreParameters.preset("streams")
    >>> parameters.groups, parameters.rows, parameters.kv_heads_of_lane
    (16, 1024, 1)
    >>> [name for name, _ in parameters.command_layout]
    ['tokens', 'heads', 'group', 'threshold']
    """

    summary = "A token's attention that reads improbable tokens' keys in part and their values not"
    source = "Token-Picker, section 4 and Fig. 6"

    def ports(self) -> Ports:
        p = self.parameters
        ports = {
            "command": stream_in(
                p.command_layout, "Steps: a token of a sequence each, or a block of a prompt."
            ),
            "kv": stream_in(p.row_layout, "Codes of K and V of each kv head in turn."),
            "q": stream_in(p.query_layout, "One for each head and new token."),
            "request": stream_out(
                p.memory.request_layout,
                "To each lane's memory, of p.planes times `rows` words of a chunk of d "
                "elements. A write is complete when it is accepted.",
            ).array(p.lanes),
            "response": stream_in(
                p.memory.response_layout,
                "Chunks read, in any order; with `pruning` off in the order of the requests.",
            ).array(p.lanes),
            "report": stream_out(
                p.report_layout,
                "A beat for each token of a head, when it is pruned or kept, of a command with one "
                "new token; refused commands.",
            ).array(p.lanes),
            "o": stream_out(
                p.output_layout,
                "One for each head and new token, in any order of heads of different groups, also "
                "where these are of commands of different contexts.",
            ),
        }
        if p.observe:
            ports["observed"] = stream_out(
                p.lane.observed_layout,
                "Only with `observe`: a beat for each chunk of K, in the order of the decisions.",
            ).array(p.lanes)
        return ports

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        job = Signal(p.command_layout)
        begin = Signal()  # a command is accepted and not refused
        refusing = Signal()  # a refused command is to be reported
        counting = Signal()  # its kv heads are being counted
        storing = Signal()  # its rows of K and V are not all in memory
        sent = Signal()  # its queries are in the groups' queues
        # Heads whose o has not left, of each token and context.
        left = Array(
            Signal(range(p.heads * p.block + 1), name=f"left_{n}") for n in range(p.contexts)
        )
        groups = [LaneGroup(p) for _ in range(p.groups)]
        for number, group in enumerate(groups):
            m.submodules[f"group_{number}"] = group
            m.d.comb += group.begin.eq(begin)
            if p.block > 1:
                m.d.comb += group.whole.eq(job.block > 1)
        m.submodules.store = store = RowStore(p.row_store)
        wiring.connect(m, wiring.flipped(self.kv), store.kv)
        # Rows first, then heads: a query may need the new token's own rows.
        self._sequence(m, store, job, begin, refusing, counting, storing, sent, left)
        self._connect_lanes(m, groups, store, refusing)
        dispatch(m, self, groups, job, begin, counting, storing, sent)
        self._collect(m, groups, left)
        return m

    def _misfits(self) -> Value:
        """Whether the command that is offered does not fit the core."""
        p, offered = self.parameters, self.command.payload
        misfits = (offered.tokens == 0) | (offered.tokens > p.tokens) | p.order.misfits(offered)
        if p.block > 1:
            new = offered.block
            misfits |= (new == 0) | (new > p.block) | (new > offered.tokens)
        if p.contexts > 1:
            misfits |= offered.context > p.contexts - 1
        return misfits

    def _sequence(self, m, store, job, begin, refusing, counting, storing, sent, left) -> None:
        """A command: count its kv heads, store their rows, wait for its heads; or refuse it.

        With contexts it waits until its queries are sent; a command of the same context then waits
        for its heads, and a refused one for the heads of all contexts.
        """
        p = self.parameters
        offered = self.command.payload
        # Query heads of the kv heads counted so far: a group more than are fewer than `heads`.
        covered = Signal(range(max(p.heads + 1, 2 * p.heads - 1)))
        kv_heads = Signal(range(p.kv_heads + 1))
        refused = Signal()  # the command that is offered
        command = store.command
        token = job.tokens - 1
        count = job.heads
        if p.block > 1:
            waiting = Signal(range(p.block))  # new tokens after the one that is stored
            token = token - waiting
            count = job.heads * job.block
        ended = Signal()  # the context's command before
        m.d.comb += [
            ended.eq(left[context_of(p, job)] == 0),
            refused.eq(self._misfits()),
            command.payload.token.eq(token),
            command.payload.kv_heads.eq(kv_heads),
        ]
        if p.contexts > 1:
            m.d.comb += command.payload.context.eq(job.context)
        # The command ends when the last head's output has been taken.
        leaving = left[context_of(p, self.o.payload)]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += leaving.eq(leaving - 1)
        with m.FSM():
            with m.State("IDLE"):
                # Check the command's numbers, so that no wrong one can lead to a hang.
                m.d.comb += [self.command.ready.eq(1), begin.eq(self.command.valid & ~refused)]
                m.d.sync += [covered.eq(0), kv_heads.eq(0)]
                with m.If(begin):
                    m.d.sync += job.eq(offered)
                    m.next = "COUNT"
                with m.Elif(self.command.valid):
                    m.next = "REFUSED"
            with m.State("REFUSED"):
                # A step that cannot be computed is reported and changes nothing. A report that is
                # offered may not change either, so all heads before end first.
                waits = Cat(number != 0 for number in left).any() if p.contexts > 1 else Const(0)
                m.d.comb += refusing.eq(~waits)
                with m.If(refusing & self.report[0].ready):
                    m.next = "IDLE"
            with m.State("COUNT"):
                # One kv head a cycle: heads / group, rounded up.
                m.d.comb += counting.eq(1)
                if p.block > 1:
                    m.d.sync += waiting.eq(job.block - 1)
                counted = covered >= job.heads
                with m.If(counted & (ended if p.contexts > 1 else 1)):
                    m.d.sync += left[context_of(p, job)].eq(count)
                    m.next = "STORE"
                with m.Elif(~counted):
                    m.d.sync += [covered.eq(covered + job.group), kv_heads.eq(kv_heads + 1)]
            with m.State("STORE"):
                # Queries are accepted from here on, as their margins can be computed meanwhile.
                # The store has written all rows of commands before.
                m.d.comb += [storing.eq(1), command.valid.eq(1)]
                m.next = "STORING"
            with m.State("STORING"):
                # The store is ready for a next command once all rows are written.
                m.d.comb += storing.eq(1)
                with m.If(command.ready):
                    m.next = "ATTEND"
                if p.block > 1:
                    # A block's tokens are stored one after the other, as separate commands' are.
                    with m.If(command.ready & (waiting != 0)):
                        m.d.sync += waiting.eq(waiting - 1)
                        m.next = "STORE"
            with m.State("ATTEND"):
                # Heads run in the groups until every o has left, or other contexts' may follow.
                with m.If(sent if p.contexts > 1 else ended):
                    m.next = "IDLE"

    def _connect_lanes(self, m: Module, groups: list[LaneGroup], store, refusing) -> None:
        """Each lane's memory port, which the store shares with the heads of other contexts."""
        p = self.parameters
        write = store.write
        lanes = [(group, n) for group in groups for n in range(p.lanes_per_head)]
        readies = []
        for number, (group, n) in enumerate(lanes):
            request, read = self.request[number], group.request[n]
            writing = Signal(name=f"writing_{number}")
            # Without other contexts no head runs while rows are written: no read is offered, and
            # its tag is constant. A write's tag has no meaning, because it gets no response.
            held = Signal(name=f"read_held_{number}")  # a read that is offered may not change
            row, tag = Value.cast(write.payload.data), Value.cast(read.payload.tag)
            if p.contexts > 1:
                m.d.sync += held.eq(request.valid & ~request.ready & ~writing)
                row, tag = row & writing.replicate(len(row)), Mux(writing, 0, tag)
            m.d.comb += [
                # The new row's chunks have priority, because no query of theirs starts before.
                writing.eq(write.valid & (write.payload.lane == number) & ~held),
                request.valid.eq(writing | read.valid),
                request.payload.tag.eq(tag),
                request.payload.address.eq(
                    Mux(writing, write.payload.address, read.payload.address)
                ),
                request.payload.write.eq(writing),
                Value.cast(request.payload.data).eq(row),
                read.ready.eq(request.ready & ~writing if p.contexts > 1 else request.ready),
            ]
            readies.append(writing & request.ready)
            wiring.connect(m, wiring.flipped(self.response[number]), group.response[n])
            self._report(m, number, group.decided[n], refusing)
            if p.observe:
                wiring.connect(m, group.observed[n], wiring.flipped(self.observed[number]))
        m.d.comb += write.ready.eq(Cat(readies).any())

    def _report(self, m: Module, number: int, decided, refusing: Signal) -> None:
        """A lane's decisions; lane 0 reports refused commands, too."""
        report = self.report[number]
        if number > 0:
            wiring.connect(m, decided, wiring.flipped(report))
            return
        # All decisions of the commands before have been accepted when a command is refused, so none
        # is offered.
        with m.If(refusing):
            m.d.comb += [report.valid.eq(1), report.payload.error.eq(1)]
        with m.Else():
            m.d.comb += report.payload.eq(decided.payload)
            join(m, [decided], [report])

    def _collect(self, m: Module, groups: list[LaneGroup], left: Array) -> None:
        """The groups' o, one at a time."""
        p = self.parameters
        # Groups finish in any order; `head` says whose o it is.
        m.submodules.arbiter = arbiter = Arbiter(
            ArbiterParameters(inputs=p.groups), shape=p.head_output_layout
        )
        for group, port in zip(groups, arbiter.i, strict=True):
            wiring.connect(m, group.o, port)
        m.d.comb += [
            *copy(self.o.payload, arbiter.o.payload.data),
            self.o.payload.last.eq(left[context_of(p, self.o.payload)] == 1),
        ]
        join(m, [arbiter.o], [self.o])
