"""Bit-exact model of the scoreboard: which slot is free next, and the parked entries."""

from collections import deque
from typing import Any


class Scoreboard:
    """Issues slots from 0, then returned ones in the order of their return. One entry per slot."""

    def __init__(self, entries: int):
        self._free = deque(range(entries))
        self._parked: dict[int, Any] = {}

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    def take(self) -> int:
        """Issue the next free slot."""
        return self._free.popleft()

    def park(self, slot: int, entry: Any) -> None:
        assert slot not in self._parked, f"slot {slot} was not read"
        self._parked[slot] = entry

    def read(self, slot: int) -> Any:
        """Remove and return the entry."""
        return self._parked.pop(slot)

    def free_slot(self, slot: int) -> None:
        assert slot not in self._parked, f"slot {slot} was not read"
        self._free.append(slot)
