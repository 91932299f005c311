"""When the accelerator does what, cycle by cycle, with a memory that always keeps up."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Timing:
    """Of a core.

    load_rows, table_rows
        Beats of `load` for one set of tables, and of them those of the products.
    search
        Cycles from a vector's last beat to its scale.
    setup
        Cycles from the scale to the first value clustered.
    counted, summed, root
        Cycles from a vector's last indices to the first of their counts, from there to the sum of
        squares, and from there to the factor, where one is wanted.
    replace
        Cycles from the scale to the first outliers, for a function.
    groups
        G.
    stages
        Of the column counter.
    tail
        Cycles from a column's counts being complete to its result.
    in_flight
        Products at a time.
    """

    load_rows: int
    table_rows: int
    search: int
    setup: int
    counted: int
    summed: int
    root: int
    replace: int
    groups: int
    stages: int
    tail: int
    in_flight: int


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """One product.

    listing
        Cycles for the outliers of each beat of the vector, at least 1.
    rows
        Rows of outliers of each word of indices, at least 1.
    sets
        Sets of columns.
    own
        Whether tables are loaded for it.
    normalise
        Whether it waits for a factor.
    function
        Cycles for a function of each beat's outliers; None without one.
    """

    listing: Sequence[int]
    rows: Sequence[int]
    sets: int
    own: bool
    normalise: bool = False
    function: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class Times:
    """Cycles of one product's events, of the first and the last of a kind.

    accepted
        The job.
    first_step, last_step
        In the lanes.
    result
        The last one.
    """

    accepted: int
    first_step: int
    last_step: int
    result: int


def core_cycles(t: Timing, products: Sequence[Work]) -> list[Times]:
    """The products' times, all inputs being offered from cycle 0 and all outputs taken at once."""
    done: list[Times] = []
    row_room, word_room = [], []  # when each product's last row and word were read
    banks = [0, 0]  # when nobody uses the tables any more
    bank, accepted, sent, step = 1, -1, -1, -1
    counted = waiting = -t.groups  # when the latest column's counts were moved, and came to wait
    accepted_own = token = -1
    rebuilt = []
    for number, work in enumerate(products):
        ready = accepted + 1
        if number >= t.in_flight:
            ready = max(ready, done[number - t.in_flight].result + 1)
        if work.own:
            bank = 1 - bank
            start = max(accepted_own + 1, banks[bank])
            loaded = start + t.load_rows
            for first, end in rebuilt:  # rows of a rebuilt table go first
                if first < loaded and end > start:
                    loaded += end - max(first, start)
            ready = max(ready, loaded)
        accepted = ready
        if work.own:
            accepted_own = accepted

        # The vector: in, searched, and through clustering and listing.
        scale = sent + len(work.listing) + t.search
        begin = max(scale, accepted + 1)
        arrive = clustered = begin + t.setup
        listed = begin + 1
        costs = [0] * len(work.listing)
        if work.function is not None:
            costs, listed = work.function, begin + t.replace
            rebuilt.append((listed - t.table_rows, listed))
        listed = max(listed + costs[0], row_room[-2] if number > 1 else 0)
        leave = max(clustered, listed + work.listing[0] - 1)
        for cost, more in zip(work.listing[1:], costs[1:], strict=True):
            arrive, leave = leave + 1, leave + cost + more
        sent = leave
        gathered = max(arrive + 1, word_room[-2] if number > 1 else 0)
        offered = max(gathered, leave) + 2

        # Columns: steps pass `stages` ranks, which all stand still while counts wait for room.
        rows = sum(work.rows)
        first = max(offered, step + 1)
        # A vector's counts wait for the token of the one before.
        token = max(arrive + 1 + t.counted, token + 1) + t.summed + work.normalise * t.root
        if work.normalise:
            first = max(first, token + 1)
        if first >= waiting:
            first = max(first, counted)
        arrival = first + t.stages + (counted - waiting if first < waiting else 0)
        last_steps = [step]
        for _ in range(work.sets):
            complete = arrival + rows - 1

            def accepted_at(arrives, before=counted, held=waiting):
                passed = arrives - before
                return arrives - t.stages if passed >= t.stages else held - t.stages + passed

            in_column = [accepted_at(complete - back) for back in (0, 1, work.rows[-1])]
            previous = last_steps[-1]
            last_steps.append(in_column[0])
            waiting, counted = complete, max(complete, counted + t.groups)
            arrival = counted + 1
        step = last_steps[-1]
        result = counted + t.tail
        banks[bank] = result + 1
        done.append(Times(accepted, first, step, result))
        row_room.append(max(offered, 1 + (in_column[1] if rows > 1 else previous)))
        several = len(work.rows) > 1
        word_room.append(max(offered, 1 + (in_column[2] if several else previous)))
    return done


def listing_of(outlier: np.ndarray, segment: int, lanes: int, entries: int) -> tuple[list, list]:
    """``listing`` and ``rows`` of a vector's outliers ``bool[K]`` as :class:`Work` has them."""
    padded = np.zeros(-(-len(outlier) // lanes) * lanes, bool)
    padded[: len(outlier)] = outlier
    listing = np.maximum(1, padded.reshape(-1, lanes).sum(axis=1))
    segments = -(-len(outlier) // segment)
    count = np.bincount(np.flatnonzero(outlier) // segment, minlength=segments)
    rows = np.maximum(1, -(-count // entries))
    # A row that is full is written when the next outlier of its segment comes.
    place = np.flatnonzero(outlier)
    number = np.arange(len(place)) - (np.cumsum(count) - count)[place // segment]
    spills = place[(number > 0) & (number % entries == 0)]
    np.add.at(listing, spills // lanes, 1)
    return listing.tolist(), rows.tolist()
