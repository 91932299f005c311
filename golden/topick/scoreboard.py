"""Bit-exact twin of the scoreboard: which slot is free next, and what is parked."""

from collections import deque
from typing import Any


class Scoreboard:
    """Slots from 0, then those given back, first come first served; an entry in each at most."""

    def __init__(self, entries: int):
        self._free = deque(range(entries))
        self._parked: dict[int, Any] = {}

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """The next free slot."""
        return self._free.popleft()

    def park(self, slot: int, entry: Any) -> None:
        assert slot not in self._parked, f"slot {slot} was not read"
        self._parked[slot] = entry

    def read(self, slot: int) -> Any:
        """The entry, which is taken away."""
        return self._parked.pop(slot)

    def give_back(self, slot: int) -> None:
        assert slot not in self._parked, f"slot {slot} was not read"
        self._free.append(slot)
