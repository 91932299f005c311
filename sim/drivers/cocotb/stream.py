"""cocotb drivers and monitors of Amaranth streams: hesitating source and sink, protocol monitor."""

from pathlib import Path
from time import monotonic

from cocotb.triggers import RisingEdge, Timer

from sim.core.stalls import Throttle

PERIOD_NS = 10
TOUCH_S = 0.2


class StreamError(AssertionError):
    """A component broke a rule of the stream protocol."""


class Ticks:
    """Cycles since reset, and the trigger that ends one; a combinational design has no clock.

    alive
        Touched as long as simulated time passes, for whoever ends a simulation in which it stops.
    """

    def __init__(self, dut, clocked: bool, alive: Path):
        self._clk = dut.clk if clocked else None
        self._alive, self._touch_at = alive, 0.0
        self.cycle = 0
        self.last_transfer = -1

    def trigger(self):
        now = monotonic()
        if now > self._touch_at:
            self._alive.touch()
            self._touch_at = now + TOUCH_S
        return Timer(PERIOD_NS, "ns") if self._clk is None else RisingEdge(self._clk)

    async def count(self):
        while True:
            await self.trigger()
            self.cycle += 1


class Port:
    """One stream's three signals on the device under test."""

    def __init__(self, dut, name: str):
        self.name = name
        self.payload = getattr(dut, f"{name}__payload")
        self.valid = getattr(dut, f"{name}__valid")
        self.ready = getattr(dut, f"{name}__ready")

    def transfers(self) -> bool:
        """Whether a beat moves at this clock edge; X or Z on either side is an error."""
        for signal in (self.valid, self.ready):
            if not signal.value.is_resolvable:
                raise StreamError(f"stream {self.name}: {signal._name} is {signal.value}")
        return bool(self.valid.value) and bool(self.ready.value)


async def source(ticks: Ticks, port: Port, beats: list[int], gate: Throttle):
    """Offer `beats` in order, each held until it is taken, with pauses as `gate` says."""
    port.valid.value = 0
    ones = (1 << len(port.payload)) - 1
    for beat in beats:
        while not gate.step():
            await ticks.trigger()
        port.payload.value = beat
        port.valid.value = 1
        while True:
            await ticks.trigger()
            if port.transfers():
                break
        ticks.last_transfer = ticks.cycle
        port.valid.value = 0
        port.payload.value = beat ^ ones  # whoever reads it now reads something else


async def sink(
    ticks: Ticks,
    port: Port,
    received: list[int],
    cycles: list[int],
    gate: Throttle,
    late: bool = False,
):
    """Take beats for ever, with pauses as `gate` says, noting the cycle each was taken in.

    late
        Be ready only for a beat already seen, as :class:`sim.core.stalls.Stall` says.
    """
    seen = False
    while True:
        port.ready.value = int(gate.step() and (seen or not late))
        await ticks.trigger()
        taken = port.transfers()
        seen = bool(port.valid.value) and not taken
        if taken:
            received.append(int(port.payload.value))
            cycles.append(ticks.cycle)
            ticks.last_transfer = ticks.cycle


async def monitor(ticks: Ticks, port: Port):
    """Check the stream rules on an output: valid stays, and the payload too, until taken."""
    held = None
    while True:
        await ticks.trigger()
        valid, payload = bool(port.valid.value), port.payload.value
        if held is not None:
            if not valid:
                raise StreamError(
                    f"stream {port.name}: valid was withdrawn in cycle {ticks.cycle} while the "
                    "consumer was not ready"
                )
            if payload != held:
                raise StreamError(
                    f"stream {port.name}: the payload changed in cycle {ticks.cycle} while the "
                    "consumer was not ready"
                )
        if valid and not payload.is_resolvable:
            raise StreamError(f"stream {port.name}: payload is {payload} in cycle {ticks.cycle}")
        held = payload if valid and not port.ready.value else None
