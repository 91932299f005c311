"""Packets to a board and its replies, over anything that carries bytes; lost ones are repeated.

The frames are as in :mod:`hw.boards.frames`, written here from their definition (RFC 1055 and
zlib's CRC-32).
"""

import dataclasses
import zlib
from typing import Protocol

from sim.core.tools import ToolError

END, ESC, ESC_END, ESC_ESC = b"\xc0", b"\xdb", b"\xdb\xdc", b"\xdb\xdd"
CRC_BYTES = 4
LONGEST = 1 << 15
"""Bytes of a frame, its escapes included, beyond any that a board sends."""


class BoardError(ToolError):
    """A board that does not answer as it should; the message is one sentence."""


class Transport(Protocol):
    """Carries bytes.

    name
        Name of the port, for messages.
    patience
        Seconds in which the reply to a packet should come.
    """

    name: str
    patience: float

    def write(self, data: bytes) -> None:
        """:raises BoardError: if the line is gone."""
        ...

    def read(self, timeout: float) -> bytes:
        """What has arrived; waits for a byte at most `timeout` seconds.

        :raises BoardError: if the line is gone.
        """
        ...

    def now(self) -> float:
        """Seconds of the clock by which `patience` counts."""
        ...

    def close(self) -> None: ...


@dataclasses.dataclass
class Repairs:
    """What went wrong on the line, and was made good.

    resent
        Requests sent again as no reply came.
    damaged
        Frames from the board that were wrong.
    """

    resent: int = 0
    damaged: int = 0


def frame(body: bytes) -> bytes:
    packet = body + zlib.crc32(body).to_bytes(CRC_BYTES, "little")
    return END + packet.replace(ESC, ESC_ESC).replace(END, ESC_END) + END


class Deframer:
    """Bodies of the packets in bytes that come in any portions."""

    def __init__(self, repairs: Repairs):
        self._buffer, self._repairs = bytearray(), repairs

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        *frames, rest = bytes(self._buffer).split(END)
        bodies = [self._body(packet) for packet in frames if packet]
        if len(rest) > LONGEST:
            bodies.append(None)
            rest = b""
        self._buffer = bytearray(rest)
        self._repairs.damaged += bodies.count(None)
        return [body for body in bodies if body is not None]

    @staticmethod
    def _body(stuffed: bytes) -> bytes | None:
        # Without its two escapes, a frame has no ESC.
        if ESC in stuffed.replace(ESC_END, b"").replace(ESC_ESC, b""):
            return None
        packet = stuffed.replace(ESC_END, END).replace(ESC_ESC, ESC)
        body, crc = packet[:-CRC_BYTES], packet[-CRC_BYTES:]
        good = len(body) >= 2 and zlib.crc32(body) == int.from_bytes(crc, "little")
        return body if good else None


class Link:
    """Requests and their replies, one at a time.

    A request without a reply is sent again with the same number, so that the board, which knows the
    last number, executes it once.
    """

    ATTEMPTS = 5

    def __init__(self, transport: Transport):
        self.transport, self.repairs = transport, Repairs()
        self._deframer = Deframer(self.repairs)
        self._sequence = 0
        self.heard = 0
        """Bytes that have come from the board."""

    def open(self, operations: bytes) -> tuple[int, bytes]:
        """Begin a conversation; the operations may be executed several times."""
        self._sequence = 0
        return self._exchange(operations)

    def request(self, operations: bytes) -> tuple[int, bytes]:
        """Execute operations once; returns the reply's status and results.

        :raises BoardError: if no reply comes.
        """
        self._sequence = self._sequence % 255 + 1
        return self._exchange(operations)

    def _exchange(self, operations: bytes) -> tuple[int, bytes]:
        message = frame(bytes([self._sequence]) + operations)
        for attempt in range(self.ATTEMPTS):
            self.repairs.resent += attempt > 0
            self.transport.write(message)
            reply = self._reply()
            if reply is not None:
                return reply
        raise BoardError(
            f"{self.transport.name}: the board does not answer: {self._seen()}; is it programmed, "
            "and is the baud rate right"
        )

    def _seen(self) -> str:
        if not self.heard:
            return "nothing came"
        return f"{self.heard} bytes came, {self.repairs.damaged} damaged frames among them"

    def _reply(self) -> tuple[int, bytes] | None:
        end = self.transport.now() + self.transport.patience
        while (left := end - self.transport.now()) > 0:
            data = self.transport.read(left)
            self.heard += len(data)
            for body in self._deframer.feed(data):
                # The reply to an earlier request may come late.
                if body[0] == self._sequence:
                    return body[1], body[2:]
        return None
