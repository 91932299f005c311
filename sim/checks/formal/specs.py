"""Pieces of formal specifications, and specifications of any component with streams.

A specification is an elaboratable around one component, its submodule ``dut``: it drives the
inputs, stalls the outputs, models what the component must do, and asserts that it does::

    class Spec(Elaboratable):
        def elaborate(self, platform):
            m = Module()
            first, internals = surround(m, self.dut)
            with m.If(~first):
                m.d.comb += Assert(...)
            return m

:func:`sim.checks.formal.proof.prove` runs it.
"""

import functools
import itertools
from collections.abc import Callable, Container
from typing import Any

from amaranth.asserts import AnySeq  # type: ignore[attr-defined]  # stubs lack it
from amaranth.hdl import (
    Assert,
    Assume,
    Const,
    Cover,
    Elaboratable,
    Fragment,
    MemoryInstance,
    Module,
    ResetSignal,
    Signal,
    Value,
)
from amaranth.lib import stream, wiring
from amaranth.utils import ceil_log2


def reset_first(m: Module) -> Signal:
    """Assume reset in the first cycle and in no other; returns a flag, high in that cycle.

    The flag itself has no reset: otherwise the design would be in reset in every cycle and all
    assertions would pass vacuously.
    """
    first = Signal(init=1, reset_less=True)
    m.d.sync += first.eq(0)
    m.d.comb += Assume(ResetSignal() == first, None)
    return first


def drive(m: Module, first: Signal, port) -> None:
    """Drive an input stream with arbitrary valid and payload that keep the rules of streams."""
    m.d.comb += [
        port.valid.eq(AnySeq(1)),
        Value.cast(port.payload).eq(AnySeq(len(Value.cast(port.payload)))),
    ]
    _hold(m, first, port, lambda condition, _: Assume(condition, None))


def watch(m: Module, first: Signal, port) -> None:
    """Drive an output's ready arbitrarily, and assert that it keeps the rules of streams."""
    m.d.comb += port.ready.eq(AnySeq(1))
    _hold(m, first, port, Assert)


def _hold(m: Module, first: Signal, port, rule: Callable) -> None:
    """The rules of streams: after a stall (valid, not ready) valid and payload do not change."""
    stalled = Signal()
    offered = Value.cast(port.payload).as_unsigned()  # bits are compared, signed or not
    payload = Signal(len(offered))
    m.d.sync += [stalled.eq(port.valid & ~port.ready), payload.eq(offered)]
    with m.If(stalled & ~first):
        m.d.comb += [
            rule(port.valid, "a stalled beat was withdrawn"),
            rule(offered == payload, "a stalled payload changed"),
        ]


class Internals:
    """Registers and memories inside an elaborated design, for invariants of an induction.

    Parameters
    ----------
    fragment : :class:`amaranth.hdl.Fragment`
        What :meth:`Fragment.get` returns for the component; add this same object as a submodule.
    """

    def __init__(self, fragment: Fragment):
        self._fragment = fragment

    def signal(self, path: str) -> Signal:
        """The signal assigned under that name: ``"fifo.level"`` is `level` in submodule `fifo`.

        :raises KeyError: if no statement assigns it.
        """
        fragment, name = self._walk(path)
        for statements in fragment.statements.values():
            for driven in statements._lhs_signals():
                if driven.name == name:
                    return driven
        raise KeyError(f"nothing assigns a signal named {path}")

    def row(self, m: Module, path: str, address: Value) -> Signal:
        """The row of the memory `path` at `address`, through a read port added for it."""
        fragment, name = self._walk(path)
        found = fragment.find_subfragment(name)
        if not isinstance(found, MemoryInstance):
            raise TypeError(f"{path} must be a memory, not {type(found).__name__}")
        memory: Any = found  # stubs lack its members
        row = Signal(memory._data.shape)
        at = Signal(ceil_log2(memory._data.depth))
        m.d.comb += at.eq(address)
        memory.read_port(domain="comb", addr=at, data=row, en=Const(1), transparent_for=())
        return row

    def _walk(self, path: str) -> tuple[Any, str]:
        *folders, name = path.split(".")
        fragment: Any = self._fragment  # stubs lack its statements
        for folder in folders:
            fragment = fragment.find_subfragment(folder)
        return fragment, name


def surround(
    m: Module, dut, leave: Container[str] = (), target: Any = None
) -> tuple[Signal, Internals]:
    """Put `dut` into an arbitrary environment: reset first, then any beats and any stalls.

    Each input stream is driven by :func:`drive`, each output by :func:`watch`, streams of arrays
    too. Returns the flag of the cycle of reset, and what is inside the design.

    leave
        Names of streams that the specification drives by itself.
    target
        Platform that the design is elaborated for.
    """
    m.submodules.dut = fragment = Fragment.get(dut, target)
    first = reset_first(m)
    for path, member in _streams(dut.signature):
        if path[0] not in leave:
            port = functools.reduce(_part, path, dut)
            (drive if member.flow is wiring.In else watch)(m, first, port)
    return first, Internals(fragment)


def _streams(signature: wiring.Signature) -> list:
    """Path and member of each stream of a signature; of an array each element."""
    found = []
    for name, member in signature.members.items():
        if member.is_signature and isinstance(member.signature, stream.Signature):
            indices = itertools.product(*map(range, member.dimensions))
            found += [((name, *index), member) for index in indices]
    return found


def _part(whole: Any, key: str | int) -> Any:
    return getattr(whole, key) if isinstance(key, str) else whole[key]


class StreamRulesSpec(Elaboratable):
    """Outputs keep the rules of streams, whatever beats come in and whenever outputs stall.

    Parameters
    ----------
    dut : :class:`wiring.Component`
    outputs, inputs : list of str
        Names of its output and input streams; ports that are not named are left open.
    """

    def __init__(self, dut, outputs: list[str], inputs: list[str]):
        self._dut = dut
        self._outputs = [getattr(dut, name) for name in outputs]
        self._inputs = [getattr(dut, name) for name in inputs]

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = Fragment.get(self._dut, None)
        first = reset_first(m)
        for port in self._inputs:
            drive(m, first, port)
        for port in self._outputs:
            watch(m, first, port)
            m.d.comb += Cover(~first & port.valid & ~port.ready, "a stalled beat")
        return m


class StreamSpec(Elaboratable):
    """What an in-order stream component with ports ``i`` and ``o`` must do: no beat is lost.

    * The output keeps the rules of streams.
    * At most `capacity` beats are inside, and no beat leaves that did not enter.
    * One arbitrary beat, followed from input to output, leaves once, in order and unchanged.
    * The input is ready whenever there is room.
    * With beats inside, the output is valid after at most `latency` cycles.

    The output must not depend on the input of the same cycle.

    Parameters
    ----------
    dut : :class:`wiring.Component`
    capacity : int
        Most beats inside.
    latency : int
        Cycles from the transfer of a beat into an empty component until the output is valid.
    invariant : callable, optional
        ``invariant(m, spec, internals)`` adds assertions that relate the component's registers to
        this specification's. Without them an induction step starts from unreachable states.

    Attributes
    ----------
    dut : :class:`wiring.Component`
        As given.
    held : Signal
        Beats inside.
    ahead : Signal
        Beats inside that leave before the followed one, while `following`.
    value : Signal
        The followed beat's payload.
    following, done : Signal
        The followed beat is inside; has left.
    """

    def __init__(self, dut, capacity: int, latency: int = 1, invariant: Callable | None = None):
        self.dut, self._capacity, self._latency = dut, capacity, latency
        self._invariant = invariant
        # Counts to one more than the capacity, so that the assertion can fail.
        self.held = Signal(range(capacity + 2))
        self.ahead = Signal(range(capacity + 2))
        self.value = Signal(len(Value.cast(dut.i.payload)))
        self.following = Signal()
        self.done = Signal()

    def elaborate(self, platform):
        m = Module()
        first, internals = surround(m, self.dut)
        i, o = self.dut.i, self.dut.o

        push, pop = Signal(), Signal()
        m.d.comb += [push.eq(i.valid & i.ready & ~first), pop.eq(o.valid & o.ready & ~first)]
        self._count(m, first, push, pop)
        self._follow(m, push, pop)
        if self._invariant is not None:
            with m.If(~first):
                self._invariant(m, self, internals)

        m.d.comb += [
            Cover(self.held == self._capacity, "full"),
            Cover(self.done & (self.held == 0), "the followed beat and all others left"),
            Cover(self.done & (self.value == ~Const(0, len(self.value))), "all ones left"),
        ]
        return m

    def _count(self, m: Module, first: Signal, push: Signal, pop: Signal) -> None:
        m.d.sync += self.held.eq(self.held + push - pop)
        hidden = Signal(range(self._latency + 1))
        with m.If((self.held != 0) & ~self.dut.o.valid):
            m.d.sync += hidden.eq(hidden + 1)
        with m.Else():
            m.d.sync += hidden.eq(0)
        with m.If(~first):
            m.d.comb += [
                Assert(self.held <= self._capacity, "more beats than capacity"),
                Assert(~(pop & (self.held == 0)), "a beat from nowhere"),
                Assert(self.dut.i.ready | (self.held == self._capacity), "refused with room"),
                Assert(hidden < self._latency, "a beat is stuck"),
            ]

    def _follow(self, m: Module, push: Signal, pop: Signal) -> None:
        with m.If(push & AnySeq(1) & ~self.following & ~self.done):
            m.d.sync += [
                self.following.eq(1),
                self.value.eq(self.dut.i.payload),
                self.ahead.eq(self.held - pop),
            ]
        with m.Elif(self.following & pop):
            with m.If(self.ahead == 0):
                m.d.comb += Assert(self.dut.o.payload == self.value, "wrong data or order")
                m.d.sync += [self.following.eq(0), self.done.eq(1)]
            with m.Else():
                m.d.sync += self.ahead.eq(self.ahead - 1)
