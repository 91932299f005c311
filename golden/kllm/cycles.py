"""Cycle model of the accelerator, for a memory that always keeps up.

It follows each product from its command to its last result. The tests require the hardware to take
exactly these cycles. Constants of a core are in :class:`Timing`, which the testbench makes from the
parameters of the blocks; what depends on vectors and matrices is in :class:`Work`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Timing:
    """Cycles and sizes of a core, from its parameters.

    load_rows, table_rows
        Beats of `load` for one set of tables, and those of the product table among them.
    search
        From a vector's last beat to its scale.
    setup
        From the scale to the first clustered value.
    counted, summed, root
        From a vector's last indices to the first of their counts; from there to the sum of squares;
        from there to the RMS factor, for a product that is normalised.
    replace
        From the scale to the first outliers, for a product with a function.
    groups
        G.
    stages
        Pipeline stages of the column counter.
    tail
        From a column's counts being complete to its result.
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
        Cycles to list the outliers of each beat of the vector, at least 1.
    rows
        Rows of outliers of each word of indices, at least 1.
    sets
        Sets of columns.
    new_tables
        Tables are loaded for it.
    normalise
        It waits for an RMS factor.
    function
        Cycles to apply a function to each beat's outliers; None without a function.
    """

    listing: Sequence[int]
    rows: Sequence[int]
    sets: int
    new_tables: bool
    normalise: bool = False
    function: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class Times:
    """Cycles in which a product's events occur.

    accepted
        Its command is accepted.
    first_step, last_step
        Its first and its last step are accepted by the lanes.
    result
        Its last result is output.
    """

    accepted: int
    first_step: int
    last_step: int
    result: int


def core_cycles(t: Timing, products: Sequence[Work]) -> list[Times]:
    """Times of the products, with all inputs offered from cycle 0 and all outputs accepted at once.

    Variables are cycles of the latest product's events; before the first product they are -1, or as
    early as has no effect.
    """
    done: list[Times] = []
    # Cycles after which the outlier list and the index buffer have room for each product's vector.
    row_room, word_room = [], []
    bank_free = [0, 0]  # first cycle in which a bank's tables are not in use
    bank, accepted, vector_sent, step = 1, -1, -1, -1
    # Of the latest column: its counts are complete; they are in the buffer, all read but the last.
    complete_at = buffered = -t.groups
    tables_accepted = scale_done = -1
    rebuilds = []  # first and last cycle in which a function writes its table
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
        accepted = ready
        if work.new_tables:
            tables_accepted = accepted

        # The vector: its beats, search of its outliers, clustering and listing beat by beat.
        scale = vector_sent + len(work.listing) + t.search
        begin = max(scale, accepted + 1)
        beat_arrives = clustered = begin + t.setup
        listed = begin + 1
        function = [0] * len(work.listing)
        if work.function is not None:
            function, listed = work.function, begin + t.replace
            rebuilds.append((listed - t.table_rows, listed))
        listed = max(listed + function[0], row_room[-2] if number > 1 else 0)
        beat_leaves = max(clustered, listed + work.listing[0] - 1)
        for listing, applied in zip(work.listing[1:], function[1:], strict=True):
            beat_arrives, beat_leaves = beat_leaves + 1, beat_leaves + listing + applied
        vector_sent = beat_leaves
        gathered = max(beat_arrives + 1, word_room[-2] if number > 1 else 0)
        offered = max(gathered, beat_leaves) + 2

        # The vector's scale and factor: its counts wait for the scale of the vector before.
        counts_read = max(beat_arrives + 1 + t.counted, scale_done + 1)
        scale_done = counts_read + t.summed + work.normalise * t.root

        # The first step: after the steps before, and after the factor of a normalised product.
        rows = sum(work.rows)
        first = max(offered, step + 1)
        if work.normalise:
            first = max(first, scale_done + 1)
        if first >= complete_at:
            first = max(first, buffered)

        # Columns: steps pass the counter's stages, which stall while counts wait for the buffer.
        stalled = buffered - complete_at if first < complete_at else 0
        arrival = first + t.stages + stalled  # of the column's first step at the accumulators
        for _ in range(work.sets):
            complete = arrival + rows - 1

            def accepted_at(arrives, freed=buffered, held=complete_at):
                """When the lanes accept the step that is then at the accumulators."""
                passed = arrives - freed
                return arrives - t.stages if passed >= t.stages else held - t.stages + passed

            # The last step, the one before, and the first of the last word.
            in_column = [accepted_at(complete - back) for back in (0, 1, work.rows[-1])]
            previous, step = step, in_column[0]
            complete_at, buffered = complete, max(complete, buffered + t.groups)
            arrival = buffered + 1
        result = buffered + t.tail
        bank_free[bank] = result + 1
        done.append(Times(accepted, first, step, result))
        row_room.append(max(offered, 1 + (in_column[1] if rows > 1 else previous)))
        several = len(work.rows) > 1
        word_room.append(max(offered, 1 + (in_column[2] if several else previous)))
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
    # A full row is written when the next outlier of its segment is read, in a cycle of its own.
    place = np.flatnonzero(outlier)
    number = np.arange(len(place)) - (np.cumsum(count) - count)[place // segment]
    spills = place[(number > 0) & (number % entries == 0)]
    np.add.at(listing, spills // lanes, 1)
    return listing.tolist(), rows.tolist()
