"""What a language model's blocks saw and did, token by token, as arrays and as a trace file."""

import dataclasses
import json
import os
from collections.abc import Sequence

import numpy as np

from golden.files import replacing
from golden.trace import RUN

TRACE = ("q", "k", "v", "scale")
"""Arrays that are the trace's own."""


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """Arrays over all tokens that the model read.

    token_ids
        ``int32[token]``: the prompt's and those made, but the last.
    q, k, v, scale
        As in :mod:`golden.trace`: ``[layer, head, token, d]``.
    o
        ``float16[layer, head, token, d]``: attention's outputs.
    cycles
        ``int64[layer, token]`` of attention.
    positions, votes
        ``int32[layer, cache, token, slot]`` after each token's step: the position of the token in
        a slot, and its votes by the bit-exact model; -1 in an empty slot, and for votes where
        nothing was compared. A layer has one cache where its heads decide together, otherwise one
        for each kv head.
    evicted
        ``int32[layer, cache, token]``: the position evicted in the token's step, or -1.
    product_cycles
        ``int64[layer, token, 4]``: of the products q k v; o; gate, up; down. None without a block
        for products.
    """

    token_ids: np.ndarray
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: np.float64
    o: np.ndarray
    cycles: np.ndarray
    positions: np.ndarray
    votes: np.ndarray
    evicted: np.ndarray
    product_cycles: np.ndarray | None = None

    def save(self, path: str | os.PathLike, meta: dict) -> None:
        """A trace that ``sim run --trace`` reads, with the other arrays as ``run/NAME``.

        It is written whole or not at all.

        :raises OSError: if it cannot be written.
        """
        arrays = {}
        for field in dataclasses.fields(self):
            name, array = field.name, getattr(self, field.name)
            if array is not None:
                arrays[name if name in TRACE else f"{RUN}{name}"] = array
        with replacing(path) as file:
            np.savez_compressed(file, **arrays, meta=np.array(json.dumps(meta, sort_keys=True)))


@dataclasses.dataclass(frozen=True, eq=False)
class LayerStep:
    """One token of one layer: `q`, `k`, `v`, `o` ``[head, d]``, and the cache after it.

    positions, votes
        ``[cache, slot]`` of the slots in use.
    evicted
        A position for each cache, or -1.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    o: np.ndarray
    positions: np.ndarray
    votes: np.ndarray
    evicted: Sequence[int]


def record_of(
    token_ids: Sequence[int],
    layers: Sequence[Sequence[LayerStep]],
    cycles: Sequence[Sequence[int]],
    product_cycles: Sequence | None = None,
) -> Record:
    """Steps and cycles of each layer, put together."""

    def stack(name: str, dtype) -> np.ndarray:
        parts = [np.stack([getattr(step, name) for step in of], axis=1) for of in layers]
        return np.stack(parts).astype(dtype)

    caches = len(layers[0][0].evicted)
    slots = max(step.positions.shape[1] for of in layers for step in of)
    shape = (len(layers), caches, len(token_ids), slots)
    positions, votes = np.full(shape, -1, np.int32), np.full(shape, -1, np.int32)
    for layer, of in enumerate(layers):
        for token, step in enumerate(of):
            used = slice(step.positions.shape[1])
            positions[layer, :, token, used], votes[layer, :, token, used] = (
                step.positions,
                step.votes,
            )
    d = layers[0][0].q.shape[-1]
    return Record(
        token_ids=np.array(token_ids, np.int32),
        q=stack("q", np.float32),
        k=stack("k", np.float16),
        v=stack("v", np.float16),
        scale=1 / np.sqrt(d),
        o=stack("o", np.float16),
        cycles=np.array(cycles, np.int64),
        positions=positions,
        votes=votes,
        evicted=stack("evicted", np.int32),
        product_cycles=None if product_cycles is None else np.array(product_cycles, np.int64),
    )
