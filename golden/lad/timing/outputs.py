"""Cycles of a head's factors and output, and of its caches."""

from collections import deque

from golden.lad.timing.parts import Dots
from golden.lad.timing.positions import Entry
from golden.lad.timing.work import LANES, HeadWork, TimingSizes

STAGES = 2
"""Cycles of an addition or a product in MD."""

COUNTED = STAGES
"""The stage of MD's pipeline that counts."""

CORRECTED = COUNTED + 3 * STAGES
"""The stage that has the correction."""

QUEUED = 32
"""Entries that wait for their score in MD."""


class Factors:
    """As :class:`hw.lad.md.Md`: an entry a cycle, but waits for its row of counters."""

    def __init__(self, timing: TimingSizes):
        self._words = timing.sizes.counter_words
        self._vpu = Dots(timing.dot, timing.credits)
        self._queue: deque[Entry] = deque()
        self._stages: list[Entry | None] = [None] * (CORRECTED + 1)
        self._filled = 0  # stages
        self._busy = self._loading = self._flush = self._held = False
        self._row = 0
        self.writes = False  # a row of counters
        self.word = False  # a word of G was written in the last cycle

    @property
    def idle(self) -> bool:
        return not (self._busy or self._flush or self.writes)

    def begin(self) -> None:
        self._busy = self._loading = True

    def takes(self, key: Entry | None) -> bool:
        """Whether a key is accepted."""
        if key is None or not self._loading or len(self._queue) == QUEUED:
            return False
        return not key.active or self._vpu.free > 0

    def stalls(self, counters: bool, granted: bool) -> bool:
        """Whether the entry that is counted waits: for its row, or for another to be written."""
        entry = self._stages[COUNTED]
        if entry is None:
            return False
        free = not self.writes or granted
        return self._flush or (self._needs(entry) and not (counters and free))

    def _needs(self, entry: Entry) -> bool:
        return not self._held or entry.position // self._words != self._row

    def still(self, advance: bool) -> bool:
        """Whether a cycle changes nothing in which no key comes and no row of counters is written.

        advance
            As in :meth:`tick`.
        """
        empty = not self._filled and not self._queue
        return not (self._flush or self.word) and (empty or not advance)

    def offers(self, stalls: bool) -> Entry | None:
        """The entry whose correction is offered."""
        entry = self._stages[-1]
        return entry if entry is not None and entry.active and not stalls else None

    def takes_counters(self, advance: bool) -> bool:
        entry = self._stages[COUNTED]
        return advance and entry is not None and self._needs(entry)

    def tick(
        self, cycle: int, key: Entry | None, advance: bool, granted: bool, taken: bool
    ) -> None:
        """A cycle: a key is accepted, the pipeline goes on, a row of counters is written.

        taken
            A correction is accepted.
        """
        counted, out = self._stages[COUNTED], self._stages[-1]
        free = not self.writes or granted
        if granted:
            self.writes = False
        self.word = False
        if counted is not None and advance:
            if self._needs(counted) and self._held:
                self.writes = True
            self._row, self._held = counted.position // self._words, True
            self._flush = counted.last
            self.word = counted.active
        elif self._flush and free:
            self.writes, self._flush, self._held = True, False, False
        if taken and out is not None and out.last:
            self._busy = False
        if advance:
            entry = None
            if self._queue and (not self._queue[0].active or self._vpu.valid(cycle)):
                entry = self._queue.popleft()
                if entry.active:
                    self._vpu.give()
            self._filled += (entry is not None) - (out is not None)
            self._stages = [entry, *self._stages[:-1]]
        if key is not None:
            if key.active:
                self._vpu.take(cycle)
            self._queue.append(key)
            if key.last:
                self._loading = False


EMPTY, USED, SCALARS, READ, FIRST, SECOND, LAST = range(7)


class CacheRows:
    """As :class:`hw.lad.caches.cache_store.CacheStore`: rows loaded, columns written."""

    def __init__(self, timing: TimingSizes):
        d, columns = timing.sizes.d, timing.columns
        self.rows = timing.sizes.cache_rows
        # Columns of A in the order in which they are written, by their number in their lane.
        short = d - (LANES - 1) * columns
        self._order = [n for n in range(columns) for _ in range(LANES if n < short else LANES - 1)]
        self._columns = columns
        self._state = EMPTY
        self._part = 0  # of B, C, D and the columns
        self._complete = self._passed = 0
        self.loaded = 0
        self.written = False  # a row waits to be written
        self.done = False  # the last one is accepted in this cycle

    @property
    def free(self) -> int:
        """Rows whose place is free for the next head."""
        if self._state == EMPTY:
            return self.rows
        return self._passed if self._state != USED else 0

    def begin(self) -> None:
        self._state, self.loaded = USED, 0

    def release(self) -> None:
        self._state = EMPTY

    def write(self, complete: bool) -> None:
        """Write all, whose columns are complete or are still to be set."""
        self._state, self._part, self._passed = SCALARS, 0, 0
        self._complete = self._columns if complete else 0

    def set_column(self) -> None:
        self._complete += 1

    def _is_here(self, part: int) -> bool:
        """B, C and D are there, a column when it is set."""
        return part < LANES or self._order[part - LANES] < self._complete

    def tick(self, granted: bool, reads: bool) -> None:
        """A cycle in which a row is written, or the sums read their columns."""
        self.done = False
        state = self._state
        accepts = not self.written or granted
        if granted:
            self.written = False
        if state in (EMPTY, USED):
            return
        here = not reads and state != LAST and self._is_here(self._part)
        if state == READ:
            self._state = FIRST if here else READ
        elif not accepts:
            if state == FIRST and reads:
                self._state = READ
        elif state == SCALARS:
            self.written, self._passed = True, 1
            self._state = FIRST if here else READ
        elif state == FIRST:
            self.written, self._state = True, SECOND
        elif state == SECOND:
            self.written = True
            self._passed += 2
            self._part += 1
            if self._part == LANES + len(self._order):
                self._state = LAST
            else:
                self._state = FIRST if not reads and self._is_here(self._part) else READ
        else:
            self.done, self._state = True, EMPTY


class CacheReads:
    """As :class:`hw.lad.caches.cache_fetch.CacheFetch`: a row a cycle, when its place is free."""

    def __init__(self, rows: int):
        self._rows = self._place = rows

    @property
    def idle(self) -> bool:
        return self._place == self._rows

    def begin(self) -> None:
        self._place = 0

    def wants(self, free: int) -> bool:
        return self._place < min(free, self._rows)

    def left(self, free: int) -> int:
        """Rows whose place is free."""
        return min(free, self._rows) - self._place

    def skip(self, cycles: int) -> None:
        """A row is granted in each of these cycles."""
        self._place += cycles

    def tick(self, granted: bool) -> None:
        self._place += granted


LOADS, PREPARES, ATTENDS, DIVIDES, UPDATES, WRITES = range(6)


class Output:
    """As :class:`hw.lad.ac.Ac`: the caches' products, a position a cycle, the division, the terms.

    With M + 1 cycles to a VPU's vector, T terms and c = ceil(d / 3): ATTEND begins c +
    dot_latency + 6 cycles after the caches are there, the output comes 2 M + 12 after the last
    position; B to F are complete T + M + 5 cycles later, then a column of each lane every T cycles.
    """

    def __init__(self, timing: TimingSizes):
        self._vector, self._dot, self._columns = timing.vector, timing.dot, timing.columns
        self.caches = CacheRows(timing)
        self.state = LOADS
        self._at = 0  # when the state ends
        self._work: HeadWork | None = None
        self._next: HeadWork | None = None
        self._begins = 0  # the cycle in which B to F are complete
        self.o = False  # the output waits

    @property
    def ready(self) -> bool:
        """For a command."""
        return self._next is None and self.state in (LOADS, UPDATES, WRITES)

    @property
    def settled(self) -> bool:
        return self.state == LOADS and not self.o

    @property
    def idle(self) -> bool:
        return self.settled and self._next is None

    @property
    def loads(self) -> bool:
        """Whether rows of the caches come for a head."""
        return self.state == LOADS and self._next is not None

    def waits(self, cycle: int) -> int:
        """Cycles after this one in which nothing happens, whatever the other stages do."""
        if self.state not in (PREPARES, DIVIDES):
            return 0
        return self._at - cycle - (1 if self.state == PREPARES else 2)

    @property
    def attends(self) -> bool:
        return self.state == ATTENDS

    def begin(self, work: HeadWork) -> None:
        self._next = work

    def _column(self, cycle: int, first: int) -> bool:
        """Whether something of a column happens in UPDATES, every T cycles from `first` on."""
        assert self._work is not None
        number, rest = divmod(cycle - first, self._work.terms)
        return rest == 0 and 0 <= number < self._columns

    def _sets(self, cycle: int) -> bool:
        assert self._work is not None
        return self._column(cycle, self._begins + 4 + self._vector + self._work.terms)

    def accepts(self, cycle: int) -> bool:
        """Whether a row of the caches, now offered, is accepted."""
        loads = self._next is not None and not self._next.restart
        return (
            loads
            and self.caches.loaded < self.caches.rows
            and not (self.state == UPDATES and self._sets(cycle))
        )

    def tick(
        self, cycle: int, row: bool, entry: Entry | None, granted: bool, accepted: bool
    ) -> None:
        """A cycle: a row of the caches is accepted, a position is added, a row written, o taken."""
        caches, state = self.caches, self.state
        updates = state == UPDATES
        sets = updates and self._sets(cycle)
        reads = updates and self._column(cycle, self._begins + 2 + self._vector)
        waits = self.o
        if accepted:
            self.o = False
        loaded = caches.loaded
        caches.loaded += row
        caches.tick(granted, reads)
        if sets:
            caches.set_column()
        if state == LOADS:
            work = self._next
            if work is not None and (work.restart or loaded == caches.rows) and not waits:
                self._work, self._next = work, None
                caches.begin()
                self.state, self._at = PREPARES, cycle + self._columns + self._dot + 5
        elif state == PREPARES:
            if cycle == self._at:
                self.state = ATTENDS
        elif state == ATTENDS:
            if entry is not None and entry.last:
                self.state, self._at = DIVIDES, cycle + 2 * self._vector + 10
        elif state == DIVIDES:
            self.o = self.o or cycle == self._at - 1
            if cycle == self._at:
                self._finish(cycle)
        elif state == UPDATES:
            if cycle == self._begins:
                caches.write(complete=False)
            elif caches.done:
                self.state = LOADS
        elif caches.done:
            self.state = LOADS

    def _finish(self, cycle: int) -> None:
        """The output is there: to the terms, to zeros that are written, or to the next head."""
        assert self._work is not None
        if self._work.terms:
            self.state, self._begins = UPDATES, cycle + self._work.terms + self._vector + 4
        elif self._work.restart:
            self.caches.write(complete=True)
            self.state = WRITES
        else:
            self.caches.release()
            self.state = LOADS
