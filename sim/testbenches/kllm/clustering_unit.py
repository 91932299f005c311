"""Testbench of the clustering unit: activation vectors in, indices out. A transaction is a
vector."""

import numpy as np
from amaranth.hdl import unsigned

from golden.algorithms.kllm.quantize import (
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
    outlier_count,
)
from golden.kllm.clustering_unit import cluster, midpoints, scaled_midpoints
from golden.trace import Trace
from hw.kllm.clustering_unit import ClusteringUnitParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.arith.operands import corners
from sim.testbenches.operands import to_fp16, vectors_by_name
from sim.testbenches.strategies import sometimes

_LONGEST = 40  # beats of a vector
_SAMPLES = 4096


class ClusteringUnitTestbench:
    def default_vectors(self, parameters: ClusteringUnitParameters) -> int:
        return 1024 if parameters.lanes <= 4 else 64

    def stimulus(
        self, parameters: ClusteringUnitParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        rng = np.random.default_rng(seed)
        if trace is not None:
            x, tables, scale, notes = real_vectors(trace, p, vectors)
            beats = np.full(vectors, x.shape[1])
        else:
            notes = []
            tables, scale = random_tables(p, vectors, rng)
            beats = random_beats(p, vectors, rng)
            x = random_values(p, scaled_midpoints(tables, scale), beats.max(), rng)
        return build(p, x, beats, tables, scale, rng, notes)


testbench = ClusteringUnitTestbench()


def real_vectors(trace: Trace, p: ClusteringUnitParameters, vectors: int):
    """``x [vectors, beats, lanes]``, midpoints and scales of a trace's tokens, and notes."""
    arrays = vectors_by_name(trace)
    notes, pieces = [], []
    for name, array in arrays.items():
        half, remarks = to_fp16(name, array)
        notes += remarks
        half = np.where(np.isfinite(half), half, np.float16(0))
        outlier = dynamic_outliers(half, outlier_count(half.shape[1]))
        scale = inlier_scale(half, outlier)
        inliers = (half.astype(np.float32) / scale[:, None])[~outlier | outlier.all()]
        inliers = inliers[:: max(1, len(inliers) // _SAMPLES)]
        table = midpoints(fit_activation_codebook(inliers, p.activation_bits))
        pieces.append((half, scale, table))
    # One vector from each array in turn.
    shortest = min(half.shape[1] for half, *_ in pieces)
    beats = max(1, min(_LONGEST, shortest // p.lanes))
    size = beats * p.lanes
    chosen = [pieces[v % len(pieces)] for v in range(vectors)]
    rows = [v // len(pieces) % len(c[0]) for v, c in enumerate(chosen)]
    x = np.stack([np.resize(c[0][row], size) for c, row in zip(chosen, rows, strict=True)])
    tables = np.stack([table for *_, table in chosen])
    scale = np.array([c[1][row] for c, row in zip(chosen, rows, strict=True)])
    names = ", ".join(arrays)
    notes.append(
        f"Vectors are the first {size} values of rows of {names}, repeated where there are fewer;"
        " each of these has a codebook trained on its inliers, and each row its own scale."
    )
    return x.reshape(vectors, beats, p.lanes), tables, scale, notes


def random_tables(p: ClusteringUnitParameters, vectors: int, rng: np.random.Generator):
    """Midpoints and scales: normal ones, corner cases, any bits, subnormals, zero scales.

    Most midpoints ascend, some do not.
    """
    shape = (vectors, p.midpoints)
    odd = corners(np.float16)
    plain = rng.normal(scale=0.5, size=shape).astype(np.float16)
    any_bits = rng.integers(0, 1 << 16, shape).astype(np.uint16).view(np.float16)
    # With any number of leading zeros and either sign.
    small = rng.integers(1, 1 << 10, shape) >> rng.integers(0, 10, shape)
    small = (small | rng.integers(0, 2, shape) << 15).astype(np.uint16).view(np.float16)
    kind = rng.choice(4, (vectors, 1), p=(0.1, 0.3, 0.3, 0.3))
    tables = np.choose(kind, [plain, rng.choice(odd, shape), any_bits, small])
    tables = np.where(sometimes(rng, 0.6, (vectors, 1)), np.sort(tables, axis=1), tables)
    scale = np.abs(rng.normal(scale=4, size=vectors)).astype(np.float16)
    any_bits = rng.integers(0, 1 << 16, vectors).astype(np.uint16).view(np.float16)
    kinds = [scale, rng.choice(odd, vectors), any_bits, small[:, 0], np.float16(0) * scale]
    return tables, np.choose(rng.choice(5, vectors, p=(0.1, 0.3, 0.35, 0.2, 0.05)), kinds)


def random_beats(p: ClusteringUnitParameters, vectors: int, rng: np.random.Generator):
    """Beats of each vector: one or two, fewer than the setup of the next, or more."""
    kinds = [rng.integers(1, 3, vectors), rng.integers(1, p.setup + 1, vectors)]
    kinds += [p.setup + rng.integers(-1, 4, vectors)]
    return np.choose(rng.integers(0, 3, vectors), kinds)


def random_values(
    p: ClusteringUnitParameters, scaled: np.ndarray, beats: int, rng: np.random.Generator
):
    """Values at the scaled midpoints, one unit from them, one bit from them, or any bits."""
    vectors = len(scaled)
    shape = (vectors, beats, p.lanes)
    at = rng.integers(0, p.midpoints, shape)
    bound = scaled.view(np.uint16)[np.arange(vectors)[:, None, None], at].astype(np.int64)
    beside = bound + rng.integers(-1, 2, shape)
    flipped = bound ^ 1 << rng.integers(0, 16, shape)
    kinds = [bound, beside & 0xFFFF, flipped, rng.integers(0, 1 << 16, shape)]
    return np.choose(rng.integers(0, 4, shape), kinds).astype(np.uint16).view(np.float16)


def build(
    parameters: ClusteringUnitParameters,
    x: np.ndarray,
    beats: np.ndarray,
    tables: np.ndarray,
    scale: np.ndarray,
    rng: np.random.Generator,
    notes: list[str],
) -> Stimulus:
    """The stimulus of ``x [vectors, beats, lanes]``, of which vector v has ``beats[v]`` beats.

    A vector loads its midpoints if they are new, and sometimes if they are not.
    """
    p = parameters
    vectors = len(x)
    # Some vectors keep the table of the one before.
    load = np.ones(vectors, bool)
    for v in range(1, vectors):
        same = np.array_equal(tables[v].view(np.uint16), tables[v - 1].view(np.uint16))
        if same or sometimes(rng, 0.3):
            tables[v] = tables[v - 1]
            load[v] = sometimes(rng, 0.2)
    index = cluster(x, scaled_midpoints(tables, scale)[:, None, None])
    exists = np.arange(x.shape[1]) < beats[:, None]
    last = np.arange(x.shape[1]) == beats[:, None] - 1
    keep = rng.integers(0, 1 << p.lanes, exists.shape, np.uint64)
    control = {"keep": keep[exists], "last": last[exists]}
    bits = x.view(np.uint16)[exists]
    transaction = np.broadcast_to(np.arange(vectors)[:, None], exists.shape)[exists]
    return Stimulus(
        inputs={
            "midpoints": payload.pack(
                unsigned(16), {"payload": tables[load].view(np.uint16).reshape(-1)}
            ),
            "scale": payload.pack(p.scale_layout, {"scale": scale.view(np.uint16), "load": load}),
            "x": payload.pack(p.input_layout, {"values": bits, **control}),
        },
        outputs={"o": payload.pack(p.output_layout, {"index": index[exists], **control})},
        transaction_of={"o": transaction},
        transactions=vectors,
        cycles=p.cycles(beats.tolist()),
        notes=notes,
    )
