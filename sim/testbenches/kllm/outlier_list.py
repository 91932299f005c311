"""Testbench of the outlier list: vectors in, rows of outliers out. A transaction is a vector."""

import numpy as np

from golden.algorithms.kllm.quantize import dynamic_outliers
from golden.kllm.outlier_list import listing_cycles, outlier_rows
from golden.trace import Trace
from hw.kllm.outlier_list import OutlierListParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.orizuru import vectors_of
from sim.testbenches.strategies import sometimes

_COLUMNS = 4  # of most vectors


class OutlierListTestbench:
    def default_vectors(self, parameters: OutlierListParameters) -> int:
        return 96 if parameters.k <= 64 else 24

    def stimulus(
        self, parameters: OutlierListParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        rng = np.random.default_rng(seed)
        columns = random_columns(p, vectors, rng)
        if trace is not None:
            x, notes = vectors_of(trace, p.k, vectors)
            outlier = top_and_bottom(x, p.outliers)
            notes.append(f"Outliers are the {p.outliers} values at the ends of each vector.")
            lengths = np.full(vectors, p.k)
        else:
            notes = []
            x, outlier, lengths = random_vectors(p, vectors, rng)
        return build(p, x, outlier, lengths, columns, rng, notes)


testbench = OutlierListTestbench()


def top_and_bottom(x: np.ndarray, count: int) -> np.ndarray:
    """``bool``: `count` outliers of each vector, one more at the top if it is odd."""
    count = min(count, x.shape[-1])
    outlier = dynamic_outliers(x, count // 2)
    if count % 2:
        outlier |= dynamic_outliers(np.where(outlier, np.float16(-np.inf), x), 1) & (x > -np.inf)
    return outlier


def random_columns(p: OutlierListParameters, vectors: int, rng: np.random.Generator):
    """Number of columns of each vector: 0 to 4, of every 16th vector 40."""
    columns = rng.integers(0, min(_COLUMNS, p.columns) + 1, vectors)
    columns[vectors // 2 :: 16] = min(p.columns, 40)
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
    columns: np.ndarray,
    rng: np.random.Generator,
    notes: list[str],
) -> Stimulus:
    """The stimulus of these vectors: ``x, outlier [vectors, k]``, ``lengths, columns
    [vectors]``."""
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
        },
    )
    values = bits.view(np.float16)
    fields, transaction, listing, outputs = [], [], [], []
    for v in range(vectors):
        length = lengths[v]
        rows = outlier_rows(
            values[v, :length], marked[v, :length], p.segment, p.entries, p.outliers
        )
        count = len(rows.advance)
        one_column = {
            "valid": rows.valid,
            "position": rows.position,
            "value": rows.value.view(np.uint16),
            "advance": rows.advance,
            "last": np.arange(count) == count - 1,
            "overflow": np.full(count, rows.overflow),
        }
        again = np.tile(np.arange(count), columns[v])
        fields.append({name: field[again] for name, field in one_column.items()})
        transaction.append(np.full(len(again), v))
        listing.append(
            listing_cycles(marked[v, :length], p.segment, p.lanes, p.entries, p.outliers)
        )
        outputs.append(len(again))
    joined = {name: np.concatenate([f[name] for f in fields]) for name in fields[0]}
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
        transaction_of={"o": np.concatenate(transaction)},
        transactions=vectors,
        cycles=p.cycles(listing, outputs),
        notes=notes,
    )
