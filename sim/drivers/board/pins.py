"""The serial line at the pins of a board that is simulated under cocotb, as a transport.

The line is modelled in time and not in clock cycles: a byte is its start bit, eight bits, lowest
first, and its stop bit, each as long as the far end's own clock makes it.
"""

from collections.abc import Callable

from cocotb.task import resume
from cocotb.triggers import FallingEdge, First, Timer
from cocotb.utils import get_sim_time

GOOD, LOST, BROKEN, GLITCH = "good", "lost", "broken", "glitch"
"""What may happen to a byte: nothing, it never comes, its stop bit is low, a spike comes before."""


class Pins:
    """A :class:`sim.drivers.board.link.Transport` for a host inside :func:`cocotb.task.bridge`.

    Its time is simulated time. `start` the listener first.

    dut
        With ``rx`` and ``tx``.
    bit_ns
        Length of a bit at the far end.
    patience_ns
        Within which a reply should come.
    to_board, from_board
        Called with the number of each byte; GOOD, LOST or, to the board, BROKEN or GLITCH.
    """

    name = "pins"

    def __init__(
        self,
        dut,
        bit_ns: float,
        patience_ns: float,
        to_board: Callable[[int], str] = lambda number: GOOD,
        from_board: Callable[[int], str] = lambda number: GOOD,
    ):
        self._dut, self._bit = dut, bit_ns
        self.patience = patience_ns * 1e-9
        self._to, self._from = to_board, from_board
        self._arrived = bytearray()
        self.sent = self.heard = 0
        dut.rx.value = 1

    async def listen(self) -> None:
        """Take bytes from the board."""
        while True:
            await FallingEdge(self._dut.tx)
            await self._bits(1.5)
            value = 0
            for bit in range(8):
                value |= int(self._dut.tx.value) << bit
                await self._bits(1)
            assert self._dut.tx.value == 1, "a byte from the board has no stop bit"
            if self._from(self.heard) == GOOD:
                self._arrived.append(value)
            self.heard += 1

    def write(self, data: bytes) -> None:
        resume(self._send)(data)

    def read(self, timeout: float) -> bytes:
        return resume(self._receive)(timeout)

    def now(self) -> float:
        return resume(_now)()

    def close(self) -> None:
        pass

    async def _send(self, data: bytes) -> None:
        rx = self._dut.rx
        for byte in data:
            fate = self._to(self.sent)
            self.sent += 1
            if fate == LOST:
                continue
            if fate == GLITCH:
                rx.value = 0
                await self._bits(0.3)
                rx.value = 1
                await self._bits(2)
            for level in (0, *(byte >> bit & 1 for bit in range(8)), fate != BROKEN):
                rx.value = int(level)
                await self._bits(1)
            rx.value = 1
            if fate == BROKEN:
                await self._bits(1)

    async def _receive(self, timeout: float) -> bytes:
        if not self._arrived:
            # A byte is there ten bits after its start; until then more of the reply may be.
            await First(FallingEdge(self._dut.tx), Timer(max(1, round(timeout * 1e9)), "ns"))
            await self._bits(10)
        data = bytes(self._arrived)
        self._arrived.clear()
        return data

    async def _bits(self, count: float) -> None:
        await Timer(round(count * self._bit * 1000), "ps")


async def _now() -> float:
    return get_sim_time("ns") * 1e-9
