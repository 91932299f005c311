"""Testbench of the outlier split: vectors in, outliers and vectors out.

A transaction is a vector.
"""

import numpy as np

from golden.arith.formats import to_bits
from golden.kllm.outlier_split import outlier_split
from golden.trace import Trace
from hw.arith.float_format import FP16
from hw.kllm.outlier_split import OutlierSplitParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.orizuru import (
    corner_vectors,
    neighbour_vectors,
    random_vectors,
    vectors_of,
)
from sim.testbenches.strategies import mixture, sometimes


class OutlierSplitTestbench:
    def default_vectors(self, parameters: OutlierSplitParameters) -> int:
        return 96 if parameters.k <= 64 else 24

    def stimulus(
        self, parameters: OutlierSplitParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        rng = np.random.default_rng(seed)
        if trace is not None:
            x, notes = vectors_of(trace, p.k, vectors)
            wanted = random_outliers(p, vectors, rng)
            return build(p, x, np.ones(x.shape, bool), np.full(vectors, p.k), wanted, rng, notes)
        corners = corner_vectors(p.orizuru, rng)
        missing = max(0, vectors - len(corners[0]))
        neighbours = neighbour_vectors(p.orizuru, rng)
        some = rng.permutation(len(neighbours[0]))[: missing // 2]
        neighbours = [array[some] for array in neighbours]
        # Few values are kept, so that the first pairs reach all of them.
        neighbours[1] = rng.random(neighbours[1].shape) < rng.choice([0.2, 1], (len(some), 1))
        # Every other vector: zeros, infinities, and numbers and NaNs of one fraction bit.
        bit = rng.integers(-1, 15, neighbours[0].shape)
        single = np.where(bit < 0, 0, 1 << bit.clip(0)) | rng.choice([0, 1 << 15], bit.shape)
        single |= rng.choice([0, 0x7C00], bit.shape, p=[0.8, 0.2])
        neighbours[0][::2] = single.astype(np.uint16).view(np.float16)[::2]
        sets = [corners, neighbours, random_vectors(p.orizuru, missing - len(some), rng)]
        x, keep, lengths, _ = (np.concatenate(a)[:vectors] for a in zip(*sets, strict=True))
        return build(p, x, keep, lengths, random_outliers(p, vectors, rng), rng, [])


testbench = OutlierSplitTestbench()


def random_outliers(p: OutlierSplitParameters, vectors: int, rng: np.random.Generator):
    """Outliers at each end of each vector: the most in half of them; none; too many at times."""
    largest = (1 << p.outliers.bit_length()) - 1  # that the field can state
    kinds = {
        "most": (4, p.outliers),
        "none": (1, 0),
        "any": (2, rng.integers(0, p.outliers + 1, vectors)),
        "too many": (1, rng.integers(p.outliers, largest + 1, vectors)),
    }
    return mixture(rng, (vectors,), kinds)


def build(
    p: OutlierSplitParameters,
    x: np.ndarray,
    keep: np.ndarray,
    lengths: np.ndarray,
    wanted: np.ndarray,
    rng: np.random.Generator,
    notes: list[str],
) -> Stimulus:
    """The stimulus of these vectors: ``x, keep [vectors, k]``, ``lengths, wanted [vectors]``."""
    vectors, grid = len(x), p.beats * p.lanes
    bits = rng.integers(0, 1 << 16, (vectors, grid))
    bits[:, : p.k] = np.where(keep, to_bits(x), bits[:, : p.k])
    kept = np.zeros((vectors, grid), bool)
    kept[:, : p.k] = keep & (np.arange(p.k) < lengths[:, None])
    beats = -(-lengths // p.lanes)
    exists = np.arange(p.beats) < beats[:, None]
    last = np.arange(p.beats) == beats[:, None] - 1
    announced = last & ~((beats == p.beats)[:, None] & (sometimes(rng, 0.25, (vectors, 1))))
    stray = np.zeros_like(kept)
    stray[:, p.k :] = sometimes(rng, 0.5, (vectors, grid - p.k))

    def masks(flags):
        return flags.reshape(vectors, p.beats, p.lanes)[exists] @ (1 << np.arange(p.lanes))

    values = bits.reshape(vectors, p.beats, p.lanes)[exists]
    inputs = {"values": values, "keep": masks(kept | stray), "last": announced[exists]}
    half = bits[:, : p.k].astype(np.uint16).view(np.float16)
    outlier = np.zeros_like(kept)
    scale = np.zeros(vectors, np.float16)
    number = np.minimum(wanted, p.outliers)  # of outliers at each end
    pairs = np.maximum(number, 1)
    is_output = np.arange(p.outliers) < pairs[:, None]
    names = ("index", "value", "repeated")
    fields = {f"{end}.{name}": (f"{end}_{name}") for end in ("max", "min") for name in names}
    fields |= {"present": "present"}
    every = {field: np.zeros(is_output.shape, int) for field in fields}
    for count in np.unique(number):
        chosen = number == count
        found, marked, scale[chosen] = outlier_split(half[chosen], kept[chosen, : p.k], count)
        outlier[chosen, : p.k] = marked
        for field, name in fields.items():
            every[field][chosen, : max(1, count)] = found[name]
    every["last"] = np.arange(p.outliers) == pairs[:, None] - 1
    outliers = {field: array[is_output] for field, array in every.items()}
    again = {
        "values": values,
        "keep": masks(kept & ~outlier),
        "outlier": masks(outlier),
        "last": last[exists],
    }
    vector = np.arange(vectors)
    return Stimulus(
        inputs={
            "x": payload.pack(p.input_layout, inputs),
            "wanted": payload.pack(p.count_layout, {"payload": wanted}),
        },
        outputs={
            "outliers": payload.pack(p.pair_layout, outliers),
            "scale": payload.pack(FP16.width, {"payload": to_bits(scale)}),
            "o": payload.pack(p.output_layout, again),
        },
        transaction_of={
            "outliers": np.repeat(vector, pairs),
            "scale": vector,
            "o": np.repeat(vector, beats),
        },
        transactions=vectors,
        cycles=p.cycles(beats.tolist(), number.tolist()),
        notes=notes,
    )
