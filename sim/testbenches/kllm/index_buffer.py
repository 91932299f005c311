"""Testbench of the index buffer: a vector's indices in, words for every column out.

A transaction is a vector.
"""

import numpy as np

from golden.kllm.kllm_core import front_end
from golden.trace import Trace
from hw.kllm.index_buffer import IndexBufferParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
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
        columns = rng.integers(0, min(p.columns, 6) + 1, vectors)
        columns[-1] = max(1, columns[-1])
        if trace is None:
            full = sometimes(rng, 0.4, vectors)
            lengths = np.where(full, p.k, rng.integers(1, p.k + 1, vectors))
            index = rng.integers(0, 1 << p.bits, (vectors, p.k))
            keep = rng.random((vectors, p.k)) < rng.choice([0.5, 1], (vectors, 1))
            return build(p, index, keep, lengths, columns, rng, [])
        layers, notes = layers_of(trace, p.k, 4, p.bits, 2, 1)
        parts = [front_end(layer.x, layer.tables, 1) for layer in layers]
        # The layers take turns.
        turn = np.argsort(np.concatenate([np.arange(len(v.keep)) for v in parts]), kind="stable")
        at = np.resize(turn, vectors)
        index = np.concatenate([v.activation for v in parts])
        keep = np.concatenate([v.keep for v in parts])
        return build(p, index[at], keep[at], np.full(vectors, p.k), columns, rng, notes)


testbench = IndexBufferTestbench()


def build(
    p: IndexBufferParameters,
    index: np.ndarray,
    keep: np.ndarray,
    lengths: np.ndarray,
    columns: np.ndarray,
    rng: np.random.Generator,
    notes: list[str],
) -> Stimulus:
    """The stimulus of ``index, keep [vectors, k]``, ``lengths, columns [vectors]``."""
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
    tag = rng.integers(0, 8, vectors)
    fields, transaction, outputs = [], [], []
    for v in range(vectors):
        words = -(-lengths[v] // p.segment)
        again = np.tile(np.arange(words), columns[v])
        # Positions after the vector's last beat repeat that beat, not kept.
        by_beat = bits[v].reshape(most, p.lanes)[np.minimum(np.arange(most), beats[v] - 1)]
        one = {
            "index": by_beat.reshape(p.words, p.segment)[again],
            "keep": kept[v].reshape(p.words, p.segment)[again],
            "last": again == words - 1,
            "end": np.repeat(np.arange(columns[v]) == columns[v] - 1, words),
            "tag": np.full(len(again), tag[v]),
        }
        fields.append(one)
        transaction.append(np.full(len(again), v))
        outputs.append(len(again))
    return Stimulus(
        inputs={
            "i": payload.pack(
                p.input_layout,
                {
                    "index": bits.reshape(vectors, most, p.lanes)[exists],
                    "keep": mask,
                    "last": announced[exists],
                },
            ),
            "replay": payload.pack(p.replay_layout, {"columns": columns, "tag": tag}),
        },
        outputs={
            "o": payload.pack(
                p.output_layout, {n: np.concatenate([f[n] for f in fields]) for n in fields[0]}
            )
        },
        transaction_of={"o": np.concatenate(transaction)},
        transactions=vectors,
        cycles=p.cycles(beats.tolist(), outputs),
        notes=notes,
    )
