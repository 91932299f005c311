"""Bit-exact twin of the outlier list (KLLM, section III-D): rows of entries, by segment."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class OutlierRows:
    """A vector's rows.

    position, value, valid
        ``[rows, ports]``: position in the segment, ``float16`` value; both 0 where not valid.
    segment
        ``[rows]``: the segment each row belongs to.
    advance
        ``bool[rows]``: whether it is its segment's last.
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
    x: np.ndarray, outlier: np.ndarray, segment: int, ports: int, most: int
) -> OutlierRows:
    """Rows of a vector's outliers, `ports` in each, at least one row for each `segment` positions.

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
    rows_of = np.maximum(1, -(-in_segment // ports))
    first_row = np.cumsum(rows_of) - rows_of
    # Which outlier of its segment each one is.
    number = np.arange(len(places)) - (np.cumsum(in_segment) - in_segment)[places // segment]
    row = first_row[places // segment] + number // ports
    shape = (rows_of.sum(), ports)
    position, value, valid = (
        np.zeros(shape, int),
        np.zeros(shape, np.float16),
        np.zeros(shape, bool),
    )
    position[row, number % ports] = places % segment
    value[row, number % ports] = x[places]
    valid[row, number % ports] = True
    advance = np.zeros(shape[0], bool)
    advance[np.cumsum(rows_of) - 1] = True
    return OutlierRows(
        position, value, valid, np.repeat(np.arange(segments), rows_of), advance, overflow
    )


def listing_cycles(outlier: np.ndarray, segment: int, lanes: int, ports: int, most: int) -> int:
    """Cycles in which the hardware lists a vector, `lanes` positions a beat, without stalls."""
    padded = np.zeros(-(-len(outlier) // lanes) * lanes, bool)
    padded[: len(outlier)] = outlier
    listed = padded & (np.cumsum(padded) <= most)
    kept, all_of = listed.reshape(-1, lanes).sum(axis=1), padded.reshape(-1, lanes).sum(axis=1)
    events = np.maximum(1, kept + (all_of > kept)).sum()
    in_segment = np.bincount(np.flatnonzero(listed) // segment, minlength=1)
    return int(events + np.maximum(0, -(-in_segment // ports) - 1).sum())
