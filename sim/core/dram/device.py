"""A DRAM of several channels behind one window of waiting requests, driven by its own clock."""

import collections

from sim.core.dram.address import AddressMap
from sim.core.dram.channel import NEVER, Burst, Channel, Counts
from sim.core.dram.standards import Standard

WINDOW = 64
"""Bursts that wait at the door of the channels' queues, unless told otherwise."""


class Device:
    """Accepts lines in order, and tells when each one's data have moved.

    The oldest `window` lines that were pushed wait for a place in their channel's queue, each
    channel's in order. A read of a line that is already on its way joins it; a read of a line
    that waits to be written is answered in the next clock; a write of such a line is merged.
    A write is answered as it enters its channel's queue.
    """

    def __init__(
        self,
        standard: Standard,
        address_map: AddressMap,
        window: int = WINDOW,
        trace: list[list] | None = None,
    ):
        self.standard, self._map, self._window = standard, address_map, window
        traces = trace if trace is not None else [None] * standard.channels
        self.channels = [Channel(standard, traces[c]) for c in range(standard.channels)]
        self._backlog: collections.deque[tuple[int, int, bool]] = collections.deque()
        # By channel: those at the door, of reads and of writes.
        self._door: list[tuple[collections.deque[Burst], collections.deque[Burst]]] = [
            (collections.deque(), collections.deque()) for _ in self.channels
        ]
        self._at_door = 0
        self._reading: dict[int, list[int]] = {}  # line to the numbers of its reads
        self._writing: set[int] = set()
        self.clock = 0
        self.next = min(channel.next for channel in self.channels)
        """The earliest clock at which anything can happen."""
        self.done: list[tuple[int, int]] = []
        """(clock, number) of answers, which the caller removes; the data are there at the clock."""

    def push(self, number: int, line: int, write: bool) -> None:
        """Accept a line at `clock`, with a number larger than those before it."""
        self._backlog.append((number, line, write))
        self.next = self.clock

    @property
    def has_room(self) -> bool:
        """Whether fewer than `window` lines wait for a place at the door."""
        return len(self._backlog) < self._window

    @property
    def waiting(self) -> bool:
        """Whether any burst has yet to go."""
        return bool(self._backlog) or not all(channel.idle for channel in self.channels)

    def advance(self, until: int) -> None:
        """Let time pass: what happens before the clock `until` has happened."""
        while self.next < until:
            self.clock = clock = max(self.clock, self.next)
            self._admit(clock)
            self.next = NEVER
            for number, channel in enumerate(self.channels):
                if channel.next <= clock:
                    burst = channel.step(clock)
                    if burst is not None:
                        self._finish(clock, burst)
                        self._refill(number, burst.write, clock + 1)
                self.next = min(self.next, channel.next)
            if self._backlog and self._at_door < self._window:
                self.next = clock + 1
        self.clock = max(self.clock, until)

    def _admit(self, clock: int) -> None:
        """Let the backlog come to the door, and into the queues that have room."""
        while self._backlog and self._at_door < self._window:
            number, line, write = self._backlog.popleft()
            if line in self._writing:
                self.done.append((clock + 1, number))
            elif not write and line in self._reading:
                self._reading[line].append(number)
            else:
                if write:
                    self._writing.add(line)
                else:
                    self._reading[line] = [number]
                channel, bank, row = self._map.locate(line)
                self._door[channel][write].append(Burst(number, line, bank, row, write))
                self._at_door += 1
                self._refill(channel, write, clock)

    def _refill(self, number: int, write: bool, clock: int) -> None:
        """Move bursts from the door into a channel's queue, to go from `clock` on."""
        door, channel = self._door[number][write], self.channels[number]
        while door and channel.has_room(write):
            burst = door.popleft()
            self._at_door -= 1
            channel.add(clock, burst)
            if write:
                self.done.append((clock + 1, burst.number))

    def _finish(self, clock: int, burst: Burst) -> None:
        if burst.write:
            self._writing.discard(burst.line)
            return
        s = self.standard
        at = clock + s.read_latency + s.burst
        self.done += [(at, number) for number in self._reading.pop(burst.line)]

    def counts(self) -> Counts:
        """What all channels did up to `clock`."""
        return sum((channel.settle(self.clock) for channel in self.channels), Counts())
