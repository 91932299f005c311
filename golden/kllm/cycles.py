"""Cycle model of the accelerator, for a memory that always keeps up.

It follows each product from its command to its last result. The tests require the hardware to take
exactly these cycles. Constants of a core are in :class:`Timing`, which the testbench makes from the
parameters of the blocks; what depends on vectors and matrices is in :class:`Work`.
"""

import dataclasses
from collections import deque
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class SoftmaxTiming:
    """Cycles and sizes of the softmax of a core.

    rows, depth
        Rows between two passes, beats in each buffer.
    maximum, total, output
        From a row's last scores to their second pass, from there to the third, from there to the
        probabilities.
    parts
        Beats of probabilities for a beat of a vector.
    """

    rows: int
    depth: int
    maximum: int
    total: int
    output: int
    parts: int


@dataclasses.dataclass(frozen=True)
class Timing:
    """Cycles and sizes of a core, from its parameters.

    load_rows, table_rows
        Beats of `tables` for one set of tables, and the product table's beats among them.
    search
        From a vector's last beat to its scale, but for its outliers' pairs, at least one.
    setup
        From the scale to the first clustered value.
    counted, summed, root
        From a vector's last indices to the first of their counts; from there to the sum of squares;
        from there to the RMS factor, for a product that is normalised.
    replace
        From the scale to the first outliers, for a product with a function.
    fetch
        From a product's command to its first word of weights.
    stages
        Pipeline stages of the column counter.
    tail
        From a column's counts being complete to its result, by the number of groups in use.
    scale_sets
        Sets of columns between words of scales.
    in_flight
        Products at a time.
    softmax
        Timing of the path from scores to probabilities.
    """

    load_rows: int
    table_rows: int
    search: int
    setup: int
    counted: int
    summed: int
    root: int
    replace: int
    fetch: int
    stages: int
    tail: Sequence[int]
    scale_sets: int
    in_flight: int
    softmax: SoftmaxTiming


@dataclasses.dataclass(frozen=True, eq=False)
class VectorWork:
    """A vector of a product's batch.

    listing
        Cycles to list the outliers of each beat of the vector, at least 1.
    rows
        Rows of outliers of each word of indices, at least 1.
    function
        Cycles to apply a function to each beat's outliers; None without a function.
    """

    listing: Sequence[int]
    rows: Sequence[int]
    function: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """One product.

    vectors
        Vectors of its batch.
    outliers
        At each end of each vector.
    sets
        Sets of columns.
    groups
        Groups of products in use.
    new_tables
        Tables are loaded for it.
    normalise
        It needs an RMS factor.
    softmax, weighted
        Its results are rows of the softmax; its vectors are weighted by the next rows.
    """

    vectors: Sequence[VectorWork]
    outliers: int
    sets: int
    groups: int
    new_tables: bool
    normalise: bool = False
    softmax: bool = False
    weighted: bool = False


@dataclasses.dataclass(frozen=True)
class Times:
    """Cycles in which a product's events occur.

    accepted
        Its command is accepted.
    first_step, last_step
        Its first and its last step are accepted by the lanes.
    clustered
        The last indices of its vectors are offered.
    result
        Its last result is output.
    """

    accepted: int
    first_step: int
    last_step: int
    clustered: int
    result: int


class LaneSteps:
    """When the lanes accept steps, and when columns' counts reach the buffer.

    All stages of the column counter advance together; they stop only while a column's last step is
    at the accumulators and the buffer still holds counts of the column before. Time is therefore
    kept in ticks, cycles in which they advance: a step reaches the accumulators `stages` ticks
    after it was accepted, and only a column's last step may have to wait for its tick.
    """

    def __init__(self, stages: int):
        self._stages = stages
        # Ticks and cycles in which the latest columns are complete, and the last one's groups.
        self._complete: deque[tuple[int, int]] = deque([(-1, -1)], maxlen=stages + 3)
        self._groups = 0
        self._tick = -1  # of the latest step

    def cycle(self, tick: int) -> int:
        """Cycle of a tick, not earlier than the oldest column that is remembered."""
        for at, cycle in reversed(self._complete):
            if at <= tick:
                return cycle + tick - at
        at, cycle = self._complete[0]
        return cycle + tick - at

    def column(self, rows: int, earliest: int) -> tuple[int, int]:
        """Accept a column's steps, the first from a cycle on.

        :returns: tick of its last step, and the cycle in which its counts reach the buffer.
        """
        tick = self._tick + 1
        while (cycle := self.cycle(tick)) < earliest:
            tick += earliest - cycle if tick > self._complete[-1][0] else 1
        self._tick = tick + rows - 1
        complete = self._tick + self._stages
        before, cycle = self._complete[-1]
        buffered = cycle + max(complete - before, self._groups)
        self._complete.append((complete, buffered))
        return self._tick, buffered

    def column_groups(self, groups: int) -> None:
        """State how many groups of the latest column are read."""
        self._groups = groups


class ScoreTimes:
    """When the beats of weighted vectors leave the softmax and its buffers (`ScorePath`).

    Each list has a cycle for each beat since the beginning; a beat's depend on those before it.
    """

    def __init__(self, t: SoftmaxTiming):
        self._t = t
        self._rows: deque[tuple[int, int]] = deque()  # cycle from which it is read, beats
        self._ends: list[int] = []  # numbers of the rows' last beats
        self._taken: list[int] = []
        self._second: list[int] = []  # reads for the second pass
        self._third: list[int] = []
        self._accepted: list[int] = []  # of probabilities
        self._left = 0  # beats of the present row still to be gathered
        self._used = self._gone = -1  # the latest beat of x, and its product
        self._free = -1  # from when the next beat of probabilities is gathered

    def store(self, final: int, vectors: int, beats: int) -> None:
        """A batch's results, of which the last one comes in cycle `final`, are rows."""
        self._rows.extend([(final + 2, beats)] * vectors)

    def weigh(self, known: int, free: int, beats: int) -> int:
        """Cycle in which a vector's last beat leaves.

        known, free
            Cycles from which its command is there, and from which its beats are accepted.
        """
        self._used = max(self._used, known - 1)
        for _ in range(beats):
            used = max(self._gather() + 1, self._used + 1, self._gone)
            self._gone = max(used + 1, self._gone + 1, free)
            self._used = self._free = used
        return self._gone

    def passed(self, last: int) -> None:
        """A vector that is not weighted has left."""
        self._used = self._gone = last

    def _gather(self) -> int:
        """Cycle in which the next beat of a vector has its last probabilities."""
        if not self._left:
            self._row(*self._rows.popleft())
        count = min(self._t.parts, self._left)
        self._left -= count
        for part in range(count):
            number, accepted = len(self._accepted), self._accepted
            stalled = accepted[number - self._t.output] if number >= self._t.output else 0
            sums = self._second[self._ends[-1]] + self._t.total
            before = self._third[-1] + 1 if self._third else 0
            self._third.append(max(sums, before, stalled))
            free = self._free if part == 0 else 0
            ready = self._third[-1] + self._t.output
            accepted.append(max(ready, accepted[-1] + 1 if accepted else 0, free))
        return self._accepted[-1]

    def _row(self, start: int, beats: int) -> None:
        """The first two passes of a row."""
        t, row, first = self._t, len(self._ends), len(self._taken)
        before = self._ends[row - t.rows] if row >= t.rows else -1
        now = max(start, self._taken[-1] + 1 if first else 0)
        for beat in range(first, first + beats):
            now = max([now] + [self._second[b] + 1 for b in (before, beat - t.depth) if b >= 0])
            self._taken.append(now)
            now += 1
        for beat in range(first, first + beats):
            limits = [self._taken[-1] + t.maximum, self._second[-1] + 1 if self._second else 0]
            limits += [self._third[b] + 1 for b in (before, beat - t.depth) if b >= 0]
            self._second.append(max(limits))
        self._ends.append(len(self._taken) - 1)
        self._left = beats


def core_cycles(t: Timing, products: Sequence[Work]) -> list[Times]:
    """Times of the products, with all inputs offered from cycle 0 and all outputs accepted at once.

    Variables are cycles of the latest product's events; before the first product they are -1, or as
    early as has no effect.
    """
    done: list[Times] = []
    # Cycles after which the outlier list and the index buffer have room for each product's batch.
    row_room: list[int] = []
    word_room: list[int] = []
    bank_free = [0, 0]  # first cycle in which a bank's tables are not in use
    bank, accepted, vector_sent, step = 1, -1, -1, -2
    lanes, scores = LaneSteps(t.stages), ScoreTimes(t.softmax)
    tables_accepted = scale_done = -1
    rebuilds: list[
        tuple[int, int]
    ] = []  # first and last cycle in which a function writes its table
    for number, work in enumerate(products):
        # The command: in order, with room for one more product, and with its tables loaded.
        ready = accepted + 1
        if number >= t.in_flight:
            ready = max(ready, done[number - t.in_flight].result + 1)
        if work.new_tables:
            bank = 1 - bank
            start = max(tables_accepted + 1, bank_free[bank])
            loaded = start + t.load_rows
            for first, end in rebuilds:  # rows of a rebuilt table have priority
                if first < loaded and end > start:
                    loaded += end - max(first, start)
            ready = max(ready, loaded)
        accepted = ready + len(work.vectors) - 1
        if work.new_tables:
            tables_accepted = accepted

        # The vectors: beats, search of outliers, clustering and listing beat by beat.
        for place, vector in enumerate(work.vectors):
            room = number > 1 and place == 0  # the buffers' halves take turns
            if work.weighted:
                last_in = scores.weigh(ready + place + 1, vector_sent + 1, len(vector.listing))
            else:
                last_in = max(vector_sent, ready + place) + len(vector.listing)
                scores.passed(last_in)
            begin = last_in + t.search + max(1, work.outliers)
            beat_arrives = clustered = begin + t.setup
            listed = begin + 1
            function: Sequence[int] = [0] * len(vector.listing)
            if vector.function is not None:
                function, listed = vector.function, begin + t.replace
                rebuilds.append((listed - t.table_rows, listed))
            listed = max(listed + function[0], row_room[-2] if room else 0)
            beat_leaves = max(clustered, listed + vector.listing[0] - 1)
            for listing, applied in zip(vector.listing[1:], function[1:], strict=True):
                beat_arrives, beat_leaves = beat_leaves + 1, beat_leaves + listing + applied
            vector_sent = beat_leaves
            gathered = max(beat_arrives + 1, word_room[-2] if room else 0)
            offered = max(gathered, beat_leaves) + 2
            # The vector's scale and factor: its counts wait for the scale of the vector before.
            counts_read = max(beat_arrives + 1 + t.counted, scale_done + 1)
            scale_done = counts_read + t.summed + work.normalise * t.root

        # Columns: the first step follows the vectors, their scales and the first words; a word of
        # scales takes a cycle.
        first_step: int | None = None
        for place in range(work.sets):
            for vector in work.vectors:
                earliest = 0
                if first_step is None:
                    earliest = max(offered, scale_done + 1, ready + t.fetch, step + 2)
                elif place % t.scale_sets == 0 and vector is work.vectors[0]:
                    earliest = step + 2
                rows = sum(vector.rows)
                tick, buffered = lanes.column(rows, earliest)
                lanes.column_groups(work.groups)
                previous, step = step, lanes.cycle(tick)
                if first_step is None:
                    first_step = lanes.cycle(tick - rows + 1)
        result = buffered + t.tail[work.groups]
        if work.softmax:
            scores.store(result, len(work.vectors), work.sets)
        bank_free[bank] = result + 1
        assert first_step is not None, "a product has columns and vectors"
        done.append(Times(accepted, first_step, step, beat_arrives + 1, result))
        # The buffers read one step ahead.
        before_row = lanes.cycle(tick - 1) if rows > 1 else previous
        last = work.vectors[-1].rows
        before_word = lanes.cycle(tick - last[-1]) if len(last) > 1 else previous
        row_room.append(max(offered, 1 + before_row))
        word_room.append(max(offered, 1 + before_word))
    return done


def listing_of(outlier: np.ndarray, segment: int, lanes: int, entries: int) -> tuple[list, list]:
    """``listing`` and ``rows`` of :class:`Work` for a vector's outliers ``bool[K]``.

    segment, lanes, entries
        Parameters of :class:`hw.kllm.outlier_list.OutlierList`.
    """
    padded = np.zeros(-(-len(outlier) // lanes) * lanes, bool)
    padded[: len(outlier)] = outlier
    listing = np.maximum(1, padded.reshape(-1, lanes).sum(axis=1))
    segments = -(-len(outlier) // segment)
    count = np.bincount(np.flatnonzero(outlier) // segment, minlength=segments)
    rows = np.maximum(1, -(-count // entries))
    # A full row is written when the next outlier of its segment is read, in a separate cycle.
    place = np.flatnonzero(outlier)
    number = np.arange(len(place)) - (np.cumsum(count) - count)[place // segment]
    spills = place[(number > 0) & (number % entries == 0)]
    np.add.at(listing, spills // lanes, 1)
    return listing.tolist(), rows.tolist()
