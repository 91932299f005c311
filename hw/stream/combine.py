"""Connections of several streams: join, fork, merge and route.

Each function adds statements to a module, and no pipeline stage: a beat passes in the cycle in
which it is offered. `sources` and `sinks` are streams inside a component, as :func:`wiring.connect`
takes them: the ports of submodules, or the component's own.
"""

from functools import reduce
from operator import and_
from typing import Any

from amaranth.hdl import Array, Cat, Module, Signal, Value
from amaranth.lib import data


def join(m: Module, sources: list, sinks: list, when: Any = 1) -> Value:
    """Transfer a beat of all `sources` and `sinks` in the same cycle, if `when` is high.

    The caller connects payloads. Returns whether the beats transfer.

    The valid of a sink depends on the ready of the other sinks, so two rules hold with several
    sinks: a port of the component must not be one of them, because its valid would fall with their
    ready; and at most one may wait for its own valid before it is ready (as the queries of
    :class:`hw.attention.pe_array.PeArray` do), because two such sinks would wait for each other.
    :func:`fork` has neither rule. If a sink is a port, `when` must not fall before the transfer.
    """
    valids, readies = [s.valid for s in sources], [s.ready for s in sinks]
    if not isinstance(when, int):
        valids.append(Value.cast(when))
    for n, sink in enumerate(sinks):
        m.d.comb += sink.valid.eq(reduce(and_, valids + readies[:n] + readies[n + 1 :]))
    for n, source in enumerate(sources):
        others = valids[:n] + valids[n + 1 :] + readies
        m.d.comb += source.ready.eq(reduce(and_, others))
    return reduce(and_, valids + readies)


def fork(m: Module, name: str, source, sinks: list, to: list | None = None) -> None:
    """Give each beat of `source` to all `sinks`, to each as soon as it is ready; then accept it.

    A sink gets the payload, or those fields of it that its own payload has. A register for each
    sink, ``<name>_delivered_<n>``, says that the sink has the beat.

    to
        Flag for each sink, constant while a beat is offered: only sinks with 1 get the beat.
    """
    # A sink's valid depends on no other sink's ready, which is what makes a fork free of the
    # deadlock and of the combinational loops that a join of sinks may have.
    delivered = [Signal(name=f"{name}_delivered_{n}") for n in range(len(sinks))]
    passed = [sink.ready | had for sink, had in zip(sinks, delivered, strict=True)]
    valids, takes = [source.valid] * len(sinks), [sink.ready for sink in sinks]
    if to is not None:
        to = [Value.cast(wanted) for wanted in to]
        passed = [done | ~wanted for done, wanted in zip(passed, to, strict=True)]
        valids = [source.valid & wanted for wanted in to]
        takes = [ready & wanted for ready, wanted in zip(takes, to, strict=True)]
    m.d.comb += source.ready.eq(Cat(passed).all())
    for sink, had, valid, take in zip(sinks, delivered, valids, takes, strict=True):
        m.d.comb += sink.valid.eq(valid & ~had)
        with m.If(source.valid):
            m.d.sync += had.eq(~source.ready & (had | take))
        m.d.comb += copy(sink.payload, source.payload)


def merge(m: Module, first, second, sink) -> Value:
    """Pass the beats of `first` and of `second` to `sink`; `first` goes before.

    A beat that the sink has been offered is not replaced by one of `first` that comes later. The
    caller connects payloads. Returns whether the beat offered is of `first`.
    """
    waiting = Signal()  # a beat of `second` has been offered and not accepted
    chosen = Signal()
    m.d.comb += [
        chosen.eq(first.valid & ~waiting),
        sink.valid.eq(first.valid | second.valid),
        first.ready.eq(sink.ready & chosen),
        second.ready.eq(sink.ready & ~chosen),
    ]
    # Once offered, a beat must remain until it is accepted; so `second` keeps its turn for as long.
    m.d.sync += waiting.eq(second.valid & ~chosen & ~sink.ready)
    return chosen


def route(m: Module, source, number: Value, sinks: list) -> None:
    """Give each beat of `source` to the sink of that `number`, constant while a beat is offered.

    A sink gets the payload, or those fields of it that its own payload has. A beat whose number no
    sink has waits.
    """
    chosen = [number == n for n in range(len(sinks))]
    for sink, mine in zip(sinks, chosen, strict=True):
        m.d.comb += [sink.valid.eq(source.valid & mine), *copy(sink.payload, source.payload)]
    readies = [sink.ready & mine for sink, mine in zip(sinks, chosen, strict=True)]
    m.d.comb += source.ready.eq(Cat(readies).any())


def collect(m: Module, sources: list, number: Value, sink) -> None:
    """Pass the beats of the source of that `number`, constant while it offers one, to `sink`.

    The counterpart of :func:`route`. All payloads have the same layout.
    """
    for n, source in enumerate(sources):
        m.d.comb += source.ready.eq(sink.ready & (number == n))
    valids = [source.valid & (number == n) for n, source in enumerate(sources)]
    payloads = Array(Value.cast(source.payload) for source in sources)
    m.d.comb += [sink.valid.eq(Cat(valids).any()), Value.cast(sink.payload).eq(payloads[number])]


def copy(to, of) -> list:
    """Assignments of the fields of `to` that `of` has too; of the whole where it has no fields.

    Both are values, such as payloads.
    """
    given: Any = Signal(of.shape())  # for its layout, also where it is a Struct
    taken: Any = Signal(to.shape())
    if not isinstance(taken.shape(), data.StructLayout):
        alike = taken.shape() == given.shape()
        return [Value.cast(to).eq(Value.cast(of))] if alike else []
    names = {name for name, _ in given.shape()}
    shared = [name for name, _ in taken.shape() if name in names]
    return [Value.cast(to[name]).eq(Value.cast(of[name])) for name in shared]


def pass_fields(m: Module, source, sink) -> None:
    """Connect two streams whose payloads have fields of the same names, perhaps of other widths."""
    m.d.comb += [
        sink.valid.eq(source.valid),
        source.ready.eq(sink.ready),
        *copy(sink.payload, source.payload),
    ]
