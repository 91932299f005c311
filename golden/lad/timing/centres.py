"""Cycles of the scores of collinear keys' centres."""

from golden.lad.timing.parts import OTHER, TABLE, Scan
from golden.lad.timing.work import HeadWork, TimingSizes

TABLE_COUNT = 3
"""Of norms, relative norms and centres."""

NEAREST = 6
"""Cycles from a product with a centre to its comparison with the best one."""

DIVIDE = 8
"""Cycles of the new key's length relative to its centre's, and of the old rows."""

IDLE, TABLES, OWN, WAIT, CENTRES, SCALED, DIVIDED, WRITTEN, DONE = range(9)


class CentreSource:
    """As :class:`hw.lad.scores.centre_scores.CentreScores`.

    The three tables are read, then a centre a cycle, then a pair of scores a cycle; the first head
    of a kv head multiplies the new key with itself before, and writes its words after.
    """

    score_stage = 3
    """Cycles from a pair of positions to its score, less one."""

    multiplies = True
    """Whether a row is multiplied as it arrives."""

    storing = False
    """The new key is stored as its head is scored."""

    steps = waits = 0
    """A store has none."""

    def __init__(self, timing: TimingSizes):
        self._d = timing.sizes.d
        self._state = IDLE
        self._scan = Scan()
        self._first = self.done = False
        self._rows = self._row = self._table = self._left = 0
        self._centres = self._requested = self._received = 0
        self._following = self._scored = self._old = 0
        self._waiting = 0
        self._own = self._root = False  # k . k is under way; its root is there
        self._comparing = 0  # cosines under way, by the cycles since
        self._scan_rows: list[int] = []

    def store(self, work: HeadWork) -> None:
        """The new key is stored as its head is scored."""

    def begin(self, work: HeadWork, old: int) -> None:
        self._old, self._first = old, work.first
        self._rows = -(-(work.n - 1) // self._d)
        self._left = TABLE_COUNT * self._rows
        self._scan_rows = Scan.counts(work.centres, self._rows, self._d)
        self.done = False
        self._centres = self._scored = self._following = self._comparing = 0
        self._row = self._table = self._received = self._waiting = 0
        self._state = TABLES

    @property
    def progress(self) -> tuple:
        """What changes in a cycle without an event in which anything does."""
        flags = self._own, self._root, self._comparing, self.done
        counts = self._row, self._table, self._waiting, self._following, self._scored
        return self._state, counts, self._scan.progress, flags

    @property
    def wants(self) -> bool:
        if self._state == TABLES:
            return self._row != self._rows
        return self._state == WRITTEN or (self._state == CENTRES and self._scan.valid)

    @property
    def writes(self) -> bool:
        return self._state == WRITTEN

    @property
    def kind(self) -> int:
        """Kind of the row that is requested."""
        return OTHER if self._state == CENTRES else TABLE

    def offers(self, go: bool) -> bool:
        """Whether the new key is to be multiplied with itself."""
        return self._state == OWN and self._first and not self._waiting

    def tick(
        self, granted: bool, kind: int | None, taken: bool, go: bool, result: bool, score: bool
    ) -> bool:
        """A cycle; whether a score is under way from now on.

        A request was granted, a row arrives, an operation is taken, there is a result, and a score
        is there.
        """
        state = self._state
        issued = state == SCALED and self._following < self._old
        idle = not self._comparing and not (result and not self._own and self._first)
        scored, received, root = self._scored, self._received, self._root
        of_centre = result and not self._own
        self._comparing = (self._comparing << 1 | (of_centre and self._first)) & (1 << NEAREST) - 1
        self._root = result and self._own
        if result:
            self._own = False
        self._received += of_centre
        self._scored += 2 * score
        self._following += 2 * issued
        left = self._left
        self._left -= kind == TABLE
        begins = state == WAIT and left == 0 and go
        finished = self._scan.finished
        self._scan.tick(granted)
        if begins:
            self._scan.begin(self._scan_rows)

        if state == TABLES:
            self._tables(granted)
        elif state == OWN:
            if self._first and taken:
                self._waiting, self._own = 1, True
            if not self._first or root:
                self._state = WAIT
        elif begins:
            self._waiting = 0
            self._state = CENTRES
        elif state == CENTRES:
            if finished and received == self._centres:
                self._state = SCALED
            self._centres += granted
        elif state == SCALED and scored >= self._old and idle:
            self._state = DIVIDED if self._first else DONE
        elif state == DIVIDED:
            self._waiting += 1
            if self._waiting == DIVIDE:
                self._table, self._state = 0, WRITTEN
        elif state == WRITTEN and granted:
            self._table += 1
            if self._table == TABLE_COUNT:
                self._state = DONE
        elif state == DONE:
            self.done, self._state = True, IDLE
        return issued

    def _tables(self, granted: bool) -> None:
        """Rows of the tables, and a cycle after each table."""
        if self._row != self._rows:
            self._row += granted
            return
        self._row, self._table = 0, self._table + 1
        if self._table == TABLE_COUNT or self._rows == 0:
            self._state = OWN
