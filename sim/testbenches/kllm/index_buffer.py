"""Testbench of the index buffer: vectors' indices in, words for every column out.

A transaction is a vector.
"""

import numpy as np

from golden.kllm.kllm_core import front_end
from golden.trace import Trace
from hw.kllm.index_buffer import IndexBufferParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.batches import by_column, per_batch, random_batches
from sim.testbenches.kllm.layers import layers_of
from sim.testbenches.strategies import sometimes


class IndexBufferTestbench:
    def default_vectors(self, parameters: IndexBufferParameters) -> int:
        return 60 if parameters.k <= 64 else 24

    def stimulus(
        self, parameters: IndexBufferParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        rng = np.random.default_rng(seed)
        ends = random_batches(p.vectors, vectors, rng)
        columns = rng.integers(0, min(p.columns, 6) + 1, ends.sum())
        columns[-1] = max(1, columns[-1])
        if trace is None:
            full = sometimes(rng, 0.4, vectors)
            lengths = np.where(full, p.k, rng.integers(1, p.k + 1, vectors))
            index = rng.integers(0, 1 << p.bits, (vectors, p.k))
            keep = rng.random((vectors, p.k)) < rng.choice([0.5, 1], (vectors, 1))
            return build(p, index, keep, lengths, ends, columns, rng, [])
        layers, notes = layers_of(trace, p.k, 4, p.bits, 2, 1)
        parts = [front_end(layer.x, layer.tables, 1) for layer in layers]
        # The layers take turns.
        turn = np.argsort(np.concatenate([np.arange(len(v.keep)) for v in parts]), kind="stable")
        at = np.resize(turn, vectors)
        index = np.concatenate([v.activation for v in parts])
        keep = np.concatenate([v.keep for v in parts])
        lengths = np.full(vectors, p.k)
        return build(p, index[at], keep[at], lengths, ends, columns, rng, notes)


testbench = IndexBufferTestbench()


def build(
    p: IndexBufferParameters,
    index: np.ndarray,
    keep: np.ndarray,
    lengths: np.ndarray,
    ends: np.ndarray,
    columns: np.ndarray,
    rng: np.random.Generator,
    notes: list[str],
) -> Stimulus:
    """The stimulus of ``index, keep [vectors, k]``, ``lengths [vectors]``.

    ends
        ``bool[vectors]``: the vector is its batch's last.
    columns
        Number of columns of each batch.
    """
    vectors, most = len(index), p.words * p.parts
    grid = most * p.lanes
    bits = rng.integers(0, 1 << p.bits, (vectors, grid))
    bits[:, : p.k] = index
    kept = np.zeros((vectors, grid), bool)
    kept[:, : p.k] = keep & (np.arange(p.k) < lengths[:, None])
    beats = -(-lengths // p.lanes)
    exists = np.arange(most) < beats[:, None]
    last = np.arange(most) == beats[:, None] - 1
    announced = last & ~((beats == most)[:, None] & (sometimes(rng, 0.25, (vectors, 1))))
    mask = kept.reshape(vectors, most, p.lanes)[exists] @ (1 << np.arange(p.lanes))
    beat_end = np.where(last, ends[:, None], rng.integers(0, 2, last.shape))
    tag = rng.integers(0, 1 << p.tag_bits, len(columns))
    words = -(-lengths // p.segment)
    row, vector, final = by_column(words, ends, columns)
    word = row - (np.cumsum(words) - words)[vector]
    batch = np.append(0, np.cumsum(ends)[:-1])[vector]
    # Positions after the vector's last beat repeat that beat, not kept.
    repeated = np.minimum(np.arange(most), beats[:, None] - 1)
    by_beat = bits.reshape(vectors, most, p.lanes)[np.arange(vectors)[:, None], repeated]
    outputs = {
        "index": by_beat.reshape(vectors, p.words, p.segment)[vector, word],
        "keep": kept.reshape(vectors, p.words, p.segment)[vector, word],
        "last": word == words[vector] - 1,
        "end": final & ends[vector] & (word == words[vector] - 1),
        "tag": tag[batch],
    }
    return Stimulus(
        inputs={
            "i": payload.pack(
                p.input_layout,
                {
                    "index": bits.reshape(vectors, most, p.lanes)[exists],
                    "keep": mask,
                    "last": announced[exists],
                    "end": beat_end[exists],
                },
            ),
            "replay": payload.pack(p.replay_layout, {"columns": columns, "tag": tag}),
        },
        outputs={"o": payload.pack(p.output_layout, outputs)},
        transaction_of={"o": vector},
        transactions=vectors,
        cycles=p.cycles(
            per_batch(beats, ends).tolist(), (per_batch(words, ends) * columns).tolist()
        ),
        notes=notes,
    )
