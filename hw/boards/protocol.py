"""The operations that a board's request packets are made of, and the outcomes of replies."""

import dataclasses

from amaranth.lib import enum

VERSION = 1
"""Version of the protocol."""


class Operation(enum.IntEnum, shape=8):
    STATUS = 0
    RESET = 1
    START = 2
    WRITE = 3
    READ = 4
    LOAD = 5
    DUMP = 6
    FILL = 7


class Outcome(enum.IntEnum, shape=7):
    """The low bits of a reply's status byte; the highest says that the block runs."""

    DONE = 0
    UNKNOWN_OPERATION = 1
    NO_ROOM = 2
    NO_SUCH_STREAM = 3
    REPLY_TOO_LONG = 4
    TRUNCATED = 5
    NO_SUCH_ROW = 6


ROWS = (Operation.LOAD, Operation.DUMP, Operation.FILL)
"""Operations on a memory's rows."""
ARGUMENTS = {Operation.WRITE: 3, Operation.READ: 3, **dict.fromkeys(ROWS, 7)}
"""Bytes after an operation: stream and count, or memory, row and count."""


@dataclasses.dataclass(frozen=True)
class Channels:
    """What a request can reach.

    inputs, outputs
        Bytes of a beat of each stream.
    memories
        Bytes of a row and rows, of each memory.
    status_bytes
        Bytes of the result of STATUS.
    packet
        Bytes of the longest packet.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    memories: tuple[tuple[int, int], ...]
    status_bytes: int
    packet: int
