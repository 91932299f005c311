"""Testbench of the outlier list: vectors in, rows of outliers out. A transaction is a vector."""

import numpy as np

from golden.algorithms.kllm.quantize import dynamic_outliers
from golden.kllm.outlier_list import listing_cycles, outlier_rows
from golden.trace import Trace
from hw.kllm.outlier_list import OutlierListParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.batches import by_column, per_batch, random_batches
from sim.testbenches.kllm.orizuru import vectors_of
from sim.testbenches.strategies import sometimes

_COLUMNS = 4  # of most batches


class OutlierListTestbench:
    def default_vectors(self, parameters: OutlierListParameters) -> int:
        return 96 if parameters.k <= 64 else 24

    def stimulus(
        self, parameters: OutlierListParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        rng = np.random.default_rng(seed)
        ends = random_batches(p.vectors, vectors, rng)
        columns = random_columns(p, int(ends.sum()), rng)
        if trace is not None:
            x, notes = vectors_of(trace, p.k, vectors)
            outlier = top_and_bottom(x, p.outliers)
            notes.append(f"Outliers are the {p.outliers} values at the ends of each vector.")
            lengths = np.full(vectors, p.k)
        else:
            notes = []
            x, outlier, lengths = random_vectors(p, vectors, rng)
        return build(p, x, outlier, lengths, ends, columns, rng, notes)


testbench = OutlierListTestbench()


def top_and_bottom(x: np.ndarray, count: int) -> np.ndarray:
    """``bool``: `count` outliers of each vector, one more at the top if it is odd."""
    count = min(count, x.shape[-1])
    outlier = dynamic_outliers(x, count // 2)
    if count % 2:
        outlier |= dynamic_outliers(np.where(outlier, np.float16(-np.inf), x), 1) & (x > -np.inf)
    return outlier


def random_columns(p: OutlierListParameters, batches: int, rng: np.random.Generator):
    """Number of columns of each batch: 0 to 4, of every 16th batch 40."""
    columns = rng.integers(0, min(_COLUMNS, p.columns) + 1, batches)
    columns[batches // 2 :: 16] = min(p.columns, 40)
    columns[-1:] = np.maximum(columns[-1:], 1)
    return columns


def random_vectors(p: OutlierListParameters, vectors: int, rng: np.random.Generator):
    """Values of any bits, outliers anywhere and in clusters, vectors of any length."""
    shape = (vectors, p.k)
    x = rng.integers(0, 1 << 16, shape).astype(np.uint16).view(np.float16)
    place = np.arange(p.k)
    share = rng.choice([0, 0.5, 1, 2, 20], (vectors, 1)) * p.outliers / p.k
    anywhere = sometimes(rng, share, shape)
    start = rng.integers(0, p.k, (vectors, 1))
    length = rng.integers(0, p.outliers + 3, (vectors, 1))
    cluster = (place >= start) & (place < start + length)
    most = rng.integers(p.outliers - 1, p.outliers + 2, (vectors, 1))
    order = rng.random(shape).argsort(axis=1)
    near_limit = order < most
    kind = rng.choice(3, (vectors, 1))
    outlier = np.choose(kind, [anywhere, cluster, near_limit])
    full = sometimes(rng, 0.5, vectors)
    lengths = np.where(full, p.k, rng.integers(1, p.k + 1, vectors))
    return x, outlier, lengths


def build(
    parameters: OutlierListParameters,
    x: np.ndarray,
    outlier: np.ndarray,
    lengths: np.ndarray,
    ends: np.ndarray,
    columns: np.ndarray,
    rng: np.random.Generator,
    notes: list[str],
) -> Stimulus:
    """The stimulus of these vectors: ``x, outlier [vectors, k]``, ``lengths [vectors]``.

    ends
        ``bool[vectors]``: the vector is its batch's last.
    columns
        Number of columns of each batch.
    """
    p = parameters
    vectors = len(x)
    grid = p.beats * p.lanes
    position = np.arange(grid)
    bits = rng.integers(0, 1 << 16, (vectors, grid), np.uint16)
    bits[:, : p.k] = np.where(position[: p.k] < lengths[:, None], x.view(np.uint16), bits[:, : p.k])
    marked = np.zeros((vectors, grid), bool)
    marked[:, : p.k] = outlier & (position[: p.k] < lengths[:, None])
    beats = -(-lengths // p.lanes)
    exists = np.arange(p.beats) < beats[:, None]
    last = np.arange(p.beats) == beats[:, None] - 1
    # A full vector may leave `last` out.
    announced = last & ~((beats == p.beats)[:, None] & (sometimes(rng, 0.25, (vectors, 1))))
    lanes = marked.reshape(vectors, p.beats, p.lanes)[exists]
    weights = np.uint64(1) << np.arange(p.lanes, dtype=np.uint64)
    inputs = payload.pack(
        p.input_layout,
        {
            "values": bits.reshape(vectors, p.beats, p.lanes)[exists],
            "outlier": (lanes * weights).sum(axis=1).astype(np.uint64),
            "last": announced[exists],
            "end": np.where(last, ends[:, None], rng.integers(0, 2, last.shape))[exists],
        },
    )
    values = bits.view(np.float16)
    found = [
        outlier_rows(values[v, :length], marked[v, :length], p.segment, p.entries, p.outliers)
        for v, length in enumerate(lengths)
    ]
    listing = [
        listing_cycles(marked[v, :length], p.segment, p.lanes, p.entries, p.outliers)
        for v, length in enumerate(lengths)
    ]
    rows = np.array([len(of_vector.advance) for of_vector in found])
    row, vector, _ = by_column(rows, ends, columns)
    # One vector with too many outliers flags all rows of its batch.
    overflow = per_batch(np.array([of_vector.overflow for of_vector in found]), ends) > 0
    joined = {
        name: np.concatenate([getattr(of_vector, name) for of_vector in found])[row]
        for name in ("valid", "position", "value", "advance")
    }
    joined["value"] = joined["value"].view(np.uint16)
    joined["last"] = row == (np.cumsum(rows) - 1)[vector]
    joined["overflow"] = overflow[np.append(0, np.cumsum(ends)[:-1])[vector]]
    entries = {
        f"entries[{n}].{name}": joined[name][:, n]
        for n in range(p.entries)
        for name in ("valid", "position", "value")
    }
    flags = {name: joined[name] for name in ("advance", "last", "overflow")}
    return Stimulus(
        inputs={
            "i": inputs,
            "columns": payload.pack(range(p.columns + 1), {"payload": columns}),
        },
        outputs={"o": payload.pack(p.output_layout, entries | flags)},
        transaction_of={"o": vector},
        transactions=vectors,
        cycles=p.cycles(
            per_batch(np.array(listing), ends).tolist(),
            (per_batch(rows, ends) * columns).tolist(),
        ),
        notes=notes,
    )
