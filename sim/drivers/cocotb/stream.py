"""Stream source, sink and monitor for cocotb testbenches, with stalls drawn from a seed.

A stream is three signals ``NAME__payload``, ``NAME__valid`` and ``NAME__ready``; a beat is
transferred at a clock edge at which both flags are 1. Use in a testbench of your own::

    @cocotb.test()
    async def test(dut):
        Clock(dut.clk, 10, unit="ns").start()
        cycles = Cycles(dut.clk)
        layouts = read_layouts("block.json")  # of sim.drivers.cocotb.layout
        await reset(dut.rst, cycles)
        source = Source(cycles, Port(dut, "i"), layouts["i"], stall="random", seed=1)
        sink = Sink(cycles, Port(dut, "o"), layouts["o"], stall="bursts", seed=1)
        Monitor(cycles, Port(dut, "o"))
        source.send({"values": [3, 1, 2, 0], "last": 1})
        [beat] = await sink.receive()
        assert beat["max.value"] == 3

They work from their creation until the test ends. Create them after the reset: X or Z on a flag at
a clock edge is an error. This project's own testbench (:mod:`sim.drivers.cocotb.testbench`) is made
of the same classes.
"""

from collections import deque
from collections.abc import Callable, Mapping

import cocotb
from cocotb.triggers import Event, RisingEdge, Timer
from cocotb.utils import get_sim_steps, get_sim_time

from sim.core.stalls import PATTERNS, Stall, Throttle, Turns, longest_stall
from sim.drivers.cocotb.layout import PayloadLayout

PERIOD_NS = 10
LONGEST_STALL = longest_stall(2000)


class StreamError(AssertionError):
    """A component broke a rule of the stream protocol."""


class Cycles:
    """Counts a testbench's clock cycles, and waits for the end of one.

    clock
        The clock signal; None for a combinational design, whose cycles are spans of time.
    period_ns
        The clock's period.
    longest_stall
        Most cycles of a stall in the ``long`` pattern; set it before the first source or sink.
    last_transfer
        The cycle of the last transfer on any stream of a source, sink or memory; -1 before the
        first.
    """

    def __init__(self, clock=None, period_ns: float = PERIOD_NS):
        self.longest_stall = LONGEST_STALL
        self._turns: dict[object, Turns] = {}
        self._edge = None if clock is None else RisingEdge(clock)
        self._period_ns = period_ns
        self._steps = get_sim_steps(period_ns, "ns")
        self.restart()

    def restart(self) -> None:
        """Let cycle 0 begin now: at a clock edge, such as that at which a reset ends."""
        self._start = get_sim_time("step")
        self.last_transfer = -1

    def trigger(self):
        """Await this for the clock edge that ends the present cycle."""
        return Timer(self._period_ns, "ns") if self._edge is None else self._edge

    @property
    def cycle(self) -> int:
        """Number of the present cycle; at a clock edge, of the cycle that it ends."""
        return max(0, (get_sim_time("step") - self._start - 1) // self._steps)

    def throttle(self, pattern: Stall, duty: float, seed: object, stream: str):
        """Stalls of one stream: ``step()``, called in any cycle, returns whether it may transfer.

        In the ``long`` pattern all streams of one seed take turns.
        """
        if not pattern.long:
            return Throttle(pattern.chances(duty, f"{seed}{stream}"), f"{seed}{stream}")
        if seed not in self._turns:
            self._turns[seed] = Turns(self.longest_stall, f"{seed}")
        return _Turn(self, self._turns[seed])


class _Turn:
    """One stream's part in the turns of long stalls."""

    def __init__(self, cycles: Cycles, turns: Turns):
        self._cycles, self._turns, self._number = cycles, turns, turns.join()

    def step(self) -> bool:
        return not self._turns.stalls(self._number, self._cycles.cycle)


class Port:
    """One stream's three signals on the device under test."""

    def __init__(self, dut, name: str):
        self.name = name
        self.payload = getattr(dut, f"{name}__payload")
        self.valid = getattr(dut, f"{name}__valid")
        self.ready = getattr(dut, f"{name}__ready")

    def transfers(self) -> bool:
        """Whether a beat is transferred at this clock edge; X or Z on either flag is an error."""
        for signal in (self.valid, self.ready):
            if not signal.value.is_resolvable:
                raise StreamError(f"stream {self.name}: {signal._name} is {signal.value}")
        return bool(self.valid.value) and bool(self.ready.value)


class Source:
    """Sends beats into an input stream, in order, each held until it is accepted.

    layout
        Lets :meth:`send` take fields by name.
    stall
        A pattern of :data:`sim.core.stalls.PATTERNS` by name (``none``, ``random``, ``bursts``,
        ``long``), or a :class:`~sim.core.stalls.Stall` of your own: the cycles without an offer.
    seed
        The same seed and stream name give the same stalls.
    """

    def __init__(
        self,
        cycles: Cycles,
        port: Port,
        layout: PayloadLayout | None = None,
        *,
        stall: str | Stall = "none",
        seed: object = 0,
    ):
        self._cycles, self._port, self._layout = cycles, port, layout
        pattern = find_stall(stall)
        self._throttle = cycles.throttle(pattern, pattern.valid, seed, port.name)
        self._queue: deque[int] = deque()
        self._filled, self._emptied = Event(), Event()
        self.idle = True
        port.valid.value = 0
        cocotb.start_soon(self._run())

    def send(self, *beats: int | Mapping) -> None:
        """Queue beats: payloads as integers or, with a layout, fields by name."""
        if beats:
            # Checked here, in the caller's frame, and not when they are driven.
            self._queue += [self._pack(beat) for beat in beats]
            self.idle = False
            self._filled.set()

    async def drain(self) -> None:
        """Wait until all beats queued so far have been accepted."""
        while not self.idle:
            self._emptied.clear()
            await self._emptied.wait()

    def _pack(self, beat: int | Mapping) -> int:
        if not isinstance(beat, Mapping):
            return int(beat)
        if self._layout is None:
            raise TypeError(f"stream {self._port.name}: fields need a payload layout")
        return self._layout.pack(beat)

    async def _run(self):
        cycles, port, throttle = self._cycles, self._port, self._throttle
        ones = (1 << len(port.payload)) - 1
        while True:
            while not self._queue:
                self.idle = True
                self._emptied.set()
                self._filled.clear()
                await self._filled.wait()
            beat = self._queue.popleft()
            while not throttle.step():
                await cycles.trigger()
            port.payload.value = beat
            port.valid.value = 1
            while True:
                await cycles.trigger()
                if port.transfers():
                    break
                throttle.step()  # in each cycle, so that a stream of few beats stalls as often
            cycles.last_transfer = cycles.cycle
            port.valid.value = 0
            # A design that reads the payload of a cycle without valid reads a wrong value.
            port.payload.value = beat ^ ones


class Sink:
    """Accepts the beats of an output stream, and keeps them.

    `layout`, `stall` and `seed` are as in :class:`Source`; a sink that stalls holds ready low.

    received
        Payloads as integers, oldest first.
    cycles_of
        The cycle in which each was accepted.
    """

    def __init__(
        self,
        cycles: Cycles,
        port: Port,
        layout: PayloadLayout | None = None,
        *,
        stall: str | Stall = "none",
        seed: object = 0,
    ):
        self._cycles, self._port, self._layout = cycles, port, layout
        self._pattern = find_stall(stall)
        self._throttle = cycles.throttle(self._pattern, self._pattern.ready, seed, port.name)
        self._arrived = Event()
        self._returned = 0
        self.received: list[int] = []
        self.cycles_of: list[int] = []
        port.ready.value = 0
        cocotb.start_soon(self._run())

    async def receive(self, beats: int = 1) -> list:
        """Wait for the next `beats` beats that no earlier call returned, and return them.

        Payloads as integers or, with a layout, each as a dictionary of its leaf fields.
        """
        first, end = self._returned, self._returned + beats
        self._returned = end
        while len(self.received) < end:
            self._arrived.clear()
            await self._arrived.wait()
        found = self.received[first:end]
        return found if self._layout is None else [self._layout.unpack(beat) for beat in found]

    async def _run(self):
        cycles, port, throttle = self._cycles, self._port, self._throttle
        late, seen = self._pattern.late, False
        while True:
            # A late sink is ready only for a beat that it has seen valid for a cycle.
            port.ready.value = int(throttle.step() and (seen or not late))
            await cycles.trigger()
            accepted = port.transfers()
            seen = bool(port.valid.value) and not accepted
            if accepted:
                cycle = cycles.last_transfer = cycles.cycle
                self.received.append(int(port.payload.value))
                self.cycles_of.append(cycle)
                self._arrived.set()


class Monitor:
    """Checks the stream rules on a stream: once valid, a beat is unchanged until accepted.

    A broken rule raises :class:`StreamError`, which fails the test. X or Z in a valid payload is an
    error too. Watches any stream of the design, also one between two of its parts.

    on_beat
        Called with the payload of each beat that is transferred: an integer or, with `layout`, a
        dictionary of its leaf fields. For a scoreboard on a stream that this testbench does not
        drive.
    """

    def __init__(
        self,
        cycles: Cycles,
        port: Port,
        layout: PayloadLayout | None = None,
        *,
        on_beat: Callable | None = None,
    ):
        self._cycles, self._port, self._layout, self._on_beat = cycles, port, layout, on_beat
        cocotb.start_soon(self._run())

    async def _run(self):
        cycles, port, on_beat = self._cycles, self._port, self._on_beat
        held = None
        while True:
            await cycles.trigger()
            valid, payload = bool(port.valid.value), port.payload.value
            if held is not None:
                if not valid:
                    self._fail("valid was withdrawn", "while the consumer was not ready")
                if payload != held:
                    self._fail("the payload changed", "while the consumer was not ready")
            if valid and not payload.is_resolvable:
                raise StreamError(
                    f"stream {port.name}: payload is {payload} in cycle {cycles.cycle}"
                )
            held = payload if valid and not port.ready.value else None
            if on_beat is not None and valid and held is None:
                beat = int(payload)
                on_beat(beat if self._layout is None else self._layout.unpack(beat))

    def _fail(self, what: str, when: str):
        cycle = self._cycles.cycle
        raise StreamError(f"stream {self._port.name}: {what} in cycle {cycle} {when}")


async def reset(signal, cycles: Cycles, length: int = 4) -> None:
    """Hold a reset high for `length` cycles; cycle 0 begins at the edge after which it is low."""
    signal.value = 1
    for _ in range(length):
        await cycles.trigger()
    signal.value = 0
    cycles.restart()


def find_stall(stall: str | Stall) -> Stall:
    """A stall pattern by name; one that is given whole is returned as it is.

    :raises ValueError: for an unknown name.
    """
    if isinstance(stall, Stall):
        return stall
    if stall not in PATTERNS:
        raise ValueError(f"stall must be one of {', '.join(PATTERNS)}, not {stall!r}")
    return PATTERNS[stall]
