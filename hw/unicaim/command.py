"""Commands of UniCAIM's core."""

from collections.abc import Sequence
from typing import NamedTuple

from amaranth.lib import enum


class CommandOp(enum.IntEnum, shape=2):
    """What a command is."""

    STEP = 0
    PRESET = 1
    RESTART = 2
    LOAD = 3


class CommandWork(NamedTuple):
    """A command, for :meth:`UnicaimCoreParameters.cycles`.

    op, kv_head
        Fields of the command.
    full
        Whether all rows of its kv head are in use after it.
    queries
        For each of its query heads, the number of rows selected.
    """

    op: CommandOp
    kv_head: int
    full: bool = False
    queries: Sequence[int] = ()
