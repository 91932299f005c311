"""Cycle model of UniCAIM's core, for a memory that answers in the next cycle.

It follows each job from its acceptance to its report, and each query from the converter to its
result. Rows written and rows read share the memory's port: where both come in one cycle, one of
them waits, and the model only says how much later that can be. Constants of a core are in
:class:`Timing`, which the testbench makes of the parameters of the blocks.
"""

import dataclasses
from collections.abc import Callable, Sequence

QUEUED = 4
"""Queries between the converter and the exact stage; results between that and the output."""

NEAR = 16
"""Cycles between a row written and one read that may fall together, as both are later."""

SECOND = 2
"""Jobs between the row manager and their report; heads announced to the exact stage."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Cycles and sizes of a core, from its parameters.

    ranks, key_bits, query_bits
        Parameters of the level converter.
    scored
        From a query's last plane to the first step of its search.
    planes
        Number of planes of an accumulation.
    mean
        A new row starts from the mean of the others.
    scores
        From a key to its score.
    depth
        Rows requested and not yet read.
    softmax
        Cycles from a head's last score to its first probability, by the number of rows.
    next_key, result
        From a head's first value to the next head's first key, and from its last to its result.
    converters, bits
        Of scores from the cells, 0 converters where they come from the keys.
    reduction
        From a head's last score to its first term, by the number of rows; the next head's first
        score comes when all of them have been read.
    calibration
        Cycles from a row written to the next beat of the array, beside one.
    words
        Words of accumulations in a memory; 0 where all move at once.
    drain
        From a pass' last word to its results.
    """

    ranks: int
    key_bits: int
    query_bits: int
    scored: int
    planes: int
    mean: bool
    scores: int
    depth: int
    softmax: Callable[[int], int]
    next_key: Callable[[int], int]
    result: int
    converters: int
    bits: int
    reduction: Callable[[int], int]
    calibration: int
    words: int
    drain: int


@dataclasses.dataclass(frozen=True)
class JobWork:
    """What a job does.

    op
        Name of its operation.
    full
        All rows of its kv head are in use after it.
    queries
        For each of its query heads, the rows selected and the steps of the search.
    """

    op: str
    kv_head: int
    full: bool = False
    queries: Sequence[tuple[int, int]] = ()


class CoreCycles:
    """Cycles of jobs one after another, all inputs offered from cycle 0 and outputs accepted.

    Attributes are cycles of the latest event of their kind, or from which something is free.
    """

    def __init__(self, t: Timing):
        self._t = t
        self._idle = 0  # the sequence takes a job
        self._converter = 0  # it takes a row
        self._line = 0  # its output is free
        self._array = 0  # it takes a beat
        self._sense = 0  # it takes a query's k
        self._summed = 0  # the group's sum takes scores
        self._accumulator = 0
        self._accumulation = 0  # it takes a record
        self._fetch = 0  # it takes an address
        self._exact = 0  # it takes a head
        self._key = 0  # the exact stage takes a key
        self._score = 0  # the softmax takes a head's first score
        self._samples: list[int] = []
        self._scores: list[int] = []
        self._values: list[int] = []  # addresses of values
        self._busy: dict[int, int] = {}  # from when a kv head takes a job
        self._evict: dict[int, int] = {}  # from when its row to evict is known
        # Cycles in which each query left its queues, and each head and record theirs.
        self._left: dict[str, list[int]] = {name: [] for name in ("k", "heads", "sums", "operands")}
        self._announced: list[int] = []
        self._reported: list[int] = []
        self._flags: list[int] = []
        self._taken: list[int] = []  # of each row out of the reorder buffer
        self._used = -1  # the row before has been used
        self.outputs: list[int] = []
        """Cycle of each output."""
        self.reports: list[int] = []
        self.end = -1
        """The last transfer."""
        self.later = 0
        """Cycles by which all may be later, as rows are read and written at once."""
        self._address = -1  # the latest to be read

    def add(self, job: JobWork) -> None:
        accepted = max(self._idle, self._busy.get(job.kv_head, 0))
        if job.op == "LOAD":
            taken = max(accepted + 1, self._converter)
            self._converter = taken + self._t.ranks + 2
            self._idle = taken + 1
            self.end = max(self.end, taken)
            return
        row = max(accepted + 1, self._evict.pop(job.kv_head, 0))
        record = max(row + 1, _room(self._reported, SECOND))
        if job.op == "RESTART":
            record = max(record, self._converter)
            self._write(record, 0)
            self._idle = record + 1
        else:
            key = max(record + 1, self._converter)
            self._write(key, self._t.calibration)
            self._idle = key + 2
            self.end = max(self.end, key + 1)  # V is written, perhaps after the report
            # It may find a row to be read, wait a cycle, and then make another one wait.
            self.later += 4 * (key <= self._address + NEAR)
        begun = self._begun(job, record + 1)
        last_scores = last_row = read = -1
        for rows, steps in job.queries:
            last_scores, last_row, read = self._query(rows, steps)
        self._report(job, begun, last_scores, last_row, read)

    def _write(self, row: int, more: int) -> None:
        """A key, or the beat that clears; `more` cycles of the array."""
        t = self._t
        found = max(row + t.ranks + 1, self._line) + t.key_bits
        self._converter = found + 1
        self._line = max(found + 1, self._array)
        self._array = max(self._array, self._line + 1 + more)

    def _query(self, rows: int, steps: int) -> tuple[int, int, int]:
        """Cycles of a query's scores being summed, of its last address, and of its last row."""
        t, left = self._t, self._left
        rooms = [_room(of, QUEUED) for of in left.values()]
        query = max(self._idle, self._converter, *rooms)
        self._idle = query + 1
        digit = max(query + t.ranks + 1, self._line) + 1
        plane = max(digit + 1, self._array)
        for _ in range(t.query_bits - 1):
            digit = max(digit + 1, plane)
            plane = max(digit + 1, plane + 1)
        self._converter, self._line = digit + 1, plane

        # The scores, and the search for the largest.
        scored = plane + t.scored
        summed = max(scored, self._summed) + max(0, t.words - 1)
        left["sums"].append(summed)
        self._summed = summed + 1 + (t.drain if t.words else 0)
        k = max(query + 1, self._sense)
        left["k"].append(k)
        over = max(k + 1, scored) + steps - 1
        self._array = max(summed, over) + 1

        if t.converters:
            return self._query_of_cells(query, over, summed, rows)

        # Addresses of keys, then addresses of values.
        first = max(over + 1, self._fetch, _room(self._announced, SECOND))
        count = max(1, rows)
        announced = first + 1
        if rows:
            keys = self._addresses(first, count, len(self._taken))
            last = keys[-1]
        else:
            keys, last = [], first
        left["heads"].append(last)
        self._sense = last + 1
        ready = max(announced, self._exact)  # the exact stage takes the head's rows
        if not rows:
            dropped = max(ready, query + 1, _room(self._flags, QUEUED))
            left["operands"].append(dropped)
            self._fetch = last + 1
            self._finish(dropped, dropped + 1)
            return summed, last, dropped
        used = self._rows(keys, max(ready + 1, self._key))
        left["operands"].append(used[0])
        values = self._addresses(max(last + 1, first + 2), count, len(self._taken))
        self._fetch = values[-1] + 1
        begun = used[-1] + t.scores + t.softmax(rows)
        used = self._rows(values, max(begun, _room(self._flags, QUEUED) - count + 1))
        self._key = used[0] + t.next_key(rows)
        self._finish(used[-1], used[-1] + t.result)
        return summed, last, used[-1]

    def _query_of_cells(self, query: int, over: int, summed: int, rows: int) -> tuple:
        """The rest of a query whose scores are the cells', converted."""
        t, left = self._t, self._left
        first = max(over + 1, _room(self._announced, SECOND))
        selected: list[int] = []
        for _ in range(max(1, rows)):
            free = (
                self._samples[-t.converters] + t.bits if len(self._samples) >= t.converters else 0
            )
            at = max(first, free, self._samples[-1] + 1 if self._samples else 0)
            self._samples.append(at)
            selected.append(at)
        last = selected[-1]
        left["heads"].append(last)
        self._sense = last + 1
        self._array = max(self._array, last + 1)
        ready = max(first + 1, self._exact)
        code = -1
        for number, at in enumerate(selected):
            code = max(at + t.bits + 1, code + 1, query + 1)
            if rows:
                before = self._score if number == 0 else self._scores[-1] + 1
                self._scores.append(max(code + 2, before))
        left["operands"].append(code)
        if not rows:
            dropped = max(ready, _room(self._flags, QUEUED))
            self._finish(dropped, dropped + 1)
            return summed, last, dropped
        addresses = self._addresses_of(selected)
        scored = self._scores[-1]
        self._score = scored + t.reduction(rows) + rows
        begun = max(scored + t.softmax(rows), ready, self._key)
        used = self._rows(addresses, max(begun, _room(self._flags, QUEUED) - rows + 1))
        self._key = used[-1] + 1
        self._finish(used[-1], used[-1] + t.result)
        return summed, last, used[-1]

    def _addresses_of(self, selected: list[int]) -> list[int]:
        """Cycles in which the addresses of values go to the memory, as rows are selected."""
        found: list[int] = []
        for number, at in enumerate(selected):
            before = len(self._taken) + number - self._t.depth
            free = self._taken[before] + 1 if 0 <= before < len(self._taken) else 0
            last = found[-1] if found else self._address
            found.append(max(at + 2, free, last + 1))
        self._address = found[-1]
        return found

    def _addresses(self, first: int, count: int, taken: int) -> list[int]:
        """Cycles in which addresses go to the memory, the first from a cycle on."""
        found: list[int] = []
        for number in range(taken, taken + count):
            before = number - self._t.depth
            free = self._taken[before] + 1 if before >= 0 else 0
            found.append(max(first, free, found[-1] + 1 if found else 0))
            # In case that the buffer is full before any row of these is used.
            self._taken.append(found[-1] + 4)
        del self._taken[taken:]
        self._address = found[-1]
        return found

    def _rows(self, addresses: list[int], first: int) -> list[int]:
        """Cycles in which the rows of these addresses are used, the first from a cycle on."""
        used: list[int] = []
        for address in addresses:
            self._taken.append(max(address + 4, self._used))
            self._used = max(self._taken[-1] + 1, first, self._used + 1)
            used.append(self._used)
        return used

    def _finish(self, ended: int, result: int) -> None:
        """A head's last row has been used."""
        self._announced.append(ended)
        self._exact = ended + 1
        result = max(result, self.outputs[-1] + 1 if self.outputs else 0)
        self._flags.append(result)
        self.outputs.append(result)
        self.end = max(self.end, result)

    def _begun(self, job: JobWork, seen: int) -> int:
        """The cycle after a job's new row has started, of a job seen by the accumulation."""
        t, mean = self._t, job.op == "STEP" and self._t.mean
        start = max(seen, self._accumulation, self._accumulator)
        if t.words:
            digits = t.planes - 1 if mean else 0
            self._summed = start + 1 if job.op == "RESTART" else start + 3 + digits
            return self._summed
        self._accumulator = start + (t.planes + 3 if mean else 1)
        return start + 1

    def _report(self, job: JobWork, state: int, summed: int, last_row: int, read: int) -> None:
        """The accumulations of the job's kv head, and its report."""
        t = self._t
        searches = job.full and job.op != "RESTART"
        if t.words:
            if job.queries:
                state = self._summed
            elif searches:
                state += t.words + t.drain
            found = state
        else:
            if job.queries:
                share = max(state, self._accumulator, summed + 1)
                self._accumulator = state = self._summed = share + 1
            found = max(state, self._accumulator) + t.planes + 1
            if searches:
                self._accumulator = found
        if searches:
            state = self._evict[job.kv_head] = found + 1
        reported = max(state + 1, last_row + 1)
        self._accumulation = reported + 1
        self._reported.append(reported)
        self._busy[job.kv_head] = max(reported, read) + 1
        self.reports.append(reported)
        self.end = max(self.end, reported)


def _room(left: list[int], depth: int) -> int:
    """From when a queue has room for one more, by the cycles in which others left it."""
    return left[-depth] + 1 if len(left) >= depth else 0
