"""Batches of vectors for the testbenches of the blocks that output a vector for every column."""

import numpy as np

from sim.testbenches.strategies import sometimes


def random_batches(most: int, vectors: int, rng: np.random.Generator) -> np.ndarray:
    """``bool[vectors]``: the vector is its batch's last. Batches have up to `most` vectors."""
    ends = np.zeros(vectors, bool)
    at = 0
    while at < vectors:
        size = int(rng.integers(1, most + 1)) if sometimes(rng, 0.6) else most
        at = min(at + size, vectors)
        ends[at - 1] = True
    return ends


def by_column(rows: np.ndarray, ends: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Order in which rows of batches are output: all rows of a batch for a column, then the next.

    rows, ends
        Rows of each vector; the vector is its batch's last.
    columns
        Number of columns of each batch.
    :returns: number of the row among all, in order of output; number of its vector; whether it is
        output for its batch's last column.
    """
    vector = np.repeat(np.arange(len(rows)), rows)
    batch = np.append(0, np.cumsum(ends)[:-1])[vector]
    order, final = [], []
    for number, count in enumerate(columns):
        of_batch = np.flatnonzero(batch == number)
        order.append(np.tile(of_batch, count))
        final.append(np.repeat(np.arange(count) == count - 1, len(of_batch)))
    row = np.concatenate(order)
    return row, vector[row], np.concatenate(final)


def per_batch(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Sums of the vectors' values over each batch."""
    return np.add.reduceat(values, np.append(0, np.flatnonzero(ends)[:-1] + 1))
