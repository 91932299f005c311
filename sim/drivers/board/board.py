"""A board as its streams and memories, by the operations of :mod:`hw.boards.protocol`."""

import dataclasses
import itertools

import numpy as np

from hw.boards.board_top import COUNTER_BITS
from hw.boards.design import BoardDesign
from hw.boards.protocol import VERSION, Operation, Outcome
from hw.boards.stream_ports import bytes_of
from sim.core import payload
from sim.drivers.board.link import CRC_BYTES, BoardError, Link, Transport

RUNNING = 0x80
FEWEST = 4
"""Equal rows of a memory up to which each is sent."""
LONGEST = 3000
"""Clock cycles that an operation may take, as the host waits for its reply, and a simulated board
sleeps where nothing is on the line for longer."""
HEAD = 2 + CRC_BYTES
"""Bytes of a packet besides operations or results."""
WORDS_OF = {
    Outcome.UNKNOWN_OPERATION: "it does not know an operation",
    Outcome.NO_ROOM: "a stream had no room",
    Outcome.NO_SUCH_STREAM: "it has no such stream or memory",
    Outcome.REPLY_TOO_LONG: "a reply was too long",
    Outcome.TRUNCATED: "an operation was cut short",
    Outcome.NO_SUCH_ROW: "a memory has fewer rows",
}


NO_BOARD = "no Senbazuru board, or one of another version"


class BoardWasReset(BoardError):
    """The block is in reset though it was started: the board lost its state."""


@dataclasses.dataclass
class Status:
    """What a board says of itself.

    cycles, first, last
        Clock cycles since START, and until the first and the last transfer; 0 before the first.
    framing_errors, dropped
        Damaged bytes and frames that it has received since power-up.
    inputs, outputs
        By stream: room or level in beats, and beats transferred since START.
    memories
        By stream of requests: reads and writes.
    """

    version: int
    build: int
    fault: bool
    cycles: int
    first: int
    last: int
    framing_errors: int
    dropped: int
    inputs: dict[str, tuple[int, int]]
    outputs: dict[str, tuple[int, int]]
    memories: dict[str, tuple[int, int]]


class _Reader:
    """The results of a reply, one after another.

    name
        Name of the port.
    :raises BoardError: where they end too early.
    """

    def __init__(self, data: bytes, name: str):
        self._data, self._place, self._name = data, 0, name

    def take(self, count: int) -> bytes:
        taken = self._data[self._place : self._place + count]
        if len(taken) < count:
            raise BoardError(
                f"{self._name}: a reply of {len(self._data)} bytes is too short: {NO_BOARD}"
            )
        self._place += count
        return taken

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")


class Board:
    """One conversation with a board.

    :raises BoardError: if there is no board, or it holds another design.
    """

    def __init__(self, design: BoardDesign, transport: Transport):
        self.design, self.link = design, Link(transport)
        self.room = design.board.packet - HEAD
        """Bytes of operations, or of results, in a packet."""
        self._started = False
        inputs, outputs = (
            {name: bytes_of(payload.width(shape)) for name, shape in streams.items()}
            for streams in (design.inputs, design.outputs)
        )
        self.beat_bytes = {**inputs, **outputs}
        self._inputs, self._outputs = list(inputs), list(outputs)
        self.memories = list(design.memories)
        self.status_bytes = 14 + 3 * COUNTER_BITS // 8 + 6 * len(self.beat_bytes)
        self.status_bytes += 8 * len(self.memories)
        self._refuse_other(*self.link.open(bytes([Operation.STATUS])))

    def _refuse_other(self, status: int, results: bytes) -> None:
        name = self.link.transport.name
        if not results:
            # The request has the number 0 and the code 0, which is also a reply without results.
            what = "echoes" if status == Operation.STATUS else "does not tell its status"
            raise BoardError(f"the device at {name} {what}: not a Senbazuru board")
        reader = _Reader(results, name)
        version = reader.number(1)
        if version != VERSION:
            raise BoardError(
                f"{name}: the board speaks version {version} of the protocol, not {VERSION}"
            )
        build = reader.number(8)
        if build != self.design.build:
            raise BoardError(
                f"{name}: the board holds build {build:016x}, not {self.design.build:016x} of "
                f"{self.design.block.name} with these parameters; `python -m hw fpga` makes it"
            )

    def do(self, *operations: bytes) -> _Reader:
        """Execute operations in one packet.

        :raises BoardError: if the board refuses one, or was reset since it was started.
        """
        before = self._started
        for operation in operations:
            if operation[0] in (Operation.RESET, Operation.START):
                self._started = operation[0] == Operation.START
        status, results = self.link.request(b"".join(operations))
        name = self.link.transport.name
        if bool(status & RUNNING) != self._started and before:
            raise BoardWasReset(f"{name}: the board was reset in mid-run")
        if status & ~RUNNING:
            outcome = status & ~RUNNING
            unknown = f"{outcome} is none of its reasons: {NO_BOARD}"
            why = WORDS_OF[Outcome(outcome)] if outcome in [*Outcome] else unknown
            raise BoardError(f"{name}: the board refused an operation: {why}")
        return _Reader(results, name)

    def write(self, stream: str, beats: np.ndarray) -> bytes:
        """The operation that writes ``uint32[beats, words]`` to an input."""
        data = as_bytes(beats, self.beat_bytes[stream])
        number = self._inputs.index(stream)
        return bytes([Operation.WRITE, number]) + len(beats).to_bytes(2, "little") + data

    def read(self, stream: str, most: int) -> bytes:
        """The operation that reads at most that number of an output's beats."""
        number = self._outputs.index(stream)
        return bytes([Operation.READ, number]) + most.to_bytes(2, "little")

    def beats(self, stream: str, reader: _Reader) -> np.ndarray:
        """The result of `read`, ``uint32[beats, words]``."""
        count, size = reader.number(2), self.beat_bytes[stream]
        return from_bytes(reader.take(count * size), size, self.design.outputs[stream])

    def status(self, reader: _Reader) -> Status:
        """The result of STATUS."""
        size = COUNTER_BITS // 8
        version, build, flags = (reader.number(count) for count in (1, 8, 1))
        cycles, first, last = (reader.number(size) for _ in range(3))
        framing_errors, dropped = reader.number(2), reader.number(2)
        streams = [
            {name: (reader.number(2), reader.number(4)) for name in names}
            for names in (self._inputs, self._outputs)
        ]
        uses = {name: (reader.number(4), reader.number(4)) for name in self.memories}
        return Status(
            *(version, build, bool(flags), cycles, first, last, framing_errors, dropped),
            *(*streams, uses),
        )

    def load(self, memory: str, rows: np.ndarray, start: int = 0) -> None:
        """Write ``uint32[rows, words]`` to a memory, from row `start` on."""
        size = bytes_of(self.design.memories[memory].row_bits)
        most = max(1, (self.room - 8) // size)
        sdram = self.design.sdram
        cycles = 2 if sdram is None else sdram.columns + sdram.slack
        for first, last, equal in runs(rows, max(FEWEST + 1, LONGEST // cycles)):
            if equal:
                one = as_bytes(rows[first : first + 1], size)
                self.do(self._rows(Operation.FILL, memory, start + first, last - first) + one)
                continue
            for row in range(first, last, most):
                part = rows[row : min(row + most, last)]
                head = self._rows(Operation.LOAD, memory, start + row, len(part))
                self.do(head + as_bytes(part, size))

    def dump(self, memory: str, count: int) -> np.ndarray:
        """The first rows of a memory, ``uint32[count, words]``."""
        bits = self.design.memories[memory].row_bits
        size = bytes_of(bits)
        most = max(1, self.room // size)
        parts = []
        for first in range(0, count, most):
            rows = min(most, count - first)
            reader = self.do(self._rows(Operation.DUMP, memory, first, rows))
            parts.append(from_bytes(reader.take(rows * size), size, bits))
        return np.concatenate(parts)

    def _rows(self, operation: Operation, memory: str, first: int, count: int) -> bytes:
        head = bytes([operation, self.memories.index(memory)])
        return head + first.to_bytes(4, "little") + count.to_bytes(2, "little")


def runs(rows: np.ndarray, most: int) -> list[tuple[int, int, bool]]:
    """First row, last + 1, and whether they are more than `FEWEST` equal ones; all rows in order.

    A run of equal rows has `most` of them at most.
    """
    if not len(rows):
        return []
    changes = np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1
    found: list[tuple[int, int, bool]] = []
    for first, last in itertools.pairwise([0, *changes.tolist(), len(rows)]):
        for start in range(first, last, most):
            end = min(start + most, last)
            equal = end - start > FEWEST
            if found and not equal and not found[-1][2]:
                found[-1] = (found[-1][0], end, False)
            else:
                found.append((start, end, equal))
    return found


def as_bytes(beats: np.ndarray, size: int) -> bytes:
    """Packed beats, ``uint32[beats, words]``, as `size` bytes each."""
    octets = np.ascontiguousarray(beats, "<u4").view(np.uint8).reshape(len(beats), -1)
    return octets[:, :size].tobytes()


def from_bytes(data: bytes, size: int, shape) -> np.ndarray:
    """The inverse of :func:`as_bytes`; `shape` is the payload's, or its width."""
    width = shape if isinstance(shape, int) else payload.width(shape)
    words = max(1, -(-width // 32))
    octets = np.zeros((len(data) // size, 4 * words), np.uint8)
    octets[:, :size] = np.frombuffer(data, np.uint8).reshape(-1, size)
    return octets.view("<u4").astype(np.uint32)
