"""Bit-exact model of the outlier list (KLLM, section III-D): rows of entries, by segment."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class OutlierRows:
    """A vector's rows.

    position, value, valid
        ``[rows, entries]``: position in the segment, ``float16`` value; both 0 in unused entries.
    segment
        ``[rows]``: the segment each row belongs to.
    advance
        ``bool[rows]``: the row is its segment's last.
    overflow
        Whether outliers were dropped.
    """

    position: np.ndarray
    value: np.ndarray
    valid: np.ndarray
    segment: np.ndarray
    advance: np.ndarray
    overflow: bool


def outlier_rows(
    x: np.ndarray, outlier: np.ndarray, segment: int, entries: int, most: int
) -> OutlierRows:
    """Rows of a vector's outliers, `entries` in each, at least one row a segment.

    x
        ``float16[K]``.
    outlier
        ``bool[K]``; those after the first `most` are dropped.
    """
    places = np.flatnonzero(outlier)
    overflow = len(places) > most
    places = places[:most]
    segments = -(-len(x) // segment)
    in_segment = np.bincount(places // segment, minlength=segments)
    rows_of = np.maximum(1, -(-in_segment // entries))
    first_row = np.cumsum(rows_of) - rows_of
    # Number of each outlier within its segment.
    number = np.arange(len(places)) - (np.cumsum(in_segment) - in_segment)[places // segment]
    row = first_row[places // segment] + number // entries
    shape = (rows_of.sum(), entries)
    position, value, valid = (
        np.zeros(shape, int),
        np.zeros(shape, np.float16),
        np.zeros(shape, bool),
    )
    position[row, number % entries] = places % segment
    value[row, number % entries] = x[places]
    valid[row, number % entries] = True
    advance = np.zeros(shape[0], bool)
    advance[np.cumsum(rows_of) - 1] = True
    return OutlierRows(
        position, value, valid, np.repeat(np.arange(segments), rows_of), advance, overflow
    )


def listing_cycles(outlier: np.ndarray, segment: int, lanes: int, entries: int, most: int) -> int:
    """Cycles in which the hardware lists a vector of `lanes` positions a beat, without stalls.

    One for each outlier and each beat without one, one for each row but its segment's last, and one
    for a beat with listed and dropped outliers.
    """
    padded = np.zeros(-(-len(outlier) // lanes) * lanes, bool)
    padded[: len(outlier)] = outlier
    listed = padded & (np.cumsum(padded) <= most)
    kept, all_of = listed.reshape(-1, lanes).sum(axis=1), padded.reshape(-1, lanes).sum(axis=1)
    events = np.maximum(1, kept + (all_of > kept)).sum()
    in_segment = np.bincount(np.flatnonzero(listed) // segment, minlength=1)
    return int(events + np.maximum(0, -(-in_segment // entries) - 1).sum())
