"""Cycles of the active positions: their identification, and the fetch of their rows."""

from collections import deque
from typing import NamedTuple

from golden.lad.timing.work import APID_DEPTH, HELD, HeadWork, TimingSizes

LATENCY = 3
"""Cycles of APID from a beat to its counters."""


class Entry(NamedTuple):
    """A position that leaves APID; ``last`` of its head."""

    head: int
    position: int
    active: bool
    last: bool


class Stores:
    """As :class:`hw.lad.head_stores.HeadStores` with APID: a beat a cycle while there is room."""

    def __init__(self, timing: TimingSizes):
        self._lanes = timing.lanes
        self._limit = APID_DEPTH - timing.lanes
        self._waiting: deque[HeadWork] = deque()
        self._beats: deque[tuple[list[Entry], bool]] = deque()  # not yet in APID's pipeline
        self._running = self._offered = self._busy = False
        self._pipeline: list[tuple[list[Entry], bool] | None] = [None] * LATENCY
        self._queue: deque[Entry] = deque()
        self._fed = self._front = 0
        self.output: Entry | None = None
        self.still = False  # a cycle without an event changes nothing

    def add(self, work: HeadWork) -> None:
        """All scores of a head are there."""
        self._waiting.append(work)
        self.still = False

    def release(self) -> None:
        self._front = (self._front + 1) % HELD

    def tick(self, taken: bool, word: bool) -> None:
        """A cycle in which the output is taken, or MD writes a word of G."""
        before = self._progress
        queue, pipeline = self._queue, self._pipeline
        room, used = len(queue) <= self._limit, len(queue)
        last = pipeline[-1]
        done = last is not None and room and not (word and self._fed == self._front)
        advance = last is None or done
        # The queue's output register.
        if self.output is None or taken:
            self.output = queue.popleft() if used else None
        ended = False
        if done and last is not None:
            queue.extend(last[0])
            ended = last[1]
        beat = None
        accepts = self._offered and self._busy and advance
        if accepts:
            beat = self._beats.popleft()
        if advance:
            self._pipeline = [beat, *pipeline[:-1]]
        # A beat is read from the store in the cycle before it is offered.
        if not self._offered or accepts:
            self._offered = self._running and self._unread > 0
            self._unread -= self._offered
        if beat is not None and beat[1]:
            self._busy = False
        elif self._starts:
            self._begin()
        if ended:
            self._running = False
            self._fed = (self._fed + 1) % HELD
        self.still = not (taken or word) and before == self._progress

    @property
    def _progress(self) -> tuple:
        """What changes in a cycle without an event in which anything does."""
        state = self._running, self._offered, self._busy, self._unread
        return state, len(self._queue), self.output is None, self._pipeline

    _unread = 0

    @property
    def _starts(self) -> bool:
        return bool(self._waiting) and not self._running and not self._busy

    def _begin(self) -> None:
        """APID accepts the next head's command."""
        work = self._waiting.popleft()
        count = -(-work.n // self._lanes)
        beats: list[list[Entry]] = [[] for _ in range(count)]
        final = len(work.entries) - 1
        entries = zip(work.entries.tolist(), work.active.tolist(), strict=True)
        for number, (position, active) in enumerate(entries):
            entry = Entry(work.head, position, active, number == final)
            beats[position // self._lanes].append(entry)
        self._beats.extend((entries, n == count - 1) for n, entries in enumerate(beats))
        self._running = self._busy = True
        self._unread = count


class Ahead:
    """Rows loaded ahead, as :class:`hw.lad.prefetch.Prefetch` finds them."""

    def __init__(self) -> None:
        self.tags: list[tuple[int, int]] = []
        self.front = 0

    def empty(self) -> None:
        self.tags, self.front = [], 0

    def known(self, wanted: tuple[int, int]) -> bool:
        return not (self.front < len(self.tags) and self.tags[self.front] < wanted)

    def hit(self, wanted: tuple[int, int]) -> bool:
        return self.front < len(self.tags) and self.tags[self.front] == wanted

    def tick(self, looked: tuple[int, int] | None, taken: bool) -> None:
        """A cycle in which a position is looked up, or the rows of a hit are taken."""
        self.front += taken or (looked is not None and not self.known(looked))


IDLE, ENTRIES, FETCHED = range(3)

COUNTERS, KEY, VALUE = 1, 2, 4
"""Rows of an entry, as bits of those that are not yet requested; the lowest one goes first."""


class Fetch:
    """As :class:`hw.lad.active_fetch.ActiveFetch`: a row a cycle, slots read in order."""

    def __init__(self, timing: TimingSizes):
        self._depth, self._words = timing.depth, timing.sizes.counter_words
        self.ahead = Ahead()
        self._commands = 0  # heads whose entries may come
        self.still = False  # a cycle without an event changes nothing
        self._state = IDLE
        self._current: Entry | None = None
        self._pending = 0
        self._row = -1  # of counters, requested last
        # For each slot: its entry, whether it has counters, the rows that it waits for.
        self._entries: list[Entry | None] = [None] * timing.depth
        self._counts = [False] * timing.depth
        self._missing = [0] * timing.depth
        self._requested: deque[int] = deque()  # slots whose rows are in flight
        self._tail = self._key = self._counted = self._value = 0
        self._slot = 0
        self.key: Entry | None = None
        self.counters = self.rows = False

    def begin(self) -> None:
        """A head's entries may come."""
        self._commands += 1
        self.still = False

    @property
    def _looked(self) -> tuple[int, int] | None:
        """Head and position that are looked up."""
        if self._current is None or not self._pending & KEY:
            return None
        return self._current.head, self._current.position

    @property
    def _wanted(self) -> tuple[int, int] | None:
        """The same once its counters have been requested, if it has any."""
        return None if self._pending & COUNTERS else self._looked

    def wants(self) -> int | None:
        """Which row is requested."""
        if not self._pending:
            return None
        wanted = self._wanted
        if wanted is not None and (not self.ahead.known(wanted) or self.ahead.hit(wanted)):
            return None
        return self._pending & -self._pending

    def _copies(self, kind: int | None) -> bool:
        """Rows loaded ahead go to their slot, unless a row arrives for one."""
        wanted = self._wanted
        return wanted is not None and kind not in (KEY, VALUE) and self.ahead.hit(wanted)

    def takes(self, granted: bool, kind: int | None) -> bool:
        """Whether an entry is accepted in a cycle in which a request is granted, a row arrives."""
        if self._state != ENTRIES or self._tail - self._value == self._depth:
            return False
        if not self._pending:
            return True
        if self._current is not None and self._current.last:
            return False
        return (granted and not self._pending & (self._pending - 1)) or self._copies(kind)

    def tick(
        self,
        granted: bool,
        kind: int | None,
        entry: Entry | None,
        key: bool,
        counters: bool,
        rows: bool,
    ) -> None:
        """A cycle, with the entry that is accepted; `key`, `counters` and `rows` are taken."""
        before = self._progress
        looked, copies = self._looked, self._copies(kind)
        self._read(key, counters, rows)
        if kind is not None:
            self._missing[self._requested.popleft()] &= ~kind
        slot = self._slot
        if copies:
            self._missing[slot] &= ~(KEY | VALUE)
        if granted:
            self._requested.append(slot)
        if self._state == ENTRIES:
            if copies or granted:
                self._pending = 0 if copies else self._pending & (self._pending - 1)
                if not self._pending and self._current is not None and self._current.last:
                    self._state = FETCHED
            if entry is not None:
                self._allocate(entry)
        elif self._state == FETCHED:
            self._state = IDLE
        elif self._commands:
            self._commands -= 1
            self._row, self._state = -1, ENTRIES
        front = self.ahead.front
        self.ahead.tick(looked, copies)
        events = granted or key or counters or rows or kind is not None or entry is not None
        self.still = not events and self._progress == before and self.ahead.front == front

    @property
    def _progress(self) -> tuple:
        """What changes in a cycle in which anything does."""
        waiting = self.key is None, self.counters, self.rows
        return self._state, self._pending, self._key, self._counted, self._value, waiting

    def _allocate(self, entry: Entry) -> None:
        row = entry.position // self._words
        counts = row != self._row
        pending = (COUNTERS if counts else 0) | (KEY | VALUE if entry.active else 0)
        self._slot = slot = self._tail % self._depth
        self._entries[slot], self._counts[slot] = entry, counts
        self._missing[slot] = self._pending = pending
        self._current, self._row = entry, row
        self._tail += 1

    def _read(self, key: bool, counters: bool, rows: bool) -> None:
        """Each reader goes on where its slot has what it needs and its output is free."""
        depth, tail, missing = self._depth, self._tail, self._missing
        passed = self._value != self._key and self._value != self._counted
        if self.key is None or key:
            slot = self._key % depth
            ready = self._key != tail and not missing[slot] & KEY
            self.key = self._entries[slot] if ready else None
            self._key += ready
        slot = self._counted % depth
        free = not self.counters or counters
        read = False
        if self._counted != tail:
            if not self._counts[slot]:
                self._counted += 1
            elif free and not missing[slot] & COUNTERS:
                self._counted += 1
                read = True
        if free:
            self.counters = read
        slot = self._value % depth
        free = not self.rows or rows
        read = False
        if passed:
            entry = self._entries[slot]
            if entry is not None and not entry.active:
                self._value += 1
            elif free and not missing[slot] & VALUE:
                self._value += 1
                read = True
        if free:
            self.rows = read
