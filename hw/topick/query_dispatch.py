"""Queries of ToPick's core with their margins, each to the lanes that have its rows."""

from typing import Any

from amaranth.hdl import Module, Signal, Value

from hw.stream.queue import Queue, QueueParameters
from hw.topick.core_parameters import MARGIN_STAGES, TopickCoreParameters
from hw.topick.lane_group import LaneGroup
from hw.topick.margin_generator import MarginGenerator
from hw.topick.row_store import first_group, rotated


def context_of(p: TopickCoreParameters, payload) -> Any:
    """Whose rows a command, a query or an output is of: 0 where there is one context."""
    return payload.context if p.contexts > 1 else 0


def dispatch(m: Module, core, groups: list[LaneGroup], job, begin, counting, storing, sent) -> None:
    """Queries with their margins, each to the group of its kv head."""
    p = core.parameters
    query = Signal(p.query_layout, reset_less=True)
    held = Signal()  # a query
    waiting = Signal(range(MARGIN_STAGES + 1))  # cycles until its margins are there
    # The next query's numbers: its head, its index among its kv head's query heads, the kv
    # head's lane group, counted from the context's first one, and number there.
    head = Signal(range(p.heads + 1))
    place = Signal(range(p.heads + 1))
    chosen = Signal(range(max(2, p.groups)))
    kv_head = Signal(p.kv_head_index)
    sending = Signal()
    m.d.comb += [
        sent.eq(head == job.heads),
        core.q.ready.eq(~counting & ~held & ~sent),
    ]
    with m.If(core.q.valid & core.q.ready):
        m.d.sync += [query.eq(core.q.payload), held.eq(1)]
        # The query is constant while its margins pass the generator's stages.
        m.d.sync += waiting.eq(MARGIN_STAGES if p.pruning else 0)
        if p.block > 1:
            with m.If(job.block > 1):
                m.d.sync += waiting.eq(0)  # nothing is unknown of whole keys
    with m.Elif(waiting != 0):
        m.d.sync += waiting.eq(waiting - 1)
    with m.If(sending):
        m.d.sync += [held.eq(0), head.eq(head + 1), place.eq(place + 1)]
        # After a kv head's last query the next lane group is chosen.
        with m.If(place + 1 == job.group):
            m.d.sync += [place.eq(0), chosen.eq(chosen + 1)]
            with m.If(chosen == p.groups - 1):
                m.d.sync += [chosen.eq(0), kv_head.eq(kv_head + 1)]
    token = _repeat(m, core, job, begin, sending, head, place, chosen, kv_head)
    with m.If(begin):
        # A context's kv heads in a lane are numbered after the kv heads of earlier contexts.
        first_head = context_of(p, core.command.payload) * p.kv_heads_of_lane
        m.d.sync += [head.eq(0), place.eq(0), chosen.eq(0), kv_head.eq(first_head)]

    ready = Signal()
    m.d.comb += sending.eq(held & (waiting == 0) & ready)
    made = Signal(p.head_layout)
    m.d.comb += [
        made.head.eq(head),
        made.kv_head.eq(kv_head),
        *(getattr(made, name).eq(getattr(query, name)) for name in ("q", "mantissa", "shift")),
        *(getattr(made, name).eq(getattr(job, name)) for name in p.command_fields),
    ]
    if p.block > 1:
        m.d.comb += made.token.eq(token)
    if p.pruning:
        m.submodules.margin_generator = margins = MarginGenerator(p.margin_generator)
        m.d.comb += [
            *(
                getattr(margins, name).eq(getattr(query, name))
                for name in ("q", "mantissa", "shift")
            ),
            made.most.eq(margins.most),
            made.least.eq(margins.least),
        ]
    to: Value = chosen
    if p.contexts > 1:
        to = rotated(chosen, first_group(job.context, p.groups), p.groups)
    m.d.comb += ready.eq(_queue(m, p, groups, job, storing, made, held & (waiting == 0), to))


def _queue(m: Module, p, groups: list[LaneGroup], job, storing, made, valid, to) -> Value:
    """A queue of queries for each group, `to` one of which a query goes; whether it has room."""
    ready = Signal(name="queue_ready")
    for number, group in enumerate(groups):
        # A queue for each group, so that one slow group does not hold up the others' queries.
        queue = Queue(QueueParameters(depth=p.queries), shape=p.head_layout)
        m.submodules[f"queries_{number}"] = queue
        # No head may start before all rows of its command are in memory. Other contexts' may:
        # theirs are, and the store writes none that they read.
        stored, of = ~storing, job
        if p.contexts > 1:
            of = queue.o.payload
            stored |= of.context != job.context
        m.d.comb += [
            queue.i.payload.eq(made),
            queue.i.valid.eq(valid & (to == number)),
            group.query.valid.eq(queue.o.valid & stored),
            group.query.payload.eq(queue.o.payload),
            queue.o.ready.eq(group.query.ready & stored),
            group.tokens.eq(of.tokens),
            group.threshold.eq(of.threshold),
        ]
        with m.If(to == number):
            m.d.comb += ready.eq(queue.i.ready)
    return ready


def _repeat(m: Module, core, job, begin, sending, head, place, chosen, kv_head) -> Value:
    """In a block: heads whose kv heads run side by side come for each token; returns the token.

    When the kv heads of all groups have had a query of each of their heads, these come again
    for the next token, and the next kv heads after the last one.
    """
    p = core.parameters
    if p.block == 1:
        return job.tokens - 1
    first = Signal.like(head)  # of these heads
    waiting = Signal(range(p.block))  # new tokens after this one
    ends = (place + 1 == job.group) & (chosen == p.groups - 1) | (head + 1 == job.heads)
    with m.If(sending & ends):
        m.d.sync += [waiting.eq(job.block - 1), first.eq(head + 1)]
        with m.If(waiting != 0):
            again = [head.eq(first), place.eq(0), chosen.eq(0), kv_head.eq(kv_head)]
            m.d.sync += [waiting.eq(waiting - 1), first.eq(first), *again]
    with m.If(begin):
        m.d.sync += [waiting.eq(core.command.payload.block - 1), first.eq(0)]
    return job.tokens - 1 - waiting
