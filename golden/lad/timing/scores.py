"""Cycles of the scores of a head."""

from collections import deque
from typing import Any

from golden.lad.timing.centres import CentreSource
from golden.lad.timing.codes import CodeSource
from golden.lad.timing.parts import FOREVER, KEY, OTHER, TABLE, WRITE, Dots, G, Scan
from golden.lad.timing.work import HeadWork, TimingSizes

IDLE, STORE_K, STORE_V, ENCODE, LOAD, TABLES, SCORES, DONE = range(8)


class Scores:
    """As :class:`hw.lad.eas.Eas`: a row a cycle at most, keys of M and of the window first."""

    def __init__(self, timing: TimingSizes):
        self._d, self._window = timing.sizes.d, timing.sizes.window
        self._vpus = [Dots(timing.dot, timing.credits) for _ in range(2)]
        self._tags: deque[bool] = deque()  # of the products under way: whole keys
        codes = timing.sizes.identification == "codes"
        self._source: Any = (CodeSource if codes else CentreSource)(timing)
        self._score_bit = 1 << self._source.score_stage
        self._scan = Scan()
        self._scanned = self._changed = False
        self._under_way = 0  # estimated scores, by the cycles since
        self._left = self._row = self._rows = 0  # of G
        self._emitted = self._exact = self._windowed = self._old = 0
        self._large: list[int] = []  # by row
        self.state = IDLE
        self.still = False  # in SCORES a cycle without an event changes nothing
        self.work: HeadWork | None = None

    def begin(self, work: HeadWork) -> None:
        """A command is accepted."""
        self.work = work
        self._old = max(work.n - self._window, 0)
        self._rows = -(-(work.n - 1) // self._d)
        self._row = self._left = self._emitted = 0
        self._large = Scan.counts(work.large, -(-self._old // self._d), self._d)
        self.state = STORE_K if work.first else LOAD

    @property
    def _in_window(self) -> bool:
        return self._scanned and self._scan.finished

    @property
    def _wants_key(self) -> bool:
        if self._in_window:
            assert self.work is not None
            return self._windowed != self.work.n
        return self._scan.valid

    def wants(self, rows: bool) -> int | None:
        """Kind of the row that is requested.

        rows
            A row of K or V to be stored is offered.
        """
        state, source = self.state, self._source
        if state == SCORES:
            if self._wants_key:
                return KEY
        elif state in (STORE_K, STORE_V):
            return WRITE if rows else None
        elif state == TABLES:
            return G if self._row != self._rows else None
        elif state != ENCODE:
            return None
        if not source.wants:
            return None
        return WRITE if source.writes else source.kind

    @property
    def stores(self) -> bool:
        """Whether the request is a new row of K or V."""
        return self.state in (STORE_K, STORE_V)

    def accepts(self, kind: int) -> bool:
        """Whether a row of that kind, now offered, is accepted."""
        if kind == KEY:
            return self._vpus[0].free > 0
        if kind == OTHER and isinstance(self._source, CentreSource):
            return self._vpus[0].free > 0 and self._vpus[1].free > 0
        return True

    def tick(self, cycle: int, granted: bool, kind: int | None) -> None:
        """A cycle in which a request was granted, or a row of a kind is accepted."""
        state, source, bit = self.state, self._source, self._score_bit
        if state < SCORES:
            if state == ENCODE:
                of_store = kind if kind in (TABLE, OTHER) else None
                source.tick(granted, of_store, False, False, False, False)
            self._left -= kind == G
            self._step(granted, False)
            return
        first, second = self._vpus
        events = granted or kind is not None or self._tags or self._under_way
        before = None if events else self._progress
        tables = self._left == 0 and self._row == self._rows
        go = state == SCORES and tables
        key_arrives = kind == KEY
        score, waiting = bool(self._under_way & bit), bool(self._under_way & 2 * bit)
        pending = score or waiting or self._changed
        wants_key = state == SCORES and self._wants_key
        ready = (
            source.done
            and self._in_window
            and not wants_key
            and self._exact == self._emitted
            and not pending
        )

        # Results, then operations.
        is_exact = is_estimate = False
        if self._tags and first.valid(cycle):
            if self._tags[0]:
                is_exact = not waiting
            else:
                is_estimate = second.valid(cycle)
        offers = source.offers(go) or (kind == OTHER and source.multiplies)
        free = first.free > 0 and second.free > 0
        taken = offers and free and not key_arrives
        if is_exact or is_estimate:
            self._tags.popleft()
            first.give()
            if is_estimate:
                second.give()
        if key_arrives or taken:
            first.take(cycle)
            self._tags.append(key_arrives)
        if taken:
            second.take(cycle)
        self._changed = waiting or is_exact
        for_source = granted and not wants_key and state == SCORES
        of_source = kind if kind in (TABLE, OTHER) else None
        issued = source.tick(for_source, of_source, taken, go, is_estimate, score)
        self._under_way = (self._under_way << 1 | issued) & 4 * bit - 1

        # The scan of M, then the window.
        begins = go and not self._scanned
        self._scan.tick(granted and wants_key and not self._in_window)
        if granted and wants_key:
            self._emitted += 1
            self._windowed += self._in_window
        self._exact += is_exact
        if begins:
            self._scan.begin(self._large)
            self._scanned, self._windowed = True, self._old
        self._left -= kind == G
        self._step(granted, ready)
        self.still = not (events or taken) and before == self._progress

    @property
    def _progress(self) -> tuple:
        """What changes in a cycle without an event in which anything does."""
        return self.state, self._changed, self._scanned, self._scan.progress, self._source.progress

    @property
    def stage(self) -> tuple[int, int]:
        """The state, and the steps left of a store."""
        return self.state, self._source.steps

    @property
    def waits(self) -> int:
        """Cycles in which nothing happens without an event."""
        if self.state == ENCODE:
            return self._source.waits
        if self.state == TABLES:
            return FOREVER if self._row != self._rows else 0
        return FOREVER if self.state in (IDLE, STORE_K, STORE_V) or self.still else 0

    def skip(self, cycles: int) -> None:
        """Let some cycles go by in which nothing happens."""
        if self.state == ENCODE:
            self._source.skip(cycles)

    def _step(self, granted: bool, ready: bool) -> None:
        work, source = self.work, self._source
        if self.state == STORE_K:
            self.state += granted
        elif self.state == STORE_V and granted:
            self.state = ENCODE
            source.store(work)
        elif self.state == ENCODE and not source.storing:
            self.state = LOAD
        elif self.state == LOAD:
            self._left, self._exact, self._scanned = self._rows, 0, False
            self.state = TABLES
        elif self.state == TABLES:
            if self._row == self._rows:
                source.begin(work, self._old)
                self.state = SCORES
            else:
                self._row += granted
        elif self.state == SCORES and ready:
            self.state = DONE
        elif self.state == DONE:
            self.state = IDLE
